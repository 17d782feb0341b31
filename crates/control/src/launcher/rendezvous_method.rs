//! How the ranks of a job under another launcher agree on a key and a rendezvous.
//!
//! The launcher tells each process its rank but gives it no secret, and the key must be secret,
//! because its holder can impersonate any rank. So either the user provides a secret, or rank 0
//! makes one and stores it where only this user's processes can read it. (Under MPI the library
//! transfers it, and this module is not used.)

use super::{LaunchedProcess, LauncherKind, Spread};
use crate::settings::{self, BadSettings};
use crate::wire::JobKey;

/// How ranks get the key and find the rendezvous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RendezvousMethod {
    /// The user has given all ranks the key, and rank 0 listens at an address that all know.
    Secret {
        /// The job key.
        key: JobKey,
        /// The host of rank 0.
        host: String,
        /// The port it listens on.
        port: u16,
    },
    /// Rank 0 writes a rendezvous file into this user's private directory on this host.
    HostFile,
    /// Rank 0 writes a rendezvous file into a directory that all hosts share.
    SharedFile {
        /// The directory set by the user; `None` for one in the home directory.
        directory: Option<String>,
    },
}

/// Chooses the rendezvous method for a process under another launcher.
pub fn rendezvous_method(
    started: &LaunchedProcess,
    look_up: impl Fn(&str) -> Option<String>,
) -> Result<RendezvousMethod, BadSettings> {
    let look_up = |name: &str| look_up(name).filter(|text| !text.is_empty());
    if let Some(secret) = look_up(settings::RONDE_SECRET.name) {
        return by_secret(started, &secret, look_up(settings::RONDE_RENDEZVOUS_PORT.name));
    }
    if let Some(directory) = look_up(settings::RONDE_RENDEZVOUS_DIR.name) {
        return Ok(RendezvousMethod::SharedFile { directory: Some(directory) });
    }
    match (started.spread, started.launcher) {
        (Spread::OneHost, _) => Ok(RendezvousMethod::HostFile),
        // Pods share a home directory only if the user says so.
        (Spread::Hosts, LauncherKind::Kubernetes) => Err(no_way(started)),
        (Spread::Hosts, _) if started.job.is_none() => Err(no_way(started)),
        (Spread::Hosts, _) => Ok(RendezvousMethod::SharedFile { directory: None }),
    }
}

fn by_secret(
    started: &LaunchedProcess,
    secret: &str,
    port: Option<String>,
) -> Result<RendezvousMethod, BadSettings> {
    let mut errors = Vec::new();
    let key = JobKey::from_hex(secret.trim());
    if key.is_err() {
        errors.push(
            "RONDE_SECRET must be 64 hexadecimal digits, the same on all ranks; `openssl rand -hex \
             32` makes them"
                .to_owned(),
        );
    }
    let text = port.unwrap_or_else(|| settings::RONDE_RENDEZVOUS_PORT.default.to_owned());
    let port = text.trim().parse().ok().filter(|port| *port > 0);
    if port.is_none() {
        errors.push(format!("RONDE_RENDEZVOUS_PORT is `{text}`, which is not a port"));
    }
    let host = match (&started.first_host, started.spread) {
        (_, Spread::OneHost) => Some("127.0.0.1".to_owned()),
        (Some(host), Spread::Hosts) => Some(host.clone()),
        (None, Spread::Hosts) => {
            errors.push(
                "RONDE_SECRET is set, but MASTER_ADDR is not: set it to the host of rank 0"
                    .to_owned(),
            );
            None
        }
    };
    match (key, host, port) {
        (Ok(key), Some(host), Some(port)) => Ok(RendezvousMethod::Secret { key, host, port }),
        _ => Err(BadSettings(errors)),
    }
}

fn no_way(started: &LaunchedProcess) -> BadSettings {
    BadSettings(vec![format!(
        "{} of {} was started by {}, which gives the ranks no shared secret. {}",
        started.rank,
        started.size,
        started.launcher,
        RendezvousMethod::ADVICE
    )])
}

impl RendezvousMethod {
    /// What the user can do if ranks cannot find each other.
    pub const ADVICE: &'static str = "Do one of these: set RONDE_SECRET on all ranks to the same 64 hexadecimal digits (`openssl \
         rand -hex 32` makes them) and MASTER_ADDR to the host of rank 0; set RONDE_RENDEZVOUS_DIR to \
         a directory that all hosts share; or start the job with `horovodrun` or `mpirun`";
}
