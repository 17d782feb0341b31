//! The options that control how ssh reaches other hosts.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ronde_launch::reach::ssh::{SshOptions, Strictness};

/// The ssh options of `horovodrun` and `ronde`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Ssh {
    ssh_port: Option<u16>,
    ssh_identity_file: Option<PathBuf>,
    ssh_strict: bool,
}

impl Ssh {
    /// The options for starting ssh. Its time limit is a little shorter than that of the whole
    /// start, because ssh itself gives the best error message.
    pub(crate) fn options(&self, time_limit: Duration) -> SshOptions {
        SshOptions {
            port: self.ssh_port,
            identity: self.ssh_identity_file.clone(),
            strict: if self.ssh_strict { Strictness::Strict } else { Strictness::FirstUse },
            time_limit: time_limit.as_secs().saturating_sub(2).max(1),
        }
    }
}
