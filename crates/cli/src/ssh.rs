//! The flags that say how other hosts are reached.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ronde_launch::reach::ssh::{SshOptions, Strictness};

/// What `horovodrun` and `ronde` take.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Ssh {
    ssh_port: Option<u16>,
    ssh_identity_file: Option<PathBuf>,
    ssh_strict: bool,
}

impl Ssh {
    /// The same for whoever starts ssh, which gets nearly as long as the whole start may take: it
    /// knows best what it waited for.
    pub(crate) fn options(&self, time_limit: Duration) -> SshOptions {
        SshOptions {
            port: self.ssh_port,
            identity: self.ssh_identity_file.clone(),
            strict: if self.ssh_strict { Strictness::Strict } else { Strictness::FirstUse },
            time_limit: time_limit.as_secs().saturating_sub(2).max(1),
        }
    }
}
