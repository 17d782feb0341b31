//! How the ranks of a job that another launcher has started come to share a key and a place to meet.
//!
//! The launcher tells each process who it is, but no secret; and the key must be one, for whoever has
//! it may speak for any rank. So the user brings a secret, or rank 0 makes one and leaves it where only
//! this user's processes can read it. (Under MPI the library carries it, and nothing here is asked.)

use super::{Launcher, Spread, Started};
use crate::settings::{self, BadSettings};
use crate::wire::JobKey;

/// How the key travels, and where the ranks meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// The user has given all ranks the key, and rank 0 listens at a place that all know.
    Secret {
        /// The key.
        key: JobKey,
        /// The host of rank 0.
        host: String,
        /// Where it listens there.
        port: u16,
    },
    /// Rank 0 leaves a note in this user's private directory of this host.
    HostNote,
    /// Rank 0 leaves a note in a directory that all hosts share.
    SharedNote {
        /// The directory that the user has named; without one, it is in the home directory.
        directory: Option<String>,
    },
}

/// Decides how the ranks meet.
pub fn way(
    started: &Started,
    look_up: impl Fn(&str) -> Option<String>,
) -> Result<Way, BadSettings> {
    let look_up = |name: &str| look_up(name).filter(|text| !text.is_empty());
    if let Some(secret) = look_up("RONDE_SECRET") {
        return by_secret(started, &secret, look_up("RONDE_RENDEZVOUS_PORT"));
    }
    if let Some(directory) = look_up("RONDE_RENDEZVOUS_DIR") {
        return Ok(Way::SharedNote { directory: Some(directory) });
    }
    match (started.spread, started.launcher) {
        (Spread::OneHost, _) => Ok(Way::HostNote),
        // Nobody's home directory is shared between pods unless somebody says so.
        (Spread::Hosts, Launcher::Kubernetes) => Err(no_way(started)),
        (Spread::Hosts, _) if started.job.is_none() => Err(no_way(started)),
        (Spread::Hosts, _) => Ok(Way::SharedNote { directory: None }),
    }
}

fn by_secret(started: &Started, secret: &str, port: Option<String>) -> Result<Way, BadSettings> {
    let mut mistakes = Vec::new();
    let key = JobKey::from_hex(secret.trim());
    if key.is_err() {
        mistakes.push(
            "RONDE_SECRET must be 64 hexadecimal digits, the same on all ranks; `openssl rand -hex \
             32` makes them"
                .to_owned(),
        );
    }
    let default = settings::default("RONDE_RENDEZVOUS_PORT");
    let text = port.unwrap_or_else(|| default.to_owned());
    let port = text.trim().parse().ok().filter(|port| *port > 0);
    if port.is_none() {
        mistakes.push(format!("RONDE_RENDEZVOUS_PORT is `{text}`, which is no port"));
    }
    let host = match (&started.first_host, started.spread) {
        (_, Spread::OneHost) => Some("127.0.0.1".to_owned()),
        (Some(host), Spread::Hosts) => Some(host.clone()),
        (None, Spread::Hosts) => {
            mistakes.push(
                "RONDE_SECRET is set, but not where to meet: set MASTER_ADDR to the host of rank 0"
                    .to_owned(),
            );
            None
        }
    };
    match (key, host, port) {
        (Ok(key), Some(host), Some(port)) => Ok(Way::Secret { key, host, port }),
        _ => Err(BadSettings(mistakes)),
    }
}

fn no_way(started: &Started) -> BadSettings {
    BadSettings(vec![format!(
        "{} of {} was started by {}, which gives the ranks no secret to meet with. {}",
        started.rank,
        started.size,
        started.launcher,
        Way::ADVICE
    )])
}

impl Way {
    /// What a user can do whose ranks do not find each other.
    pub const ADVICE: &'static str = "Do one of these: set RONDE_SECRET on all ranks to the same 64 hexadecimal digits (`openssl \
         rand -hex 32` makes them) and MASTER_ADDR to the host of rank 0; set RONDE_RENDEZVOUS_DIR to \
         a directory that all hosts share; or start the job with `horovodrun` or `mpirun`";
}
