//! Hosts whose agents dial in: the driver starts none. It waits for them at an address and with a
//! key that the agents must be given.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ronde_control::settings::HostNetwork;
use ronde_control::wire::JobKey;
use tokio::net::TcpListener;

use crate::LaunchError;
use crate::driver::start;
use crate::private::PrivateFile;

/// The agents that a job waits for.
#[derive(Clone, Debug)]
pub struct DialedIn {
    /// Number of agents that must have connected before the job starts.
    pub agents: u32,
    /// The key that they must hold.
    pub key: JobKey,
    /// Where they get the key from.
    pub place: KeyPlace,
    /// Where they reach the driver. The unspecified address means all addresses; port 0, any port.
    pub listen: SocketAddr,
}

/// Where agents get a job's key from.
#[derive(Clone, Debug)]
pub enum KeyPlace {
    /// From `RONDE_JOB_KEY` in their environment, like the driver.
    Environment,
    /// From a file of the user.
    File(PathBuf),
    /// From a file that was created for this job and is removed with it.
    Made(Arc<PrivateFile>),
    /// From the Python process that started this job, which gets it with the addresses.
    Caller,
}

impl DialedIn {
    /// Opens the socket for the agents; returns it with the addresses that other hosts may try.
    pub fn open(
        &self,
        interfaces: &[String],
        network: &HostNetwork,
    ) -> Result<(TcpListener, Vec<SocketAddr>), LaunchError> {
        let address = Some(self.listen.ip()).filter(|ip: &IpAddr| !ip.is_unspecified());
        let network = match self.listen.port() {
            0 => network.clone(),
            port => HostNetwork { ports: port.into(), ..network.clone() },
        };
        start::listen_at(address, interfaces, &network)
    }

    /// Text that tells the user how to start an agent, without the key itself. `addresses` are
    /// those of the driver.
    pub fn invitation(&self, addresses: &[SocketAddr]) -> String {
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let command = format!("ronde agent --join {}", addresses.join(","));
        let (count, noun) = (self.agents, if self.agents == 1 { "agent" } else { "agents" });
        let file = match &self.place {
            KeyPlace::Environment | KeyPlace::Caller => None,
            KeyPlace::File(path) => Some(path.as_path()),
            KeyPlace::Made(file) => Some(file.path()),
        };
        let how = match file.map(Path::display) {
            None => format!("`{command}` with the same RONDE_JOB_KEY in its environment"),
            Some(file) => format!(
                "`{command} --key-file {file}`, with a copy of that file that only you can read"
            ),
        };
        format!("waiting for {count} {noun} to connect; on each host, run {how}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(listen: &str, place: KeyPlace) -> DialedIn {
        let key = JobKey::from_entropy([0xab; 32]);
        DialedIn { agents: 2, key, place, listen: listen.parse().unwrap() }
    }

    #[test]
    fn the_invitation_says_how_to_start_an_agent_without_the_key() {
        let addresses = ["10.0.0.1:4000", "[fd00::1]:4000"].map(|it| it.parse().unwrap());
        let file = wanted("[::]:4000", KeyPlace::File("/home/me/job.key".into()));
        assert_eq!(
            file.invitation(&addresses),
            "waiting for 2 agents to connect; on each host, run `ronde agent --join \
             10.0.0.1:4000,[fd00::1]:4000 --key-file /home/me/job.key`, with a copy of that file \
             that only you can read"
        );
        let environment = wanted("[::]:4000", KeyPlace::Environment);
        let text = environment.invitation(&addresses);
        assert!(text.ends_with("with the same RONDE_JOB_KEY in its environment"), "{text}");
        let all = format!("{text} {environment:?} {}", file.invitation(&[]));
        assert!(!all.contains(&environment.key.to_hex()), "{all}");
    }

    #[tokio::test]
    async fn the_socket_has_the_requested_address() {
        let network = HostNetwork::default();
        let any = wanted("127.0.0.1:0", KeyPlace::Environment);
        let (first, addresses) = any.open(&[], &network).unwrap();
        assert_eq!(addresses, [first.local_addr().unwrap()]);
        let taken = DialedIn { listen: addresses[0], ..any };
        assert!(taken.open(&[], &network).is_err(), "the port is in use");
        let port = addresses[0].port();
        drop(first);
        let (again, _) = taken.open(&[], &network).unwrap();
        assert_eq!(again.local_addr().unwrap().port(), port);
        let all = wanted("0.0.0.0:0", KeyPlace::Environment);
        let (everywhere, addresses) = all.open(&[], &network).unwrap();
        assert!(everywhere.local_addr().unwrap().ip().is_unspecified());
        let port = everywhere.local_addr().unwrap().port();
        assert!(addresses.iter().all(|address| address.port() == port), "{addresses:?}");
    }
}
