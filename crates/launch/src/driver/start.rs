//! What it takes to start agents, and to tell them of each other and of their workers.

use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::Duration;

use ronde_control::Worker;
use ronde_control::muster::Plan;
use ronde_control::wire::JobKey;
use ronde_control::wire::agent::{DriverToAgent, Target, WorkerSpec};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::hands::Hands;
use super::{Job, News, environment};
use crate::hosts::Slot;
use crate::reach::Way;
use crate::{LaunchError, interfaces, machine};

/// How long one call between hosts may take.
const CALL: Duration = Duration::from_secs(5);

/// What all processes of a job have in common.
pub(super) struct Recipe {
    job: Job,
    key: JobKey,
    /// What of the environment goes to other hosts.
    there: Vec<(OsString, OsString)>,
}

/// A process among the others.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) slot: &'a Slot,
    /// Its number for life.
    pub(super) worker: Worker,
    /// Whether it may outlive its world, and have another rank in the next.
    pub(super) is_elastic: bool,
    /// Whether the others have been training before it began.
    pub(super) late: bool,
    pub(super) size: u32,
    pub(super) master_port: u16,
    /// The ranks as workers of TensorFlow's own strategies.
    pub(super) cluster: &'a [SocketAddr],
}

impl Recipe {
    pub(super) fn new(job: &Job, key: JobKey) -> Recipe {
        let there =
            job.env.iter().filter(|(name, _)| environment::travels(name)).cloned().collect();
        Recipe { job: job.clone(), key, there }
    }

    /// Has an agent listen for others, and find so many free ports.
    pub(super) fn listen(&self, (number, agent): (u32, &Hands), ports: u32) {
        agent.tell(DriverToAgent::Listen {
            key: self.key.clone(),
            host: number,
            interfaces: self.job.interfaces.clone(),
            ports,
        });
    }

    /// Has an agent hold on to the launcher, unless it can only vanish together with it.
    pub(super) fn stay(agent: &Hands, plan: &Plan) {
        if !agent.ties.child {
            agent.tell(DriverToAgent::Stay { addresses: plan.rendezvous.clone() });
        }
    }

    /// Has an agent start a process. One at a time: an environment may be large, and a frame is not
    /// endless.
    pub(super) fn start(&self, agent: &Hands, plan: &Plan, part: Part<'_>) {
        let bytes = |text: &OsString| text.clone().into_vec();
        let inherits = agent.ties.environment;
        let inherited = if inherits { &self.job.env } else { &self.there };
        let spec = WorkerSpec {
            worker: part.worker,
            argv: self.job.command.iter().map(bytes).collect(),
            cwd: self.job.cwd.clone().into_os_string().into_vec(),
            env: environment::of((inherited, &self.key), (&agent.mark, plan), part),
            own: if inherits { Vec::new() } else { environment::own() },
        };
        agent.tell(DriverToAgent::Start { workers: vec![spec] });
    }
}

/// Has an agent dial.
pub(super) fn dial(agent: &Hands, targets: Vec<Target>) {
    let limit_millis = CALL.as_millis() as u32;
    agent.tell(DriverToAgent::Dial { targets, limit_millis });
}

/// How far a job reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Span {
    /// All hosts are this machine.
    ThisMachine,
    /// Some are not, or may come that are not.
    Hosts,
}

impl Span {
    /// That of a job on these hosts.
    pub(crate) fn of(hosts: &[(String, Way)]) -> Span {
        match hosts.iter().all(|(_, way)| way.ties().network) {
            true => Span::ThisMachine,
            false => Span::Hosts,
        }
    }
}

/// Where the ranks will meet, and the addresses by which the hosts may try to reach it. `alone` is
/// the one if all hosts are this machine.
pub(crate) async fn listen(
    span: Span,
    alone: IpAddr,
    interfaces: &[String],
) -> Result<(TcpListener, Vec<SocketAddr>), LaunchError> {
    listen_at((span == Span::ThisMachine).then_some(alone), 0, interfaces).await
}

/// The same at one address, or at all addresses.
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
    // The names may be those of other hosts: the dialling decides.
    let chosen = if named.is_empty() { others } else { named };
    let addresses: Vec<IpAddr> = chosen.iter().map(|each| each.address).collect();
    Ok((listener, addresses.into_iter().map(|ip| SocketAddr::new(ip, port)).collect()))
}

/// Starts one agent per host. `id` makes the marks of their processes.
pub(crate) fn agents(
    hosts: &[(String, Way)],
    program: &Path,
    id: &str,
    news: &mpsc::Sender<News>,
) -> Result<Vec<Hands>, LaunchError> {
    let hosts = hosts.iter().enumerate();
    hosts
        .map(|(index, (host, way))| {
            agent(index, (host, way), (program, id), news)
                .map_err(|source| LaunchError::Agent { host: host.clone(), source })
        })
        .collect()
}

/// Starts an agent on a host; its news will carry `index`.
pub(super) fn agent(
    index: usize,
    (host, way): (&str, &Way),
    (program, id): (&Path, &str),
    news: &mpsc::Sender<News>,
) -> io::Result<Hands> {
    // Each agent has its own mark, because two names may mean one machine.
    let mark = format!("{id}-{index}");
    let link = way.start(program, &mark)?;
    Ok(Hands::new(index, (host.to_owned(), mark), link, news.clone()))
}
