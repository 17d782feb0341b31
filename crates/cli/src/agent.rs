//! `ronde agent`: offers this host to a job whose launcher waits for agents (`horovodrun --agents`).

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ronde_control::wire::JobKey;
use ronde_launch::agent::join::Offering;
use ronde_launch::hosts;
use ronde_launch::supervise::guardian;

use crate::horovodrun::{complain, seconds};
use crate::key;
use crate::processes;
use crate::words::{Mistake, USAGE, both};

/// The longest name of a host.
const LONGEST_NAME: usize = 253;

/// Offer this host to a job whose launcher waits for agents (`horovodrun --agents`)
///
/// It runs until the job is over. Ask it to end with SIGTERM: ranks of an elastic job then leave in
/// order.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Where the launcher listens, as in `node-a:4000`; several are tried in turn
    #[arg(long, value_name = "ADDRESSES", value_delimiter = ',', required = true)]
    join: Vec<String>,

    /// How many ranks this host can take [default: as many as it has CPUs for this process]
    #[arg(long, value_name = "N", value_parser = processes::number)]
    slots: Option<u32>,

    /// What to call this host [default: its hostname]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// A file with the job's key, which only you may read [default: RONDE_JOB_KEY in the environment]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,

    /// An open descriptor to read the key from
    #[arg(long, value_name = "N", conflicts_with = "key_file")]
    key_fd: Option<u32>,

    /// Seconds until a launcher must have taken it
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "600")]
    timeout: u64,
}

pub(crate) fn run(program: &Path, arguments: &Arguments) -> u8 {
    match both(arguments.offering(), arguments.key()) {
        Ok((offering, key)) => {
            guardian::run_joining(program, &offering, &key).unwrap_or_else(|error| {
                let hint = "check the limits of this machine (`ulimit -a`)";
                complain(&Mistake::new(format!("the agent cannot be started: {error}"), hint), 1)
            })
        }
        Err(mistake) => complain(&mistake, USAGE),
    }
}

impl Arguments {
    fn offering(&self) -> Result<Offering, Mistake> {
        let own = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get) as u32;
        let name = self.name.clone().unwrap_or_else(hosts::hostname);
        let (addresses, ()) = both(self.addresses(), check_name(&name))?;
        let patience = Duration::from_secs(self.timeout);
        Ok(Offering { addresses, name, slots: self.slots.unwrap_or_else(own), patience })
    }

    fn addresses(&self) -> Result<Vec<String>, Mistake> {
        let has_port = |address: &&String| match address.rsplit_once(':') {
            Some((host, port)) => {
                let is_bare = host.contains(':') && !host.starts_with('[');
                !host.is_empty() && !is_bare && port.parse::<u16>().is_ok_and(|port| port > 0)
            }
            None => false,
        };
        let wrong: Vec<String> = self
            .join
            .iter()
            .filter(|address| !has_port(address))
            .map(|address| format!("`{address}` is no address with a port"))
            .collect();
        match wrong.is_empty() {
            true => Ok(self.join.clone()),
            false => {
                let hint =
                    "write `--join node-a:4000`, `--join 10.0.0.1:4000` or `--join [fd00::1]:4000`";
                Err(Mistake { errors: wrong, hint: hint.into() })
            }
        }
    }

    fn key(&self) -> Result<JobKey, Mistake> {
        match (&self.key_file, self.key_fd) {
            (Some(path), _) => key::from_file(path),
            (None, Some(number)) => key::from_descriptor(number),
            (None, None) => key::from_environment()?.ok_or_else(|| {
                Mistake::new(
                    "the job's key is missing",
                    format!("name it with `--key-file`, `--key-fd` or {}", key::VARIABLE),
                )
            }),
        }
    }
}

/// A name stands in lists of hosts and in messages.
fn check_name(name: &str) -> Result<(), Mistake> {
    let is_plain = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    match !name.is_empty() && name.len() <= LONGEST_NAME && name.chars().all(is_plain) {
        true => Ok(()),
        false => Err(Mistake::new(
            format!("`{name}` cannot be the name of a host"),
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
        assert_eq!(arguments(&good).offering().unwrap().addresses, good);
        for bad in ["node-a", "node-a:", ":4000", "node-a:0", "node-a:70000", "fd00::1", ""] {
            let mistake = arguments(&["a:1", bad]).offering().unwrap_err();
            assert_eq!(mistake.errors, [format!("`{bad}` is no address with a port")]);
        }
    }

    #[test]
    fn a_host_has_a_name_and_at_least_one_slot() {
        let offering = arguments(&["a:1"]).offering().unwrap();
        assert!(offering.slots >= 1 && offering.name == "node-b");
        for bad in ["", "a b", "a:1", "a,b", "a\u{1b}[0m", &"x".repeat(254)] {
            let named = Arguments { name: Some(bad.into()), ..arguments(&["a:1"]) };
            assert!(named.offering().is_err(), "{bad:?}");
        }
    }
}
