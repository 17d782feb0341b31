//! Starting agents: the socket where they reach the driver, and a link to each.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::DriverInput;
use super::agent_handle::AgentHandle;
use crate::reach::ReachMethod;
use crate::{LaunchError, interfaces, machine};

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
pub(crate) async fn listen(
    span: Span,
    alone: IpAddr,
    interfaces: &[String],
) -> Result<(TcpListener, Vec<SocketAddr>), LaunchError> {
    listen_at((span == Span::ThisMachine).then_some(alone), 0, interfaces).await
}

/// Like [`listen`], at one address or at all of them.
pub(crate) async fn listen_at(
    address: Option<IpAddr>,
    port: u16,
    interfaces: &[String],
) -> Result<(TcpListener, Vec<SocketAddr>), LaunchError> {
    let failed = || machine("listen for the ranks");
    if let Some(address) = address {
        let listener = TcpListener::bind((address, port)).await.map_err(failed())?;
        let address = listener.local_addr().map_err(failed())?;
        return Ok((listener, vec![address]));
    }
    let listener = match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Ok(listener) => listener,
        // A kernel without IPv6, or a port that is taken.
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await.map_err(failed())?,
    };
    let port = listener.local_addr().map_err(failed())?.port();
    let others = interfaces::for_others();
    let named = interfaces::named(&others, interfaces);
    // The names may be those of other hosts' interfaces: dialing will tell.
    let chosen = if named.is_empty() { others } else { named };
    let addresses: Vec<IpAddr> = chosen.iter().map(|each| each.address).collect();
    Ok((listener, addresses.into_iter().map(|ip| SocketAddr::new(ip, port)).collect()))
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
