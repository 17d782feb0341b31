//! What the user is told about a rank or a host that does not answer.

use std::time::Duration;

use crate::wire::agent::{Condition, ProcessState};

/// A rank is stopped. `limit` is how long others may wait for it, if there is a limit.
pub fn halted(
    name: &str,
    host: &str,
    condition: &Condition,
    during: Duration,
    limit: Option<Duration>,
) -> String {
    let (process, seconds) = (process(condition), during.as_secs());
    let pid = condition.pid;
    let text = match condition.state {
        ProcessState::Frozen => format!(
            "{name} is frozen: {process} has been in a frozen cgroup for {seconds} s; `docker \
             unpause`, or whoever froze it, resumes it"
        ),
        ProcessState::Traced => format!(
            "{name} is stopped: a debugger has held {process} for {seconds} s; `continue` in the \
             debugger resumes it"
        ),
        _ => format!(
            "{name} is stopped: {process} got SIGSTOP or the like {seconds} s ago; `kill -CONT \
             {pid}` on {host} resumes it"
        ),
    };
    match limit {
        Some(limit) => format!(
            "{text}; the job ends once others have waited {} s for it \
             (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)",
            limit.as_secs()
        ),
        None => text,
    }
}

/// A rank does not answer, and nobody has found it stopped.
pub fn silent(name: &str, condition: Option<&Condition>, during: Duration) -> String {
    let seconds = during.as_secs();
    match condition {
        Some(condition) if condition.state == ProcessState::Blocked => format!(
            "{name} has not answered for {seconds} s: {} waits for a disk, a network file system or \
             memory; see whether its host is swapping",
            process(condition)
        ),
        Some(condition) => format!(
            "{name} has not answered for {seconds} s, though {} runs: its host may be overloaded or \
             swapping",
            process(condition)
        ),
        None => format!(
            "{name} has not answered for {seconds} s: its process may be stopped or frozen, or its \
             host may be overloaded"
        ),
    }
}

/// A rank that was stopped or silent goes on.
pub fn resumed(name: &str, during: Duration) -> String {
    format!("{name} goes on after {} s", during.as_secs())
}

/// A host does not answer; `running` is the name of somebody on it who does.
pub fn host_silent(host: &str, running: Option<&str>, during: Duration) -> String {
    let seconds = during.as_secs();
    match running {
        None => format!(
            "host `{host}` has not answered for {seconds} s: it, or the container that the ranks \
             run in, may be paused, frozen or out of memory; the job goes on when it does"
        ),
        Some(name) => format!(
            "the agent on host `{host}` has not answered for {seconds} s, though {name} there does: \
             see whether somebody has stopped the agent's process (`pgrep -f ronde` on {host})"
        ),
    }
}

/// A host that was silent goes on.
pub fn back(host: &str, during: Duration) -> String {
    format!("host `{host}` answers again after {} s", during.as_secs())
}

/// Why a rank that was waited for too long is ended. Reads behind its name.
pub(super) fn overdue(condition: Option<&Condition>, limit: Duration) -> String {
    let what = match condition {
        Some(condition) => {
            let how = match condition.state {
                ProcessState::Frozen => "was frozen (a frozen cgroup, as by `docker pause`)",
                ProcessState::Traced => "was stopped by a debugger",
                _ => "was stopped (SIGSTOP)",
            };
            format!("{how}, {}", process(condition))
        }
        None => "did not answer".into(),
    };
    format!(
        "{what}, while others waited for it longer than the {} s of \
         HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        limit.as_secs()
    )
}

fn process(condition: &Condition) -> String {
    match condition.command.as_str() {
        "" => format!("process {}", condition.pid),
        command => format!("process {} ({command})", condition.pid),
    }
}
