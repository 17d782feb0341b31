//! The protocol between the driver and the agent of a host.
//!
//! It runs over the agent's standard input and output (a private pipe or an ssh session) or, if the
//! agent has dialed in, over a sealed connection that carries the same bytes. Frames are plain:
//! four bytes of length (little-endian), then that many bytes of one message.
//!
//! Before the first frame the agent writes one line of text, [`PREAMBLE`] and its version. It
//! separates the frames from anything a login shell prints first, and lets versions with
//! incompatible messages recognize that they are.
//!
//! 1. In a job on several hosts, `Listen` and `Dial` make the agents find out which of their
//!    addresses reach each other, and `Stay` makes an agent hold a connection to the launcher whose
//!    silence shows that one of the two hosts is gone. `Start` then starts workers.
//! 2. `Started`, `Output` and `Exited` report on the workers; `Signal` is passed on to them.
//!    Meanwhile the driver keeps sending `Look`, answered by `Looked`: this distinguishes a frozen
//!    host from an idle one, and a stopped rank from a busy one.
//! 3. `End` when the job is over: the agent removes what is left and closes the pipe.
//!
//! `ronde doctor` starts no ranks: `AskTime`, `Examine` and `Measure` are each answered once. Nor
//! does `ronde cp`, whose messages are in [`super::copy`].
//!
//! Output has flow control: the agent sends at most [`OUTPUT_WINDOW`] beyond what the driver has
//! acknowledged with `Printed`, so a slow screen slows the ranks down but never delays the report
//! of an exit. Standard input is sent one piece at a time, the next one after `StdinTaken`.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::copy::{CopyAnswer, CopyCommand};
use super::frame::{FrameError, MAX_FRAME};
use super::{Callee, JobKey, encode};
use crate::doctor::Facts;
use crate::settings::HostNetwork;
use crate::{GpuShare, PortRange, Worker};

/// Bytes of output that may be in flight to the screen.
pub const OUTPUT_WINDOW: usize = 4 << 20;

/// How much of the window a piece of output uses: small pieces cost more than their bytes.
pub fn output_cost(bytes: usize) -> u32 {
    bytes.clamp(1024, MAX_PIECE) as u32
}

/// The longest piece of output or input in one message.
pub const MAX_PIECE: usize = 64 << 10;

/// The word before the agent's version, in the line that precedes all frames.
pub const PREAMBLE: &str = "ronde-agent";

/// Messages from the driver to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DriverToAgent {
    /// Start these workers.
    Start {
        /// One entry per worker on this host.
        workers: Vec<WorkerSpec>,
    },
    /// Send a signal to every worker and its child processes.
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
    /// This much output has been written; the agent may send as much again.
    Printed {
        /// The sum of the [`output_cost`]s.
        cost: u32,
    },
    /// Remove what is left and exit.
    End,
    /// Listen for the agents of other hosts, until the ranks start.
    Listen {
        /// The job's key.
        key: JobKey,
        /// This host's number.
        host: u32,
        /// The interfaces to use; all of them if empty.
        interfaces: Vec<String>,
        /// How many free ports to find.
        ports: u32,
        /// Where to listen, and where to look for them.
        network: NetworkChoice,
    },
    /// Dial all addresses of these targets at once.
    Dial {
        /// The processes to dial.
        targets: Vec<DialTarget>,
        /// Time limit for one attempt.
        limit_millis: u32,
    },
    /// Keep a connection to the launcher open; end everything when it breaks.
    Stay {
        /// Where the launcher can be reached, best first.
        addresses: Vec<SocketAddr>,
    },
    /// Report the time.
    AskTime,
    /// Report facts about the host.
    Examine,
    /// Measure the path to another agent that listens.
    Measure {
        /// The process expected to answer; anyone else fails the handshake.
        callee: Callee,
        /// The address to dial.
        address: SocketAddr,
        /// How long to send for.
        millis: u32,
    },
    /// Send a signal to one worker and its child processes.
    SignalOne {
        /// The worker to signal.
        worker: Worker,
        /// The signal's number.
        signal: i32,
    },
    /// When the agent is told to stop, report that and keep running for this long first.
    Linger {
        /// Grace period, in milliseconds.
        millis: u32,
    },
    /// Show that you are alive, and report the state of these workers' processes.
    Look {
        /// Workers that do not answer; usually none.
        workers: Vec<Worker>,
    },
    /// The launcher's window has another size, and so has the terminal of a worker.
    Resize {
        /// The worker whose terminal it is.
        worker: Worker,
        /// The new size.
        size: WindowSize,
    },
    /// Copy files to this host.
    Copy(CopyCommand),
}

