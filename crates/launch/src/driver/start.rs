//! The beginning of a job: agents are started, find each other, and get their ranks.
//!
//! What the agents' words mean is decided by the muster in `ronde-control`.

use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::Duration;

use ronde_control::muster::{Guest, Muster, Plan};
use ronde_control::wire::JobKey;
use ronde_control::wire::agent::{DriverToAgent, Target, WorkerSpec};
use ronde_control::{VERSION, Worker};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::cluster;
use super::hands::Hands;
use super::{Fixed, Job, News, environment};
use crate::agent::free_ports;
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
    /// Its number for life, where its rank may change.
    pub(super) worker: Option<Worker>,
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
            worker: part.worker.unwrap_or(Worker(part.slot.rank.0)),
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

/// What it takes to start the ranks of a fixed job, once their hosts have found each other.
pub(super) struct Start {
    recipe: Recipe,
    slots: Vec<Slot>,
}

impl Start {
    pub(super) fn new(job: &Job, crew: &Fixed, key: JobKey) -> Start {
        Start { recipe: Recipe::new(job, key), slots: crew.slots.clone() }
    }

    /// Has an agent listen for the others.
    pub(super) fn listen(&self, host: usize, agent: &Hands) {
        let ranks = self.slots.iter().filter(|slot| slot.host == agent.host).count();
        // One for each rank, and one for torch.distributed's own rendezvous.
        self.recipe.listen((host as u32, agent), ranks as u32 + 1);
    }

    /// Gives every agent its ranks.
    pub(super) fn ranks(&self, agents: &[Hands], plans: &[Plan]) -> Result<(), LaunchError> {
        let plans = self.with_ports(agents, plans);
        let master_port = plans.first().and_then(|plan| plan.ports.first()).copied();
        let master_port = master_port.ok_or_else(no_port)?;
        let names = agents.iter().map(|agent| agent.host.as_str());
        let cluster = cluster::workers(&self.slots, &names.zip(&plans).collect::<Vec<_>>());
        let (size, cluster) = (self.slots.len() as u32, cluster.as_slice());
        for (agent, plan) in agents.iter().zip(&plans) {
            Recipe::stay(agent, plan);
            for slot in self.slots.iter().filter(|slot| slot.host == agent.host) {
                let part = Part { slot, worker: None, late: false, size, master_port, cluster };
                self.recipe.start(agent, plan, part);
            }
        }
        Ok(())
    }

    /// The plans with ports for hosts that were not asked for any, because all are this machine.
    fn with_ports(&self, agents: &[Hands], plans: &[Plan]) -> Vec<Plan> {
        let ranks = |host: &str| self.slots.iter().filter(|slot| slot.host == host).count();
        let wanting = plans.iter().any(|plan| plan.ports.is_empty());
        let count = if wanting { self.slots.len() + agents.len() } else { 0 };
        let mut here = free_ports(count as u32).into_iter();
        let with_ports = |(agent, plan): (&Hands, &Plan)| match plan.ports.is_empty() {
            true => {
                let ports = here.by_ref().take(ranks(&agent.host) + 1).collect();
                Plan { ports, ..plan.clone() }
            }
            false => plan.clone(),
        };
        agents.iter().zip(plans).map(with_ports).collect()
    }
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
    let all = interfaces::all().unwrap_or_default();
    let others = interfaces::for_others(&all);
    let named = interfaces::named(&others, interfaces);
    // The names may be those of other hosts: the dialling decides.
    let chosen = if named.is_empty() { others } else { named };
    let addresses: Vec<IpAddr> = chosen.iter().map(|each| each.address).collect();
    Ok((listener, addresses.into_iter().map(|ip| SocketAddr::new(ip, port)).collect()))
}

/// Nobody is there yet.
pub(super) fn muster(job: &Job, crew: &Fixed, launcher: Vec<SocketAddr>) -> Muster {
    let guest =
        |(name, way): &(String, Way)| Guest { name: name.clone(), here: way.ties().network };
    let guests = crew.hosts.iter().map(guest).collect();
    Muster::new(VERSION, guests, launcher, job.start_timeout)
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

fn no_port() -> LaunchError {
    machine("find a free port")(io::ErrorKind::AddrInUse.into())
}
