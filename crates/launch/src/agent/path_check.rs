//! The agent's part in finding out which addresses reach which host, and how fast.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use ronde_control::admission::{Admission, AdmissionLimits, Origin};
use ronde_control::doctor::Address;
use ronde_control::settings::HostNetwork;
use ronde_control::wire::agent::{AgentToDriver, Dial, DialTarget, Listener, NetworkChoice};
use ronde_control::wire::{Callee, JobKey};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::speed_test;
use crate::interfaces;
use crate::ports;
use crate::reach::HostProblem;
use crate::wire::{answer, call};

/// How long a caller may take to authenticate.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

/// How long to wait after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// Listens for the agents of other hosts and dials them. Dropping it aborts all its tasks.
pub(super) struct PathCheckServer {
    /// The job's key and this host's number, once the driver has sent them.
    pub(super) identity: Option<(JobKey, u32)>,
    tasks: JoinSet<()>,
    news: mpsc::Sender<AgentToDriver>,
}

impl PathCheckServer {
    pub(super) fn new(news: mpsc::Sender<AgentToDriver>) -> PathCheckServer {
        PathCheckServer { identity: None, tasks: JoinSet::new(), news }
    }

    /// Listens on the addresses of these interfaces, or on all addresses that other hosts may
    /// reach.
    pub(super) fn listen(
        &mut self,
        (key, host): (JobKey, u32),
        names: &[String],
        (ports, network): (u32, NetworkChoice),
    ) -> AgentToDriver {
        let others = interfaces::for_others();
        let known = others.iter().map(|each| each.interface.clone()).collect();
        let open = || {
            let network = ports::here(network)?;
            let problem = |error: io::Error| ports::problem(&error, &network.ports);
            let opened = open(&network, &interfaces::named(&others, names)).map_err(problem)?;
            let free = ports::free(ports, &network.ports).map_err(problem)?;
            Ok((opened, free, network.ports))
        };
        let ((sockets, listeners), ports, range) = match open() {
            Ok(opened) => opened,
            Err(HostProblem { reason, hint }) => {
                return AgentToDriver::CannotListen { reason, hint };
            }
        };
        for socket in sockets {
            self.tasks.spawn(receive(socket, key.clone(), Callee::Host(host)));
        }
        self.identity = Some((key, host));
        let range = range.without(&ports);
        AgentToDriver::Listening { listeners, known, ports, range }
    }

    /// Dials all addresses concurrently and sends the outcome of each to the driver.
    pub(super) fn dial(&mut self, targets: Vec<DialTarget>, limit: Duration) {
        let Some((key, _)) = &self.identity else { return };
        for DialTarget { callee, addresses } in targets {
            for address in addresses {
                let (key, news) = (key.clone(), self.news.clone());
                self.tasks.spawn(async move {
                    let outcome = reach(address, &key, callee, limit).await;
                    let _ = news.send(AgentToDriver::Dialed { callee, address, outcome }).await;
                });
            }
        }
    }

    /// Measures the path to another host and sends the outcome to the driver.
    pub(super) fn measure(&mut self, callee: Callee, address: SocketAddr, load: Duration) {
        let Some((key, _)) = self.identity.clone() else { return };
        let news = self.news.clone();
        self.tasks.spawn(async move {
            let outcome = speed_test::measure(&key, callee, address, load).await;
            let _ = news.send(AgentToDriver::Measured { callee, outcome }).await;
        });
    }

    /// Stops listening and dialing.
    pub(super) fn end(&mut self) {
        self.tasks.abort_all();
    }
}

/// Listens on these addresses or, if the host also advertises others, everywhere. Returns the
/// sockets, and the addresses at which others may dial them.
fn open(network: &HostNetwork, own: &[Address]) -> io::Result<(Vec<TcpListener>, Vec<Listener>)> {
    let own_addresses: Vec<IpAddr> = own.iter().map(|each| each.address).collect();
    if network.advertised.is_empty() {
        let opened = ports::listen_on_all(&own_addresses, &network.ports)?;
        let (mut sockets, mut listeners) = (Vec::new(), Vec::new());
        for (number, socket) in opened {
            let interface = Some(own[number].interface.clone());
            listeners.push(Listener { interface, address: socket.local_addr()? });
            sockets.push(ports::for_tokio(socket)?);
        }
        return Ok((sockets, listeners));
    }
    let socket = ports::listen_everywhere(&network.ports)?;
    let port = socket.local_addr()?.port();
    let listener = |address: SocketAddr| {
        let its = own.iter().find(|each| each.address == address.ip());
        Listener { interface: its.map(|each| each.interface.clone()), address }
    };
    let announced = ports::announced(network, own_addresses, port);
    Ok((vec![ports::for_tokio(socket)?], announced.into_iter().map(listener).collect()))
}

/// Answers callers that hold the key. A caller that sends nothing is evicted if others wait.
async fn receive(listener: TcpListener, key: JobKey, callee: Callee) {
    let start = Instant::now();
    let mut admission =
        Admission::new(AdmissionLimits { deadline: HANDSHAKE_LIMIT, ..AdmissionLimits::default() });
    let mut unproven = BTreeMap::new();
    let (mut handshakes, mut trials) = (JoinSet::new(), JoinSet::new());
    loop {
        let opens_at = admission.opens_at();
        let is_open = start.elapsed() >= opens_at;
        tokio::select! {
            accepted = listener.accept(), if is_open => match accepted {
                Ok((stream, _)) => {
                    let (caller, evicted) = admission.arrive(Origin::Unknown, start.elapsed());
                    let evicted = evicted.and_then(|evicted| unproven.remove(&evicted));
                    evicted.iter().for_each(AbortHandle::abort);
                    let key = key.clone();
                    let handshake = handshakes.spawn(async move {
                        (caller, timeout(HANDSHAKE_LIMIT, answer(stream, &key, callee)).await)
                    });
                    unproven.insert(caller, handshake);
                }
                // The machine has run out of a resource, most likely descriptors; that may be
                // temporary.
                Err(error) => {
                    tracing::debug!(%error, "a connection could not be accepted");
                    sleep(PAUSE).await;
                }
            },
            Some(finished) = handshakes.join_next() => {
                let Ok((caller, proven)) = finished else { continue };
                unproven.remove(&caller);
                admission.leave(caller);
                if let Ok(Ok(sealed)) = proven {
                    trials.spawn(timeout(HANDSHAKE_LIMIT, speed_test::answer(sealed)));
                }
            }
            Some(_) = trials.join_next() => {}
            () = sleep(opens_at.saturating_sub(start.elapsed())), if !is_open => {}
        }
    }
}

async fn reach(address: SocketAddr, key: &JobKey, callee: Callee, limit: Duration) -> Dial {
    let start = Instant::now();
    let connected = timeout(limit, TcpStream::connect(address)).await;
    let stream = match connected {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            return match error.kind() {
                io::ErrorKind::ConnectionRefused => Dial::Refused,
                io::ErrorKind::TimedOut => Dial::TimedOut,
                _ => Dial::Failed { error: error.to_string() },
            };
        }
        Err(_) => return Dial::TimedOut,
    };
    match timeout(limit.saturating_sub(start.elapsed()), call(stream, key, callee)).await {
        Ok(Ok(_)) => Dial::Reached { micros: start.elapsed().as_micros().min(1 << 31) as u32 },
        // A peer without the key, or one that rejects this callee, is not the host we want.
        Ok(Err(_)) => Dial::WrongProcess,
        Err(_) => Dial::TimedOut,
    }
}