/// The driver's answer to an agent that has dialed in. Other versions must understand it, so
/// neither variant ever changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OfferAnswer {
    /// From here on it is one of the job's agents.
    Taken,
    /// The job cannot use it.
    Refused {
        /// Human-readable reason.
        reason: String,
    },
}

/// A process to dial.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DialTarget {
    /// The process expected to answer; anyone else fails the handshake.
    pub callee: Callee,
    /// The addresses to try, in order.
    pub addresses: Vec<SocketAddr>,
}

/// Whose settings say how a host can be reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkChoice {
    /// The host's own; if they name no ports, it uses these.
    Own(PortRange),
    /// The launcher's, because the host is its machine.
    Launcher(HostNetwork),
}

/// One address on which an agent listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listener {
    /// Name of the network interface, for people; `None` if no interface has this address, and the
    /// host advertises it.
    pub interface: Option<String>,
    /// The address and port.
    pub address: SocketAddr,
}

/// Result of dialing an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Dial {
    /// The expected process answered, after this time.
    Reached {
        /// Round-trip time in microseconds.
        micros: u32,
    },
    /// The connection was refused, by the host or by something on the path.
    Refused,
    /// There was no answer.
    TimedOut,
    /// Something else listens there.
    WrongProcess,
    /// Any other I/O error.
    Failed {
        /// The system's error message.
        error: String,
    },
}

impl fmt::Display for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dial::Reached { micros } => write!(f, "it answered after {micros} µs"),
            Dial::Refused => f.write_str("the connection was refused"),
            Dial::TimedOut => f.write_str("it did not answer in time"),
            Dial::WrongProcess => f.write_str("a different process answered"),
            Dial::Failed { error } => f.write_str(error),
        }
    }
}

/// Messages from an agent to the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentToDriver {
    /// A worker has started.
    Started {
        /// Number of the worker, for its whole life.
        worker: Worker,
        /// Its process id on the agent's host.
        pid: u32,
    },
    /// A worker wrote something.
    Output {
        /// Number of the worker, for its whole life.
        worker: Worker,
        /// Standard output or standard error.
        stream: OutputStream,
        /// At most [`MAX_PIECE`] bytes, cut at any point.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// A worker, and every process that shared its stream, has closed it.
    OutputEnd {
        /// Number of the worker, for its whole life.
        worker: Worker,
        /// Standard output or standard error.
        stream: OutputStream,
    },
    /// The last piece of standard input has been passed on.
    StdinTaken,
    /// A worker has ended.
    Exited {
        /// Number of the worker, for its whole life.
        worker: Worker,
        /// Exit code or signal.
        exit: Exit,
    },
    /// A problem affects the whole host.
    Problem {
        /// Human-readable description of the problem.
        reason: String,
    },
    /// The agent is listening.
    Listening {
        /// The listening addresses; empty if no interface is suitable.
        listeners: Vec<Listener>,
        /// The interfaces that the user could name instead.
        known: Vec<String>,
        /// Ports that are currently free.
        ports: Vec<u16>,
        /// The ports that the ranks may listen on, without those.
        range: PortRange,
    },
    /// An attempt to dial has ended.
    Dialed {
        /// The process that was dialed.
        callee: Callee,
        /// The address that was dialed.
        address: SocketAddr,
        /// Result of the attempt.
        outcome: Dial,
    },
    /// The time on the agent's host.
    Time {
        /// Microseconds since 1970.
        unix_micros: u64,
    },
    /// Facts about the host.
    Examined {
        /// What the agent found out.
        facts: Box<Facts>,
    },
    /// A measurement has ended.
    Measured {
        /// The process at the other end.
        callee: Callee,
        /// The results, or why there are none.
        outcome: Result<Rate, String>,
    },
    /// A worker was stopped, for example by `SIGSTOP`.
    Stopped {
        /// Number of the worker, for its whole life.
        worker: Worker,
    },
    /// A worker that was stopped continues.
    Continued {
        /// Number of the worker, for its whole life.
        worker: Worker,
    },
    /// The agent was told to stop and will do so soon.
    Leaving,
    /// The agent is alive, and this is the state of the processes it was asked about.
    Looked {
        /// One entry for each of the workers that has a process.
        found: Vec<(Worker, Condition)>,
    },
    /// An answer about a copy.
    Copy(CopyAnswer),
    /// The agent cannot listen.
    CannotListen {
        /// Human-readable reason.
        reason: String,
        /// What to do about it.
        hint: String,
    },
}

