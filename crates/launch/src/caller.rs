//! The pipes between a driver and the Python process that called `horovod.run`.
//!
//! Python starts the driver as a child. It writes an eight-byte length (little-endian) and the
//! function to the driver's standard input, then keeps that pipe open: when it closes, the caller
//! is gone and the job ends. The driver writes frames to its standard output: one byte for the
//! kind, four for the rank (in an elastic job, the worker), four for the length, all little-endian,
//! then that many bytes. `python/horovod/runner/caller.py` is the other end.

use std::io::{self, Read};

use ronde_control::Rank;
use ronde_control::event::{EndReason, Verdict};
use ronde_control::job::JobOutcome;

/// What a frame carries; the first byte of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// The job has been started; before this, only usage errors are reported.
    Started = 0,
    /// Lines of standard output.
    Stdout = 1,
    /// Lines of standard error.
    Stderr = 2,
    /// Bytes of a rank's result.
    Piece = 3,
    /// A rank's result is complete.
    Complete = 4,
    /// The job is over: one byte of exit code, then the error text if it failed. The rank is the
    /// first one that failed.
    Over = 5,
    /// In an elastic job: a world was formed from these workers, in rank order, four bytes each.
    World = 6,
    /// If agents dial in: the text of the invitation, with the addresses and the key.
    Invitation = 7,
}

/// First byte of a result that is an exception; no other result starts with it.
pub const RAISED: u8 = b'e';

/// Stands in for the rank in frames that have none.
pub const NOBODY: u32 = u32::MAX;

/// Encodes a frame.
pub fn frame(kind: FrameKind, rank: u32, bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u32).to_le_bytes();
    [&[kind as u8], &rank.to_le_bytes()[..], &length, bytes].concat()
}

/// The last frame. Programs that parse the exception of Horovod's `run` look for the two lines with
/// the first failed process and its exit code.
pub fn over(outcome: &JobOutcome) -> Vec<u8> {
    let Verdict { reason, first, text, .. } = &outcome.verdict;
    let text = text.as_deref().unwrap_or_default();
    let (rank, text) = match first {
        Some(first) if *reason == EndReason::RankFailed => {
            let (Rank(rank), code) = (first.member.rank, outcome.code);
            let first = "The first process to do so was:";
            (rank, format!("{first}\nProcess name: {rank}\nExit code: {code}\n{text}"))
        }
        _ => (NOBODY, text.to_owned()),
    };
    frame(FrameKind::Over, rank, &[&[outcome.code], text.as_bytes()].concat())
}

/// Reads the function that the caller sends.
pub fn read_function(input: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 8];
    input.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    let mut function = Vec::new();
    input.take(length).read_to_end(&mut function)?;
    match function.len() as u64 == length {
        true => Ok(function),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use ronde_control::Worker;
    use ronde_control::cause::Cause;
    use ronde_control::event::{FailedWorker, WorkerInfo};

    use super::*;

    #[test]
    fn frames_have_the_layout_that_python_reads() {
        let verdict = Verdict::of(EndReason::RankFailed, Some("x".into()));
        let outcome = JobOutcome { code: 3, verdict };
        assert_eq!(over(&outcome), [5, 255, 255, 255, 255, 2, 0, 0, 0, 3, b'x']);
        let member = WorkerInfo { worker: Worker(2), rank: Rank(2), host: "a".into(), slot: 0 };
        let first = Some(FailedWorker { member, cause: Cause::default(), pid: None, time: None });
        let failed = over(&JobOutcome { verdict: Verdict { first, ..outcome.verdict }, ..outcome });
        let text = "The first process to do so was:\nProcess name: 2\nExit code: 3\nx";
        assert_eq!((failed[1], &failed[10..]), (2, text.as_bytes()));
        assert_eq!(frame(FrameKind::Started, NOBODY, b""), [0, 255, 255, 255, 255, 0, 0, 0, 0]);
    }

    #[test]
    fn a_truncated_function_is_an_error() {
        let pipe = [&[3, 0, 0, 0, 0, 0, 0, 0][..], b"abcd"].concat();
        assert_eq!(read_function(&mut &pipe[..]).unwrap(), b"abc");
        assert!(read_function(&mut &pipe[..10]).is_err());
        assert!(read_function(&mut &[255; 9][..]).is_err());
    }
}
