//! The options of jobs whose agents dial in instead of being started by the launcher.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use ronde_control::wire::JobKey;
use ronde_launch::private::{self, PrivateDirs};
use ronde_launch::source::{DialedIn, KeyPlace};

use crate::key;
use crate::messages::UserError;

/// The options of `horovodrun` for such jobs.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Agents {
    #[arg(conflicts_with_all = ["hosts", "hostfile", "host_discovery_script"])]
    agents: Option<u32>,
    #[arg(requires = "agents")]
    listen: Option<SocketAddr>,
    #[arg(requires = "agents")]
    key_file: Option<PathBuf>,
    /// Whether the caller of this command starts the agents and gets the key from it.
    #[arg(skip)]
    pub(crate) are_callers: bool,
}

impl Agents {
    /// Whether the job waits for agents.
    pub(crate) fn are_wanted(&self) -> bool {
        self.agents.is_some()
    }

    /// The agents to wait for, if any; generates a key if none was given.
    pub(crate) fn source(&self) -> Result<Option<DialedIn>, UserError> {
        let Some(agents) = self.agents else { return Ok(None) };
        let (key, place) = match &self.key_file {
            _ if self.are_callers => (new_key()?, KeyPlace::Caller),
            Some(path) => (key::from_file(path)?, KeyPlace::File(path.clone())),
            None => match key::from_environment()? {
                Some(key) => (key, KeyPlace::Environment),
                None => generate_key()?,
            },
        };
        let everywhere = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
        Ok(Some(DialedIn { agents, key, place, listen: self.listen.unwrap_or(everywhere) }))
    }
}

const OWN_KEY: &str = "write 64 hexadecimal digits to a file that only you can read, and pass it with `--key-file FILE`";

fn new_key() -> Result<JobKey, UserError> {
    ronde_launch::new_key().map_err(|error| UserError::new(error, OWN_KEY))
}

/// Generates a key for this job and stores it in a file for those who start the agents.
fn generate_key() -> Result<(JobKey, KeyPlace), UserError> {
    let key = new_key()?;
    let file = private::write_key(&PrivateDirs::here(), &key)
        .map_err(|why| UserError::new(format!("cannot store the job key: {why}"), OWN_KEY))?;
    Ok((key, KeyPlace::Made(Arc::new(file))))
}

/// Parses an address to listen on; a bare port means all addresses.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    let everywhere = IpAddr::from(Ipv6Addr::UNSPECIFIED);
    let port = text.strip_prefix(':').and_then(|port| port.parse().ok());
    let address = port.map(|port| SocketAddr::new(everywhere, port)).or_else(|| text.parse().ok());
    address.ok_or_else(|| "it must be an address and a port, as in `10.0.0.1:4000`".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_optional_and_the_port_is_not() {
        for (text, expected) in [
            (":4000", Some("[::]:4000")),
            ("10.0.0.1:4000", Some("10.0.0.1:4000")),
            ("[fd00::1]:0", Some("[fd00::1]:0")),
            ("4000", None),
            ("10.0.0.1", None),
            ("node-a:4000", None),
            (":x", None),
            (":", None),
        ] {
            let read = address(text).ok().map(|address| address.to_string());
            assert_eq!(read.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn without_the_option_no_key_is_generated() {
        assert!(Agents::default().source().unwrap().is_none());
    }
}
