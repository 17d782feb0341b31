//! Errors of the data plane, grouped by what the caller can do about them.

use ronde_control::Rank;
use ronde_control::cause::CauseKind;
use ronde_control::wire::frame::FrameError;

/// The sentence that Horovod's users look for when the world has ended.
const OVER: &str = "Horovod has been shut down. This was caused by an exception on one of the ranks \
                    or an attempt to allreduce, allgather or broadcast a tensor after one of the \
                    ranks finished execution.";

/// An error of the data plane. Every call that it ends gets a clone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A rank died; training can resume from the last commit.
    #[error("lost {rank} ({host}, slot {slot}): {cause}{}\n{OVER}", while_waiting(.tensor))]
    Lost {
        /// The rank that was lost.
        rank: Rank,
        /// Name of that rank's host.
        host: String,
        /// Its slot on that host.
        slot: u32,
        /// What kind of event ended it.
        kind: CauseKind,
        /// Human-readable cause, for example `was killed by signal 9`.
        cause: String,
        /// The tensor whose wait ended.
        tensor: Option<String>,
    },
    /// A rank left in an orderly way while others still needed it.
    #[error("{rank} ({host}, slot {slot}) has left: {reason}{}\n{OVER}", while_waiting(.tensor))]
    Left {
        /// The rank that left.
        rank: Rank,
        /// Name of that rank's host.
        host: String,
        /// Its slot on that host.
        slot: u32,
        /// `Exception` if an exception ended it, else `Left`.
        kind: CauseKind,
        /// Human-readable reason.
        reason: String,
        /// The tensor whose wait ended.
        tensor: Option<String>,
    },
    /// A rank never submitted what the others wait for.
    #[error("{text}\n{OVER}")]
    Stalled {
        /// The late ranks, each with its host.
        missing: Vec<(Rank, String)>,
        /// A report for people: the late ranks and the tensors they have not submitted.
        text: String,
        /// The tensor whose wait ended.
        tensor: Option<String>,
    },
    /// The connection to the launcher has ended, so nothing more can be learned about the other
    /// ranks.
    #[error("{what}")]
    LauncherGone {
        /// What was observed.
        what: String,
        /// The tensor whose wait ended.
        tensor: Option<String>,
    },
    /// The memory that the ranks of a host share was overwritten.
    #[error(
        "the shared memory of the ranks on {host} was overwritten: {what}. Most likely native code \
         in the program wrote through a stray pointer, or that host's memory is faulty\n{OVER}"
    )]
    Overwritten {
        /// Name of the host.
        host: String,
        /// What was found there.
        what: String,
        /// The tensor whose wait ended.
        tensor: Option<String>,
    },
    /// This worker is no longer part of its elastic job.
    #[error("{host}[{slot}] has been removed from elastic job: {reason}")]
    Removed {
        /// Name of this worker's host.
        host: String,
        /// Its slot on that host.
        slot: u32,
        /// Human-readable reason.
        reason: String,
    },
    /// This rank itself has shut down.
    #[error("this rank has called shutdown.\n{OVER}")]
    Shutdown,
    /// The ranks submitted requests that do not match: a bug in the program.
    #[error("{0}")]
    Mismatch(String),
    /// The request is invalid, whatever the other ranks submit.
    #[error("{0}")]
    Invalid(String),
    /// A GPU or its libraries have failed on this rank.
    #[error("{0}")]
    Device(String),
    /// The world could not be formed.
    #[error("{0}")]
    Setup(String),
    /// A peer sent a message that no version of Ronde sends.
    #[error("received a malformed message from {rank}: {what}")]
    Malformed {
        /// The rank that sent it.
        rank: Rank,
        /// What was wrong with the message.
        what: String,
        /// The tensor whose wait ended.
        tensor: Option<String>,
    },
}

/// What is known about the end of a world, as data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The ranks that were lost or late, in rising order; empty if no rank is at fault.
    pub ranks: Vec<Rank>,
    /// Their hosts, without duplicates.
    pub hosts: Vec<String>,
    /// What kind of event ended the world.
    pub kind: CauseKind,
    /// The tensor whose wait ended, if a call was waiting.
    pub tensor: Option<String>,
}

impl Error {
    /// The error for a broken connection to the launcher. Damaged data does not mean that the
    /// launcher is gone.
    pub(crate) fn launcher_gone(error: &std::io::Error) -> Error {
        let damaged = error.get_ref().is_some_and(|inner| inner.is::<FrameError>());
        let what = match damaged {
            true => format!(
                "the connection between this rank and the launcher cannot be trusted: {error}. The \
                 launcher may still be running. Look for a faulty network card, cable or memory, \
                 or a device in between that changes packets"
            ),
            false => format!("the launcher is gone: {error}"),
        };
        Error::LauncherGone { what, tensor: None }
    }

    /// The error for a message that no version of Ronde sends.
    pub(crate) fn malformed(rank: Rank, what: String) -> Error {
        Error::Malformed { rank, what, tensor: None }
    }

