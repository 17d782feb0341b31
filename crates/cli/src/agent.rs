//! `ronde agent`: offers this host to one job (`--join`), or to all launchers that hold a key
//! (`--listen`).

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ronde_control::VERSION;
use ronde_control::settings;
use ronde_control::wire::JobKey;
use ronde_control::wire::standing::StandingInfo;
use ronde_launch::agent::join::AgentOffer;
use ronde_launch::agent::standing::{self, StandingOffer};
use ronde_launch::hosts;
use ronde_launch::supervise::guardian::{self, AgentLifetime};

use crate::agents::address;
use crate::form::seconds;
use crate::horovodrun::report_error;
use crate::key;
use crate::messages::{USAGE, UserError, both};
use crate::processes;

/// Maximum length of a host name.
const LONGEST_NAME: usize = 253;

/// Offer this host to a job, or to all launchers that hold its key
///
/// With `--join`, runs until that job ends. With `--listen`, it is a standing agent: it runs until
/// it is stopped, and serves every `horovodrun --reach agent` that holds the same key. On SIGTERM,
/// the ranks of an elastic job leave gracefully.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "ronde agent --join <ADDRESSES> [OPTIONS]\n       ronde agent --listen \
                      <ADDRESS:PORT> [OPTIONS]"
)]
pub(crate) struct Arguments {
    /// Where a launcher started with `--agents` listens, as in `node-a:4000`; several addresses are tried in turn
    #[arg(
        long,
        value_name = "ADDRESSES",
        value_delimiter = ',',
        required_unless_present = "listen",
        conflicts_with = "listen"
    )]
    join: Vec<String>,

    /// Wait here for launchers, as in `:29508` or `10.0.0.1:29508`
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    listen: Option<SocketAddr>,

    /// Number of ranks this host can run [default: the number of CPUs available to this process]
    #[arg(long, value_name = "N", value_parser = processes::number)]
    slots: Option<u32>,

    /// The name of this host in the job [default: its hostname]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// The machine that this agent shares with other agents of the job: their ranks are numbered together [default: none, every agent is a host of its own]
    #[arg(long, value_name = "NAME", conflicts_with = "listen")]
    shared_host: Option<String>,

    /// File with the key; must be readable only by you [default: RONDE_JOB_KEY in the environment; with `--listen`, RONDE_AGENT_KEY_FILE, RONDE_AGENT_KEY or ~/.config/ronde/agent.key]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,

    /// An open descriptor to read the key from
    #[arg(long, value_name = "N", conflicts_with = "key_file")]
    key_fd: Option<u32>,

    /// End when standard input, a pipe, is closed: for programs that start agents
    #[arg(long, conflicts_with = "listen")]
    with_stdin: bool,

    /// How long to wait for a launcher to accept this agent, in seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "600",
          conflicts_with = "listen")]
    timeout: u64,
}

pub(crate) fn run(program: &Path, arguments: &Arguments) -> u8 {
    if let Some(address) = arguments.listen {
        return stand(program, arguments, address);
    }
    match both(arguments.agent_offer(), arguments.key()) {
        Ok((offer, key)) => guardian::run_joining(program, &offer, &key, arguments.lifetime())
            .unwrap_or_else(|error| not_started(&error)),
        Err(error) => report_error(&error, USAGE),
    }
}

/// Runs a standing agent.
fn stand(program: &Path, arguments: &Arguments, address: SocketAddr) -> u8 {
    let (offer, listener) = match both(arguments.standing_offer(), listen(address)) {
        Ok(ready) => ready,
        Err(error) => return report_error(&error, USAGE),
    };
    standing::announce(&offer.info, listener.local_addr().unwrap_or(address));
    standing::run(listener, &offer, program).unwrap_or_else(|error| not_started(&error))
}

fn listen(address: SocketAddr) -> Result<TcpListener, UserError> {
    let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
    let listener = match TcpListener::bind(address) {
        // A kernel without IPv6, or a port that is taken.
        Err(_) if address.ip().is_unspecified() => TcpListener::bind(any),
        other => other,
    };
    listener.map_err(|error| {
        let hint = "stop what uses the port, or choose another one";
        UserError::new(format!("cannot listen on {address}: {error}"), hint)
    })
}

fn not_started(error: &std::io::Error) -> u8 {
    let hint = "check the limits of this machine (`ulimit -a`)";
    report_error(&UserError::new(format!("cannot start the agent: {error}"), hint), 1)
}

impl Arguments {
    fn standing_offer(&self) -> Result<StandingOffer, UserError> {
        let (key, (name, slots)) = both(self.standing_key(), self.host())?;
        let hint = "check that `/dev/urandom` can be read";
        let instance =
            ronde_launch::random_number().map_err(|error| UserError::new(error, hint))?;
        let info = StandingInfo { version: VERSION.into(), name, slots, instance };
        Ok(StandingOffer { key, info })
    }

    fn lifetime(&self) -> AgentLifetime {
        if self.with_stdin { AgentLifetime::WithStdin } else { AgentLifetime::UntilSignaled }
    }

    fn agent_offer(&self) -> Result<AgentOffer, UserError> {
        let (addresses, (name, slots)) = both(self.addresses(), self.host())?;
        let time_limit = Duration::from_secs(self.timeout);
        let shared_host = self.shared_host.clone();
        shared_host.as_deref().map(check_name).transpose()?;
        Ok(AgentOffer { addresses, name, slots, shared_host, time_limit })
    }

    /// The name and the slots of this host.
    fn host(&self) -> Result<(String, u32), UserError> {
        let default_slots =
            || std::thread::available_parallelism().map_or(1, NonZeroUsize::get) as u32;
        let name = self.name.clone().unwrap_or_else(hosts::hostname);
        check_name(&name)?;
        Ok((name, self.slots.unwrap_or_else(default_slots)))
    }

    fn addresses(&self) -> Result<Vec<String>, UserError> {
        let is_address =
            |address: &&String| settings::hosts_with_ports(address).is_some_and(|it| it.len() == 1);
        let invalid: Vec<String> = self
            .join
            .iter()
            .filter(|address| !is_address(address))
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

    /// The key of a standing agent.
    fn standing_key(&self) -> Result<JobKey, UserError> {
        if let (None, Some(number)) = (&self.key_file, self.key_fd) {
            return key::from_descriptor(number);
        }
        let reaching = settings::reaching(|name| std::env::var(name).ok())?;
        let named = reaching.agent_key_file.as_deref().map(Path::new);
        let file = self.key_file.as_deref().or(named);
        key::of_agents(file, reaching.agent_key)?.ok_or_else(|| {
            UserError::new(
                "the key of the standing agents is missing",
                "write 64 hexadecimal digits to a file that only you can read, as in `(umask 077; \
                 openssl rand -hex 32 > agent.key)`, and pass it with `--key-file`",
            )
        })
    }
}

/// A name appears in host lists and in messages, so only plain characters are allowed.
fn check_name(name: &str) -> Result<(), UserError> {
    let is_plain = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    match !name.is_empty() && name.len() <= LONGEST_NAME && name.chars().all(is_plain) {
        true => Ok(()),
        false => Err(UserError::new(
            format!("`{name}` is not a valid host name"),
            "use letters, digits, `-`, `_` and `.` in names of hosts",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(join: &[&str]) -> Arguments {
        Arguments {
            join: join.iter().map(|&address| address.to_owned()).collect(),
            listen: None,
            slots: None,
            name: Some("node-b".into()),
            shared_host: None,
            key_file: None,
            key_fd: None,
            with_stdin: false,
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
