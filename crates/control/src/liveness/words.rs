//! Why somebody who does not answer is ended.

use std::time::Duration;

use crate::event::process;
use crate::wire::agent::{Condition, ProcessState};

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
