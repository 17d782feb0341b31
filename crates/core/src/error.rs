//! What can go wrong, by what the caller can do about it.

use ronde_control::Rank;
use ronde_control::cause::CauseKind;
use ronde_control::wire::frame::FrameError;

/// The sentence that Horovod's users look for when the world is over.
const OVER: &str = "Horovod has been shut down. This was caused by an exception on one of the ranks \
                    or an attempt to allreduce, allgather or broadcast a tensor after one of the \
                    ranks finished execution.";

/// An error of the data plane. It is cloned into every call that it ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A rank died; its work can be taken up again from the last commit.
    #[error("lost {rank} ({host}, slot {slot}): {cause}{}\n{OVER}", while_waiting(.tensor))]
    Lost {
        /// Who.
        rank: Rank,
        /// Where.
        host: String,
        /// Its place on that host.
        slot: u32,
        /// By what kind of thing.
        kind: CauseKind,
        /// How, in words.
        cause: String,
        /// The tensor whose wait ended.
        tensor: Option<String>,
    },
    /// A rank ended its part in order while others still wanted something of it.
    #[error("{rank} ({host}, slot {slot}) has left: {reason}{}\n{OVER}", while_waiting(.tensor))]
    Left {
        /// Who.
        rank: Rank,
        /// Where.
        host: String,
        /// Its place on that host.
        slot: u32,
        /// `Exception` if one ended it, else `Left`.
        kind: CauseKind,
        /// Why, in words.
        reason: String,
        /// The tensor whose wait ended.
        tensor: Option<String>,
    },
    /// Somebody never submitted what the others wait for.
    #[error("{text}\n{OVER}")]
    Stalled {
        /// Who is late, and where each of them is.
        missing: Vec<(Rank, String)>,
        /// Who is late with what, in words.
        text: String,
        /// The tensor whose wait ended.
        tensor: Option<String>,
    },
    /// The connection to the launcher has ended, so nobody can say what became of the others.
    #[error("{what}")]
    LauncherGone {
        /// What was seen of it.
        what: String,
        /// The tensor whose wait ended.
        tensor: Option<String>,
    },
    /// Something has written into the memory that the ranks of a host share.
    #[error(
        "the shared memory of the ranks on {host} was overwritten: {what}. Something on that host writes \
         where it must not, most likely native code of the program with a wild pointer, or its memory is \
         faulty\n{OVER}"
    )]
    Overwritten {
        /// The host.
        host: String,
        /// What was found there.
        what: String,
        /// The tensor whose wait ended.
        tensor: Option<String>,
    },
    /// This worker is no longer part of its elastic job.
    #[error("{host}[{slot}] has been removed from elastic job: {reason}")]
    Removed {
        /// Where it is.
        host: String,
        /// Its place on that host.
        slot: u32,
        /// Why, in words.
        reason: String,
    },
    /// This rank itself has ended its part.
    #[error("this rank has called shutdown.\n{OVER}")]
    Shutdown,
    /// The ranks do not want the same: a bug in the program.
    #[error("{0}")]
    Mismatch(String),
    /// The request cannot be carried out as it stands.
    #[error("{0}")]
    Invalid(String),
    /// The world could not be formed.
    #[error("{0}")]
    Setup(String),
    /// A peer sent what no version of Ronde sends.
    #[error("{rank} spoke nonsense: {what}")]
    Nonsense {
        /// Who.
        rank: Rank,
        /// What.
        what: String,
        /// The tensor whose wait ended.
        tensor: Option<String>,
    },
}

/// What is known of the end of a world, as data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Who was lost or late, in order; nobody, where it was nobody's fault.
    pub ranks: Vec<Rank>,
    /// Where they are, each host once.
    pub hosts: Vec<String>,
    /// By what kind of thing.
    pub kind: CauseKind,
    /// The tensor whose wait ended, if somebody waited.
    pub tensor: Option<String>,
}

impl Error {
    /// What the end of the connection to the launcher means: damage is not absence.
    pub(crate) fn launcher_gone(error: &std::io::Error) -> Error {
        let damaged = error.get_ref().is_some_and(|inner| inner.is::<FrameError>());
        let what = match damaged {
            true => format!(
                "the connection between this rank and the launcher cannot be trusted: {error}. The \
                 launcher may well be there, but nothing it says is believed any more; look for a \
                 faulty network card, cable or memory, or a device in between that changes packets"
            ),
            false => format!("the launcher is gone: {error}"),
        };
        Error::LauncherGone { what, tensor: None }
    }

    /// The error when a peer sent what no version of Ronde sends.
    pub(crate) fn nonsense(rank: Rank, what: String) -> Error {
        Error::Nonsense { rank, what, tensor: None }
    }

    /// The error as the waiter for one tensor should read it.
    pub(crate) fn during(&self, name: &str) -> Error {
        let mut error = self.clone();
        if let Error::Lost { tensor, .. }
        | Error::Left { tensor, .. }
        | Error::Stalled { tensor, .. }
        | Error::LauncherGone { tensor, .. }
        | Error::Overwritten { tensor, .. }
        | Error::Nonsense { tensor, .. } = &mut error
        {
            tensor.get_or_insert_with(|| name.to_owned());
        }
        error
    }

    /// What is known of the end of the world, if this error tells of one.
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
            Error::Nonsense { rank, tensor, .. } => {
                (vec![*rank], Vec::new(), CauseKind::ConnectionLost, tensor)
            }
            Error::Shutdown => (Vec::new(), Vec::new(), CauseKind::Left, &None),
            Error::Removed { .. } | Error::Mismatch(_) | Error::Invalid(_) | Error::Setup(_) => {
                return None;
            }
        };
        Some(Loss { ranks, hosts, kind, tensor: tensor.clone() })
    }

    /// The kind of end of a rank that leaves with an exception after its world ended with this
    /// error: the error's own where it is nobody's death, which the others would be told of.
    pub(crate) fn ends_itself_with(&self) -> CauseKind {
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

    /// The rank that this error is the fault of, if there is one.
    pub fn blames(&self) -> Option<Rank> {
        match self {
            Error::Lost { rank, .. } | Error::Left { rank, .. } | Error::Nonsense { rank, .. } => {
                Some(*rank)
            }
            _ => None,
        }
    }
}

fn while_waiting(tensor: &Option<String>) -> String {
    let words = |name: &String| format!(" (while this rank waited for `{name}`)");
    tensor.as_ref().map(words).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_message_is_not_told_as_a_launcher_that_is_gone() {
        let damaged = std::io::Error::other(FrameError::Tampered);
        let text = Error::launcher_gone(&damaged).to_string();
        assert!(text.contains("a message arrived damaged"), "{text}");
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
        assert_eq!(error.ends_itself_with(), CauseKind::Exception);
    }

    #[test]
    fn a_stall_names_who_is_missing_as_data() {
        let missing = [(1, "a"), (2, "b"), (5, "a")].map(|(rank, host)| (Rank(rank), host.into()));
        let error = Error::Stalled { missing: missing.into(), text: "late".into(), tensor: None };
        let Loss { ranks, hosts, kind, .. } = error.loss().unwrap();
        assert_eq!(ranks, [Rank(1), Rank(2), Rank(5)]);
        assert_eq!((hosts, kind), (vec!["a".into(), "b".into()], CauseKind::Stalled));
        assert_eq!(error.ends_itself_with(), CauseKind::Stalled);
        assert_eq!(Error::Mismatch("shapes".into()).loss(), None);
    }
}