/// The state of a worker's process, or of one of its child processes if that one is stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// The process id on the agent's host.
    pub pid: u32,
    /// Name of its program.
    pub command: String,
    /// State of the process.
    pub state: ProcessState,
}

/// State of a process, as far as it matters to those waiting for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    /// It runs, or sleeps until something wakes it.
    Runs,
    /// It is waiting for a disk, a network file system or memory, and cannot be interrupted.
    Blocked,
    /// A debugger has stopped it.
    Traced,
    /// It is in a frozen cgroup, for example because of `docker pause`.
    Frozen,
    /// A signal has stopped it.
    Stopped,
}

impl ProcessState {
    /// Whether the process stays in this state until something resumes it.
    pub fn is_halted(self) -> bool {
        self >= ProcessState::Traced
    }
}

/// Speed of the path to another host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// Bandwidth of one connection.
    pub bytes_per_second: u64,
    /// Median round-trip time of a few bytes.
    pub round_trip_micros: u32,
}

/// Messages between two agents that measure the path between them, sealed, on a connection that
/// began with the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentToAgent {
    /// To be answered with another `Echo` at once.
    Echo,
    /// From here on this side sends meaningless bytes until it closes its direction.
    Load {
        /// For how long it sends.
        millis: u32,
    },
    /// The result of the transfer.
    Carried {
        /// Bytes received, not counting the start, while a connection is still slow.
        bytes: u64,
        /// Duration of the transfer, in microseconds.
        micros: u64,
    },
}

/// A worker for its agent to start. Names and values are bytes because Unix has no encoding.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerSpec {
    /// Number of the worker, for its whole life.
    pub worker: Worker,
    /// The program and its arguments.
    pub argv: Vec<Vec<u8>>,
    /// Its working directory.
    pub cwd: Vec<u8>,
    /// Its environment, apart from the variables of its host.
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Names of the variables whose values it takes from the agent's environment instead.
    pub own: Vec<Vec<u8>>,
    /// The terminal that it writes to; a pipe for each stream if there is none.
    pub terminal: Option<Terminal>,
    /// Its part of the host's GPUs; all of them if there is none.
    pub gpus: Option<GpuShare>,
}

/// A worker's pseudo-terminal. It passes bytes on unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terminal {
    /// Its size.
    pub size: WindowSize,
    /// Whether standard error is written to it, too. What is written there then comes as standard
    /// output, in the order in which it was written.
    pub stderr: bool,
}

/// The size of a terminal's window, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSize {
    /// Number of lines.
    pub rows: u16,
    /// Number of columns.
    pub columns: u16,
}

impl fmt::Debug for WorkerSpec {
    /// Leaves out the environment, which holds the job key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerSpec").field("worker", &self.worker).finish_non_exhaustive()
    }
}

/// One of the two streams that a worker writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// How a process ended. The text follows the name of a rank: `exited with code 3`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Exit {
    /// It exited with this code.
    #[error("exited with code {0}")]
    Code(i32),
    /// Killed by the signal with this number.
    #[error("was killed by {}", signal_name(*.0))]
    Signal(i32),
    /// Killed by the kernel because memory ran out.
    #[error("was killed because memory ran out (SIGKILL)")]
    OutOfMemory,
    /// It never ran.
    #[error("could not be started: {reason}")]
    NotStarted {
        /// What prevented the start.
        obstacle: StartFailure,
        /// Human-readable reason.
        reason: String,
    },
    /// Unknown, because the process that watched it is gone.
    #[error("{reason}")]
    Unknown {
        /// Human-readable reason.
        reason: String,
    },
}