    /// A copy of the error for a caller that waits for the tensor `name`.
    pub(crate) fn during(&self, name: &str) -> Error {
        let mut error = self.clone();
        if let Error::Lost { tensor, .. }
        | Error::Left { tensor, .. }
        | Error::Stalled { tensor, .. }
        | Error::LauncherGone { tensor, .. }
        | Error::Overwritten { tensor, .. }
        | Error::Malformed { tensor, .. } = &mut error
        {
            tensor.get_or_insert_with(|| name.to_owned());
        }
        error
    }

    /// What is known about the end of the world, if this error ended it.
    pub fn loss(&self) -> Option<Loss> {
        let (ranks, hosts, kind, tensor) = match self {
            Error::Lost { rank, host, kind, tensor, .. }
            | Error::Left { rank, host, kind, tensor, .. } => {
                (vec![*rank], vec![host.clone()], *kind, tensor)
            }
            Error::Stalled { missing, tensor, .. } => {
                let mut hosts: Vec<String> = Vec::new();
                for (_, host) in missing {
                    if !hosts.contains(host) {
                        hosts.push(host.clone());
                    }
                }
                (missing.iter().map(|(rank, _)| *rank).collect(), hosts, CauseKind::Stalled, tensor)
            }
            Error::LauncherGone { tensor, .. } => {
                (Vec::new(), Vec::new(), CauseKind::LauncherLost, tensor)
            }
            Error::Overwritten { host, tensor, .. } => {
                (Vec::new(), vec![host.clone()], CauseKind::Overwritten, tensor)
            }
            Error::Malformed { rank, tensor, .. } => {
                (vec![*rank], Vec::new(), CauseKind::ConnectionLost, tensor)
            }
            Error::Shutdown => (Vec::new(), Vec::new(), CauseKind::Left, &None),
            Error::Removed { .. }
            | Error::Mismatch(_)
            | Error::Invalid(_)
            | Error::Device(_)
            | Error::Setup(_) => {
                return None;
            }
        };
        Some(Loss { ranks, hosts, kind, tensor: tensor.clone() })
    }

    /// The kind of end that a rank reports when it leaves with an exception after its world ended
    /// with this error. The error's own kind, except for the death of another rank, which is
    /// reported separately.
    pub(crate) fn kind_when_leaving(&self) -> CauseKind {
        match self.loss().map(|loss| loss.kind) {
            Some(
                kind @ (CauseKind::Stalled
                | CauseKind::Overwritten
                | CauseKind::LauncherLost
                | CauseKind::ConnectionLost),
            ) => kind,
            _ => CauseKind::Exception,
        }
    }

    /// The rank at fault, if there is one.
    pub fn blames(&self) -> Option<Rank> {
        match self {
            Error::Lost { rank, .. } | Error::Left { rank, .. } | Error::Malformed { rank, .. } => {
                Some(*rank)
            }
            _ => None,
        }
    }
}

fn while_waiting(tensor: &Option<String>) -> String {
    let phrase = |name: &String| format!(" (while this rank waited for `{name}`)");
    tensor.as_ref().map(phrase).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_message_is_not_reported_as_a_lost_launcher() {
        let damaged = std::io::Error::other(FrameError::Tampered);
        let text = Error::launcher_gone(&damaged).to_string();
        assert!(text.contains("received a corrupt message"), "{text}");
        assert!(!text.contains("is gone"), "{text}");
        let closed = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        assert!(Error::launcher_gone(&closed).to_string().starts_with("the launcher is gone: "));
    }

    #[test]
    fn a_lost_rank_is_named_in_the_error() {
        let error = Error::Lost {
            rank: Rank(5),
            host: "node-b".into(),
            slot: 1,
            kind: CauseKind::Signal,
            cause: "was killed by signal 9 (SIGKILL)".into(),
            tensor: None,
        };
        let text = error.to_string();
        let first = text.lines().next().unwrap();
        assert_eq!(first, "lost rank 5 (node-b, slot 1): was killed by signal 9 (SIGKILL)");
        assert!(text.contains("Horovod has been shut down"));
        assert_eq!(error.blames(), Some(Rank(5)));
        let waited = error.during("x").during("y");
        assert_eq!(
            waited.to_string().lines().next().unwrap(),
            first.to_owned() + " (while this rank waited for `x`)"
        );
        let hosts = vec!["node-b".to_owned()];
        let tensor = Some("x".to_owned());
        let loss = Loss { ranks: vec![Rank(5)], hosts, kind: CauseKind::Signal, tensor };
        assert_eq!(waited.loss(), Some(loss));
        assert_eq!(error.kind_when_leaving(), CauseKind::Exception);
    }

    #[test]
    fn a_stall_names_who_is_missing_as_data() {
        let missing = [(1, "a"), (2, "b"), (5, "a")].map(|(rank, host)| (Rank(rank), host.into()));
        let error = Error::Stalled { missing: missing.into(), text: "late".into(), tensor: None };
        let Loss { ranks, hosts, kind, .. } = error.loss().unwrap();
        assert_eq!(ranks, [Rank(1), Rank(2), Rank(5)]);
        assert_eq!((hosts, kind), (vec!["a".into(), "b".into()], CauseKind::Stalled));
        assert_eq!(error.kind_when_leaving(), CauseKind::Stalled);
        assert_eq!(Error::Mismatch("shapes".into()).loss(), None);
    }
}
