//! What can go wrong, by what the caller can do about it.

use ronde_control::Rank;
use ronde_control::wire::frame::FrameError;

/// The sentence that Horovod's users look for when the world is over.
const OVER: &str = "Horovod has been shut down. This was caused by an exception on one of the ranks \
                    or an attempt to allreduce, allgather or broadcast a tensor after one of the \
                    ranks finished execution.";

/// An error of the data plane. It is cloned into every call that it ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A rank died; its work can be taken up again from the last commit.
    #[error("lost {rank} ({host}, slot {slot}): {cause}\n{OVER}")]
    Lost {
        /// Who.
        rank: Rank,
        /// Where.
        host: String,
        /// Its place on that host.
        slot: u32,
        /// How, in words.
        cause: String,
    },
    /// A rank ended its part in order while others still wanted something of it.
    #[error("{rank} ({host}, slot {slot}) has left: {reason}\n{OVER}")]
    Left {
        /// Who.
        rank: Rank,
        /// Where.
        host: String,
        /// Its place on that host.
        slot: u32,
        /// Why, in words.
        reason: String,
    },
    /// Somebody never submitted what the others wait for.
    #[error("{0}\n{OVER}")]
    Stalled(String),
    /// The connection to the launcher has ended, so nobody can say what became of the others.
    #[error("{0}")]
    LauncherGone(String),
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
    },
}

impl Error {
    /// What the end of the connection to the launcher means: damage is not absence.
    pub(crate) fn launcher_gone(error: &std::io::Error) -> Error {
        let damaged = error.get_ref().is_some_and(|inner| inner.is::<FrameError>());
        Error::LauncherGone(match damaged {
            true => format!(
                "the connection between this rank and the launcher cannot be trusted: {error}. The \
                 launcher may well be there, but nothing it says is believed any more; look for a \
                 faulty network card, cable or memory, or a device in between that changes packets"
            ),
            false => format!("the launcher is gone: {error}"),
        })
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
            cause: "was killed by signal 9 (SIGKILL)".into(),
        };
        let text = error.to_string();
        let first = text.lines().next().unwrap();
        assert_eq!(first, "lost rank 5 (node-b, slot 1): was killed by signal 9 (SIGKILL)");
        assert!(text.contains("Horovod has been shut down"));
        assert_eq!(error.blames(), Some(Rank(5)));
    }
}
