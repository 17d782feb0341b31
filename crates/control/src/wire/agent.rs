//! What the driver and the agent of a host say to each other.
//!
//! They talk over the agent's standard input and output, a private pipe (or an ssh session), or, if
//! the agent has dialled in, over a sealed connection whose content is the same stream of bytes; in
//! plain frames: four bytes of length (little-endian), then that many bytes of one message.
//!
//! Before the first frame the agent writes one line of text, [`PREAMBLE`] and its version, so that
//! whatever a login shell prints first can be told from it, and versions too far apart to understand
//! each other still know that they are.
//!
//! 1. In a job on several hosts `Listen` and `Dial`: the agents
//!    find out which of their addresses reach each other; and `Stay`: the agent holds a connection to
//!    the launcher whose silence shows that one of the two hosts is gone. `Start`: these workers, please.
//! 2. `Started`, `Output` and `Exited` come from the ranks as things happen; `Signal` goes to them.
//!    All the while the driver says `Look` and the agent answers `Looked`: so a host that is frozen is
//!    told from one that has nothing to say, and a rank that is stopped from one that is busy.
//! 3. `End` once nothing is wanted any more: the agent removes what is left and closes the pipe.
//!
//! For `ronde doctor` there are no ranks: `AskTime`, `Examine` and `Measure` are each answered once.
//!
//! Output flows on credit: the agent sends at most [`OUTPUT_WINDOW`] that the driver has not `Printed`,
//! so that a slow screen slows the ranks down and never holds up the news of an exit.
//! Standard input is sent one piece at a time, the next when the last one was `StdinTaken`.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::frame::{FrameError, MAX_FRAME};
use super::{Callee, JobKey, encode};
use crate::Worker;
use crate::doctor::Facts;

/// Bytes of output that may be on their way to the screen.
pub const OUTPUT_WINDOW: usize = 4 << 20;

/// What a piece of output takes of the window: small pieces cost more than their bytes.
pub fn output_cost(bytes: usize) -> u32 {
    bytes.clamp(1024, MAX_PIECE) as u32
}

/// The longest piece of output or input in one message.
pub const MAX_PIECE: usize = 64 << 10;

/// The word before the agent's version in the line that precedes all frames.
pub const PREAMBLE: &str = "ronde-agent";

/// What the driver tells an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DriverToAgent {
    /// Start these workers.
    Start {
        /// One entry per worker on this host.
        workers: Vec<WorkerSpec>,
    },
    /// Send a signal to every rank and what it started.
    Signal {
        /// The signal's number.
        signal: i32,
    },
    /// Bytes for the standard input of rank 0.
    Stdin {
        /// At most [`MAX_PIECE`] of them.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// The standard input of rank 0 has ended.
    StdinEnd,
    /// That much output has been written; as much again may come.
    Printed {
        /// The sum of their [`output_cost`]s.
        cost: u32,
    },
    /// Remove what is left and end.
    End,
    /// Listen for the agents of other hosts, until the ranks start.
    Listen {
        /// The job's key.
        key: JobKey,
        /// This host's number.
        host: u32,
        /// The interfaces to use; all if there are none.
        interfaces: Vec<String>,
        /// How many free ports to find.
        ports: u32,
    },
    /// Dial all addresses of these at once.
    Dial {
        /// Whom.
        targets: Vec<Target>,
        /// How long a call may take.
        limit_millis: u32,
    },
    /// Hold a connection to the launcher; end everything when it breaks.
    Stay {
        /// Where the launcher was reached, best first.
        addresses: Vec<SocketAddr>,
    },
    /// Say what time it is.
    AskTime,
    /// Say how the host is.
    Examine,
    /// Measure the way to another agent that listens.
    Measure {
        /// Who should answer.
        callee: Callee,
        /// Where.
        address: SocketAddr,
        /// How long to send for.
        millis: u32,
    },
    /// Send a signal to one worker and what it started.
    SignalOne {
        /// Whom.
        worker: Worker,
        /// The signal's number.
        signal: i32,
    },
    /// When somebody tells the agent to stop, say so and go on for so long before doing it.
    Linger {
        /// How long.
        millis: u32,
    },
    /// Say that you are there, and how the processes of these workers are.
    Look {
        /// Workers that do not answer; often there are none.
        workers: Vec<Worker>,
    },
}

/// What the driver answers an agent that has dialled in. Other versions must understand it, so neither
/// of these ever changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OfferAnswer {
    /// It is one of the job's agents from here on.
    Taken,
    /// It is of no use.
    Refused {
        /// Why, in words.
        reason: String,
    },
}

/// Somebody to dial.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Who should answer.
    pub callee: Callee,
    /// Where.
    pub addresses: Vec<SocketAddr>,
}

