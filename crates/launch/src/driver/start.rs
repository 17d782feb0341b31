//! Starting agents: the socket where they reach the driver, and a link to each.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use ronde_control::settings::HostNetwork;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::DriverInput;
use super::agent_handle::AgentHandle;
use crate::reach::ReachMethod;
use crate::{LaunchError, interfaces, machine, ports};

/// Whether a job leaves this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// All hosts are this machine.
    ThisMachine,
    /// Some hosts are, or may turn out to be, other machines.
    Hosts,
}

impl Span {
    /// The span of a job whose hosts are reached with these methods.
    pub fn of<'a>(mut methods: impl Iterator<Item = &'a ReachMethod>) -> Span {
        match methods.all(|method| method.traits().network) {
            true => Span::ThisMachine,
            false => Span::Hosts,
        }
    }
}

/// Opens the rendezvous socket; returns it with the addresses that hosts may try. `alone` is the
/// address to use if all hosts are this machine.
pub(crate) fn listen(
    span: Span,
    alone: IpAddr,
    interfaces: &[String],
    network: &HostNetwork,
) -> Result<(TcpListener, Vec<SocketAddr>), LaunchError> {
    listen_at((span == Span::ThisMachine).then_some(alone), interfaces, network)
}

/// Like [`listen`], at one address or at all of them.
pub(crate) fn listen_at(
    address: Option<IpAddr>,
    interfaces: &[String],
    network: &HostNetwork,
) -> Result<(TcpListener, Vec<SocketAddr>), LaunchError> {
    let open = || {
        let listener = match address {
            Some(address) => ports::listen_at(address, &network.ports)?,
            None => ports::listen_everywhere(&network.ports)?,
        };
        let at = listener.local_addr()?;
        io::Result::Ok((ports::for_tokio(listener)?, at))
    };
    let (listener, at) = open().map_err(|source| match network.ports.is_any() {
        true => machine("listen for the ranks")(source),
        false => LaunchError::Ports { source },
    })?;
    if address.is_some() {
        return Ok((listener, vec![at]));
    }
    let others = interfaces::for_others();
    let named = interfaces::named(&others, interfaces);
    // The names may be those of other hosts' interfaces: dialing will tell.
    let chosen = if named.is_empty() { others } else { named };
    let own = chosen.iter().map(|each| each.address);
    Ok((listener, ports::announced(network, own, at.port())))
}

/// Starts an agent on a host; its messages carry `index`, and its processes are marked with `id`.
pub(crate) fn agent(
    index: usize,
    (host, method): (&str, &ReachMethod),
    (program, id): (&Path, &str),
    news: &mpsc::Sender<DriverInput>,
) -> io::Result<AgentHandle> {
    // Each agent has its own mark, because two host names may mean one machine.
    let mark = format!("{id}-{index}");
    let link = method.start(program, &mark)?;
    Ok(AgentHandle::new(index, (host.to_owned(), mark), link, news.clone()))
}
