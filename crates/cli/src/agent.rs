//! `ronde agent`: offers this host to a job that was started with `horovodrun --agents`.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ronde_control::wire::JobKey;
use ronde_launch::agent::join::AgentOffer;
use ronde_launch::hosts;
use ronde_launch::supervise::guardian;

use crate::form::seconds;
use crate::horovodrun::report_error;
use crate::key;
use crate::messages::{USAGE, UserError, both};
use crate::processes;

/// Maximum length of a host name.
const LONGEST_NAME: usize = 253;

/// Offer this host to a job started with `horovodrun --agents`
///
/// Runs until the job ends. On SIGTERM, the ranks of an elastic job leave gracefully.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Where the launcher listens, as in `node-a:4000`; several addresses are tried in turn
    #[arg(long, value_name = "ADDRESSES", value_delimiter = ',', required = true)]
    join: Vec<String>,

    /// Number of ranks this host can run [default: the number of CPUs available to this process]
    #[arg(long, value_name = "N", value_parser = processes::number)]
    slots: Option<u32>,

    /// The name of this host in the job [default: its hostname]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// File with the job key; must be readable only by you [default: RONDE_JOB_KEY in the environment]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,

    /// An open descriptor to read the key from
    #[arg(long, value_name = "N", conflicts_with = "key_file")]
    key_fd: Option<u32>,

    /// How long to wait for a launcher to accept this agent, in seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "600")]
    timeout: u64,
}

pub(crate) fn run(program: &Path, arguments: &Arguments) -> u8 {
    match both(arguments.agent_offer(), arguments.key()) {
        Ok((agent_offer, key)) => guardian::run_joining(program, &agent_offer, &key)
            .unwrap_or_else(|error| {
                let hint = "check the limits of this machine (`ulimit -a`)";
                report_error(&UserError::new(format!("cannot start the agent: {error}"), hint), 1)
            }),
        Err(error) => report_error(&error, USAGE),
    }
}

impl Arguments {
    fn agent_offer(&self) -> Result<AgentOffer, UserError> {
        let default_slots =
            || std::thread::available_parallelism().map_or(1, NonZeroUsize::get) as u32;
        let name = self.name.clone().unwrap_or_else(hosts::hostname);
        let (addresses, ()) = both(self.addresses(), check_name(&name))?;
        let time_limit = Duration::from_secs(self.timeout);
        Ok(AgentOffer {
            addresses,
            name,
            slots: self.slots.unwrap_or_else(default_slots),
            time_limit,
        })
    }

    fn addresses(&self) -> Result<Vec<String>, UserError> {
        let has_port = |address: &&String| match address.rsplit_once(':') {
            Some((host, port)) => {
                let is_bare = host.contains(':') && !host.starts_with('[');
                !host.is_empty() && !is_bare && port.parse::<u16>().is_ok_and(|port| port > 0)
            }
            None => false,
        };
        let invalid: Vec<String> = self
            .join
            .iter()
            .filter(|address| !has_port(address))
            .map(|address| format!("`{address}` is not an address with a port"))
            .collect();
        match invalid.is_empty() {
            true => Ok(self.join.clone()),
            false => {
                let hint =
                    "write `--join node-a:4000`, `--join 10.0.0.1:4000` or `--join [fd00::1]:4000`";
                Err(UserError { errors: invalid, hint: hint.into() })
            }
        }
    }

    fn key(&self) -> Result<JobKey, UserError> {
        match (&self.key_file, self.key_fd) {
            (Some(path), _) => key::from_file(path),
            (None, Some(number)) => key::from_descriptor(number),
            (None, None) => key::from_environment()?.ok_or_else(|| {
                UserError::new(
                    "the job's key is missing",
                    format!("pass it with `--key-file`, `--key-fd` or {}", key::VARIABLE),
                )
            }),
        }
    }
}

/// A name appears in host lists and in messages, so only plain characters are allowed.
fn check_name(name: &str) -> Result<(), UserError> {
    let is_plain = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    match !name.is_empty() && name.len() <= LONGEST_NAME && name.chars().all(is_plain) {
        true => Ok(()),
        false => Err(UserError::new(
            format!("`{name}` is not a valid host name"),
            "use letters, digits, `-`, `_` and `.` in `--name`",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(join: &[&str]) -> Arguments {
        Arguments {
            join: join.iter().map(|&address| address.to_owned()).collect(),
            slots: None,
            name: Some("node-b".into()),
            key_file: None,
            key_fd: None,
            timeout: 5,
        }
    }

    #[test]
    fn addresses_have_ports() {
        let good = ["node-a:4000", "10.0.0.1:1", "[fd00::1]:65535"];
        assert_eq!(arguments(&good).agent_offer().unwrap().addresses, good);
        for bad in ["node-a", "node-a:", ":4000", "node-a:0", "node-a:70000", "fd00::1", ""] {
            let error = arguments(&["a:1", bad]).agent_offer().unwrap_err();
            assert_eq!(error.errors, [format!("`{bad}` is not an address with a port")]);
        }
    }

    #[test]
    fn a_host_has_a_name_and_at_least_one_slot() {
        let agent_offer = arguments(&["a:1"]).agent_offer().unwrap();
        assert!(agent_offer.slots >= 1 && agent_offer.name == "node-b");
        for bad in ["", "a b", "a:1", "a,b", "a\u{1b}[0m", &"x".repeat(254)] {
            let named = Arguments { name: Some(bad.into()), ..arguments(&["a:1"]) };
            assert!(named.agent_offer().is_err(), "{bad:?}");
        }
    }
}