/// One address on which an agent listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listener {
    /// The interface that has it, for people.
    pub interface: String,
    /// The address and port.
    pub address: SocketAddr,
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Dial {
    /// The one who was meant has answered, after this time.
    Reached {
        /// Microseconds.
        micros: u32,
    },
    /// Nobody listens there, or something in between said so.
    Refused,
    /// Nothing was heard.
    TimedOut,
    /// Somebody listens there who is not the one that was meant.
    Stranger,
    /// Anything else.
    Failed {
        /// The system's words.
        error: String,
    },
}

/// What an agent tells the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentToDriver {
    /// A worker runs.
    Started {
        /// Who.
        worker: Worker,
        /// Its process id on the agent's host.
        pid: u32,
    },
    /// A worker wrote something.
    Output {
        /// Who.
        worker: Worker,
        /// Where to.
        stream: Stream,
        /// What; at most [`MAX_PIECE`] bytes, cut anywhere.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// A worker, and everything that had its stream, has closed it.
    OutputEnd {
        /// Who.
        worker: Worker,
        /// Which.
        stream: Stream,
    },
    /// The last piece of standard input has been passed on.
    StdinTaken,
    /// A worker has ended.
    Exited {
        /// Who.
        worker: Worker,
        /// How.
        exit: Exit,
    },
    /// Something that concerns the whole host went wrong.
    Problem {
        /// What, in words.
        reason: String,
    },
    /// The agent listens.
    Listening {
        /// Where; nowhere if no interface will do.
        listeners: Vec<Listener>,
        /// The interfaces that would do if they were asked for.
        known: Vec<String>,
        /// Ports that are free at this moment.
        ports: Vec<u16>,
    },
    /// A call has ended.
    Dialled {
        /// Whom.
        callee: Callee,
        /// Where.
        address: SocketAddr,
        /// What came of it.
        outcome: Dial,
    },
    /// What time it is.
    Time {
        /// Microseconds since 1970.
        unix_micros: u64,
    },
    /// How the host is.
    Examined {
        /// What was found.
        facts: Box<Facts>,
    },
    /// A measurement has ended.
    Measured {
        /// To whom.
        callee: Callee,
        /// The figures, or why there are none.
        outcome: Result<Rate, String>,
    },
    /// A worker was stopped, as by `SIGSTOP`.
    Stopped {
        /// Who.
        worker: Worker,
    },
    /// A worker that was stopped goes on.
    Continued {
        /// Who.
        worker: Worker,
    },
    /// Somebody has told the agent to stop; it will before long.
    Leaving,
    /// The agent is there, and the processes of the workers it was asked about are like this.
    Looked {
        /// One entry per worker that has a process.
        found: Vec<(Worker, Condition)>,
    },
}

/// How a worker's process is: its own, or if something it has started is stopped, that one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// The process id on the agent's host.
    pub pid: u32,
    /// The name of its program.
    pub command: String,
    /// What it does.
    pub state: ProcessState,
}

/// What a process does, as far as it matters to those who wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    /// It runs, or sleeps until something wakes it.
    Runs,
    /// It waits for a disk, a network file system or memory, and can do nothing else meanwhile.
    Blocked,
    /// A debugger has stopped it.
    Traced,
    /// It is in a frozen cgroup, as by `docker pause`.
    Frozen,
    /// A signal has stopped it.
    Stopped,
}

impl ProcessState {
    /// Whether it stays that way until somebody resumes it.
    pub fn is_halted(self) -> bool {
        self >= ProcessState::Traced
    }
}

/// How fast the way to another host is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// What one connection carries.
    pub bytes_per_second: u64,
    /// The median time of a few bytes there and back.
    pub round_trip_micros: u32,
}

/// What two agents say to each other when they measure the way between them, sealed, on a connection
/// that has begun with the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentToAgent {
    /// To be answered by the same at once.
    Echo,
    /// From here on this side sends bytes that mean nothing, until it closes its direction.
    Load {
        /// How long it will take.
        millis: u32,
    },
    /// That is what came of them.
    Carried {
        /// How many, without those of the beginning, when a connection is still slow.
        bytes: u64,
        /// In what time.
        micros: u64,
    },
}

/// One worker as its agent needs to know it. Names and values are bytes because Unix has no encoding.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerSpec {
    /// Who.
    pub worker: Worker,
    /// The program and its arguments.
    pub argv: Vec<Vec<u8>>,
    /// Where it runs.
    pub cwd: Vec<u8>,
    /// Its environment, apart from what it takes from its host.
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// The names of variables that it takes from its host instead, as the agent has them.
    pub own: Vec<Vec<u8>>,
}

impl fmt::Debug for WorkerSpec {
    /// Leaves the environment out: it holds the job's key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerSpec").field("worker", &self.worker).finish_non_exhaustive()
    }
}