/// What prevents a program from being started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StartFailure {
    /// There is no such program.
    Missing,
    /// The file is not a program.
    NotExecutable,
    /// This user may not read its directory.
    Denied,
    /// The directory to run it in cannot be used.
    Directory,
    /// Its host has too few GPUs for all slots.
    TooFewGpus,
    /// The system could not start it.
    System,
}

impl Exit {
    /// Whether the process exited with code 0.
    pub fn is_success(&self) -> bool {
        *self == Exit::Code(0)
    }

    /// The code that a shell would report.
    pub fn code(&self) -> u8 {
        match self {
            Exit::Code(code) => (code & 255) as u8,
            Exit::NotStarted { obstacle: StartFailure::Missing, .. } => 127,
            Exit::NotStarted { .. } => 126,
            Exit::Signal(number) => (128 + (number & 127)) as u8,
            Exit::OutOfMemory => 128 + 9,
            Exit::Unknown { .. } => 1,
        }
    }
}

/// Name of a signal: `signal 9 (SIGKILL)`.
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

/// A message as a plain frame, prefixed with its length.
pub fn frame<M: Serialize>(message: &M) -> Vec<u8> {
    let body = encode(message);
    assert!(body.len() <= MAX_FRAME, "a message of {} bytes fits no frame", body.len());
    [&(body.len() as u32).to_le_bytes(), body.as_slice()].concat()
}

/// How many bytes follow the length prefix of a plain frame.
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
    fn the_encoding_of_messages_does_not_change() {
        let exited = AgentToDriver::Exited { worker: Worker(2), exit: Exit::Signal(9) };
        assert_eq!(frame(&exited), [4, 0, 0, 0, 4, 2, 1, 18]);
        let output = AgentToDriver::Output {
            worker: Worker(1),
            stream: OutputStream::Stderr,
            bytes: b"x".into(),
        };
        assert_eq!(frame(&output), [5, 0, 0, 0, 1, 1, 1, 1, b'x']);
        assert_eq!(encode(&OfferAnswer::Taken), [0]);
        assert_eq!(encode(&OfferAnswer::Refused { reason: "x".into() }), [1, 1, b'x']);
        assert_eq!(frame(&DriverToAgent::End), [1, 0, 0, 0, 5]);
        assert_eq!(frame(&DriverToAgent::AskTime), [1, 0, 0, 0, 9]);
        let size = WindowSize { rows: 24, columns: 80 };
        assert_eq!(
            frame(&DriverToAgent::Resize { worker: Worker(1), size }),
            [4, 0, 0, 0, 15, 1, 24, 80]
        );
        let spec = WorkerSpec {
            worker: Worker(1),
            argv: vec![b"a".into()],
            cwd: vec![],
            env: vec![],
            own: vec![],
            terminal: Some(Terminal { size, stderr: true }),
            gpus: Some(GpuShare { slot: 3, slots: 4, gpus_per_rank: 2 }),
        };
        assert_eq!(encode(&spec), [1, 1, 1, b'a', 0, 0, 0, 1, 24, 80, 1, 1, 3, 4, 2]);
        assert_eq!(frame(&AgentToDriver::Time { unix_micros: 5 }), [2, 0, 0, 0, 8, 5]);
        assert_eq!(frame(&AgentToAgent::Load { millis: 80 }), [2, 0, 0, 0, 1, 80]);
    }

    #[test]
    fn exits_read_as_sentences_and_map_to_codes() {
        let not_found = Exit::NotStarted {
            obstacle: StartFailure::Missing,
            reason: "`x` was not found".into(),
        };
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
        let spec = WorkerSpec {
            worker: Worker(0),
            argv: vec![],
            cwd: vec![],
            env,
            own: vec![],
            terminal: None,
            gpus: None,
        };
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
