//! Where this machine listens: on the ports of the job's range, or of its own, and at which
//! addresses others may dial it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use ronde_control::settings::{self, HostNetwork, RONDE_ADVERTISE, RONDE_PORT_RANGE};
use ronde_control::wire::agent::NetworkChoice;
use ronde_control::{PortRange, WIDEN};

use crate::driver::entropy;
use crate::reach::HostProblem;

/// Calls `bind` with the ports of the range in a random order until one is free.
fn find<T>(range: &PortRange, bind: impl FnMut(u16) -> io::Result<T>) -> io::Result<T> {
    let random = entropy().map_err(io::Error::other)?;
    range.find(u64::from_ne_bytes(random), bind)
}

/// Listens on one of these ports, at this address.
pub(crate) fn listen_at(ip: IpAddr, range: &PortRange) -> io::Result<TcpListener> {
    find(range, |port| TcpListener::bind((ip, port)))
}

/// Listens on one of these ports, at all addresses of this machine.
pub(crate) fn listen_everywhere(range: &PortRange) -> io::Result<TcpListener> {
    find(range, |port| match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)) {
        // A kernel without IPv6.
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
        }
        bound => bound,
    })
}

/// Listens on one port of all these addresses, except for those that cannot be used, or on any
/// ports. Returns each listener with the number of its address.
pub(crate) fn listen_on_all(
    ips: &[IpAddr],
    range: &PortRange,
) -> io::Result<Vec<(usize, TcpListener)>> {
    find(range, |port| {
        let mut listeners = Vec::new();
        for (number, ip) in ips.iter().enumerate() {
            match TcpListener::bind((*ip, port)) {
                Ok(listener) => listeners.push((number, listener)),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(error),
                Err(error) => tracing::debug!(%ip, %error, "cannot listen at an address"),
            }
        }
        Ok(listeners)
    })
}

/// Distinct ports that are free right now.
pub fn free(count: u32, range: &PortRange) -> io::Result<Vec<u16>> {
    let bound: Vec<TcpListener> = (0..count)
        .map(|_| listen_at(Ipv4Addr::UNSPECIFIED.into(), range))
        .collect::<io::Result<_>>()?;
    bound.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

/// A listener for the event loop.
pub(crate) fn for_tokio(listener: TcpListener) -> io::Result<tokio::net::TcpListener> {
    listener.set_nonblocking(true)?;
    tokio::net::TcpListener::from_std(listener)
}

/// These addresses of this machine with a port, after those that it advertises.
pub(crate) fn announced(
    network: &HostNetwork,
    own: impl IntoIterator<Item = IpAddr>,
    port: u16,
) -> Vec<SocketAddr> {
    let mut all: Vec<SocketAddr> = Vec::new();
    for ip in network.advertised.iter().copied().chain(own) {
        let address = SocketAddr::new(ip, port);
        if !all.contains(&address) {
            all.push(address);
        }
    }
    all
}

/// How this host can be reached.
pub(crate) fn here(choice: NetworkChoice) -> Result<HostNetwork, HostProblem> {
    let range = match choice {
        NetworkChoice::Launcher(network) => return Ok(network),
        NetworkChoice::Own(range) => range,
    };
    let network = settings::host_network(own_variable);
    let network = network.map_err(|error| {
        let hint = format!(
            "correct {} and {} in the environment of this host",
            RONDE_PORT_RANGE.name, RONDE_ADVERTISE.name
        );
        HostProblem::new(error.to_string(), hint)
    })?;
    let ports = if network.ports.is_any() { range } else { network.ports };
    Ok(HostNetwork { ports, ..network })
}

/// A variable of this process, or else of the first process of this container or machine: an ssh
/// server does not pass on what `docker run -e` has set.
fn own_variable(name: &str) -> Option<String> {
    let value = std::env::var(name).ok();
    value.filter(|value| !value.is_empty()).or_else(|| {
        let all = std::fs::read("/proc/1/environ").ok()?;
        let all = String::from_utf8_lossy(&all).into_owned();
        let value = |entry: &str| Some(entry.strip_prefix(name)?.strip_prefix('=')?.to_owned());
        all.split('\0').find_map(value)
    })
}

/// Why this host cannot listen.
pub(crate) fn problem(error: &io::Error, range: &PortRange) -> HostProblem {
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse if !range.is_any() => WIDEN,
        io::ErrorKind::PermissionDenied => "use ports above 1023, which need no privilege",
        _ => "check the limits of this host (`ulimit -a`)",
    };
    HostProblem::new(format!("it cannot listen for the other hosts: {error}"), hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// A range of a few ports that are free, and can be taken by this test.
    fn some_ports(count: u32) -> PortRange {
        let ports = free(count, &PortRange::default()).unwrap();
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        ports.join(",").parse().unwrap()
    }

    #[test]
    fn free_ports_are_distinct_and_of_the_range_until_it_is_used_up() {
        let range = some_ports(3);
        let mut found = free(3, &range).unwrap();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), 3);
        assert!(found.iter().all(|port| format!(",{range},").contains(&format!(",{port},"))));
        let error = free(4, &range).unwrap_err();
        let problem = problem(&error, &range);
        assert!(problem.reason.contains("all 3 ports of RONDE_PORT_RANGE"), "{problem:?}");
        assert!(problem.hint.contains("two ports for each of its ranks"), "{problem:?}");
    }

    #[test]
    fn listeners_on_several_addresses_share_a_port_of_the_range() {
        let range = some_ports(2);
        let second: IpAddr = "127.0.0.2".parse().unwrap();
        let nobody: IpAddr = "192.0.2.7".parse().unwrap();
        let all = listen_on_all(&[HERE, nobody, second], &range).unwrap();
        let numbers: Vec<usize> = all.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [0, 2], "the second address is not of this machine");
        let ports: Vec<u16> =
            all.iter().map(|(_, listener)| listener.local_addr().unwrap().port()).collect();
        assert_eq!(ports[0], ports[1]);
        let everywhere = listen_everywhere(&range).unwrap();
        assert_ne!(everywhere.local_addr().unwrap().port(), ports[0], "it is taken");
        assert_eq!(listen_at(HERE, &range).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn advertised_addresses_come_first() {
        let advertised = vec!["192.0.2.7".parse().unwrap(), HERE];
        let network = HostNetwork { advertised, ..HostNetwork::default() };
        let all: Vec<String> =
            announced(&network, [HERE], 5).iter().map(ToString::to_string).collect();
        assert_eq!(all, ["192.0.2.7:5", "127.0.0.1:5"]);
    }
}