/// One of the two streams that a worker writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// How a process ended. Its words read behind the name of a rank: `exited with code 3`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Exit {
    /// By itself, with this code.
    #[error("exited with code {0}")]
    Code(i32),
    /// Killed by the signal of this number.
    #[error("was killed by {}", signal_name(*.0))]
    Signal(i32),
    /// Killed by the kernel because memory ran out.
    #[error("was killed because memory ran out (SIGKILL)")]
    OutOfMemory,
    /// It never ran.
    #[error("could not be started: {reason}")]
    NotStarted {
        /// What was in the way.
        obstacle: Obstacle,
        /// Why, in words.
        reason: String,
    },
    /// Nobody knows: whoever watched it has gone.
    #[error("was lost: {reason}")]
    Unknown {
        /// Why not.
        reason: String,
    },
}

/// What keeps a program from being started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Obstacle {
    /// There is no such program.
    Missing,
    /// The file is not a program.
    NotExecutable,
    /// This user may not look where it should be.
    Denied,
    /// The directory to run it in cannot be used.
    Directory,
    /// The system could not start it.
    System,
}

impl Exit {
    /// Whether all went well.
    pub fn is_success(&self) -> bool {
        *self == Exit::Code(0)
    }

    /// The code that a shell would report.
    pub fn code(&self) -> u8 {
        match self {
            Exit::Code(code) => (code & 255) as u8,
            Exit::NotStarted { obstacle: Obstacle::Missing, .. } => 127,
            Exit::NotStarted { .. } => 126,
            Exit::Signal(number) => (128 + (number & 127)) as u8,
            Exit::OutOfMemory => 128 + 9,
            Exit::Unknown { .. } => 1,
        }
    }
}

/// A signal as people know it: `signal 9 (SIGKILL)`.
pub fn signal_name(number: i32) -> String {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
        "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
        "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    match usize::try_from(number - 1).ok().and_then(|index| NAMES.get(index)) {
        Some(name) => format!("signal {number} (SIG{name})"),
        None => format!("signal {number}"),
    }
}

/// A message as a plain frame, its length in front.
pub fn frame<M: Serialize>(message: &M) -> Vec<u8> {
    let body = encode(message);
    assert!(body.len() <= MAX_FRAME, "a message of {} bytes fits no frame", body.len());
    [&(body.len() as u32).to_le_bytes(), body.as_slice()].concat()
}

/// The number of bytes that follow a plain frame's four bytes of length.
pub fn length(header: [u8; 4]) -> Result<usize, FrameError> {
    let length = u32::from_le_bytes(header) as usize;
    if length > MAX_FRAME { Err(FrameError::TooLong(length)) } else { Ok(length) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::decode;
    use proptest::prelude::*;

    #[test]
    fn the_bytes_on_the_pipe_stay_what_they_were() {
        let exited = AgentToDriver::Exited { worker: Worker(2), exit: Exit::Signal(9) };
        assert_eq!(frame(&exited), [4, 0, 0, 0, 4, 2, 1, 18]);
        let output =
            AgentToDriver::Output { worker: Worker(1), stream: Stream::Stderr, bytes: b"x".into() };
        assert_eq!(frame(&output), [5, 0, 0, 0, 1, 1, 1, 1, b'x']);
        assert_eq!(encode(&OfferAnswer::Taken), [0]);
        assert_eq!(encode(&OfferAnswer::Refused { reason: "x".into() }), [1, 1, b'x']);
        assert_eq!(frame(&DriverToAgent::End), [1, 0, 0, 0, 5]);
        assert_eq!(frame(&DriverToAgent::AskTime), [1, 0, 0, 0, 9]);
        assert_eq!(frame(&AgentToDriver::Time { unix_micros: 5 }), [2, 0, 0, 0, 8, 5]);
        assert_eq!(frame(&AgentToAgent::Load { millis: 80 }), [2, 0, 0, 0, 1, 80]);
    }

    #[test]
    fn exits_read_as_sentences_and_map_to_codes() {
        let not_found =
            Exit::NotStarted { obstacle: Obstacle::Missing, reason: "`x` was not found".into() };
        for (exit, code, text) in [
            (Exit::Code(0), 0, "exited with code 0"),
            (Exit::Code(3), 3, "exited with code 3"),
            (Exit::Signal(9), 137, "was killed by signal 9 (SIGKILL)"),
            (Exit::Signal(64), 192, "was killed by signal 64"),
            (Exit::OutOfMemory, 137, "was killed because memory ran out (SIGKILL)"),
            (not_found, 127, "could not be started: `x` was not found"),
        ] {
            assert_eq!((exit.code(), exit.to_string().as_str()), (code, text));
        }
    }

    #[test]
    fn the_environment_of_a_worker_is_not_printed() {
        let env = vec![(b"RONDE_JOB_KEY".to_vec(), b"secret".to_vec())];
        let spec = WorkerSpec { worker: Worker(0), argv: vec![], cwd: vec![], env, own: vec![] };
        assert_eq!(format!("{spec:?}"), "WorkerSpec { worker: Worker(0), .. }");
    }

    proptest! {
        #[test]
        fn garbage_is_an_error_and_never_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode::<AgentToDriver>(&bytes);
            let _ = decode::<DriverToAgent>(&bytes);
        }
    }
}
