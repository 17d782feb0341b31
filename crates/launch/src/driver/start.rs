//! The beginning of a job: agents are started, find each other, and get their ranks.
//!
//! What the agents' words mean is decided by the muster in `ronde-control`.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::Duration;

use ronde_control::VERSION;
use ronde_control::muster::{Guest, Muster, Plan};
use ronde_control::wire::JobKey;
use ronde_control::wire::agent::{DriverToAgent, RankSpec, Target};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::cluster;
use super::environment::{self, Shared};
use super::hands::Hands;
use super::{Job, News};
use crate::agent::free_ports;
use crate::reach::Way;
use crate::{LaunchError, interfaces, machine};

/// How long one call between hosts may take.
const CALL: Duration = Duration::from_secs(5);

/// What it takes to start the ranks, once their hosts have found each other.
pub(super) struct Start {
    job: Job,
    key: JobKey,
}

impl Start {
    pub(super) fn new(job: &Job, key: JobKey) -> Start {
        Start { job: job.clone(), key }
    }

    /// Has an agent listen for the others.
    pub(super) fn listen(&self, host: usize, agent: &Hands) {
        let ranks = self.job.slots.iter().filter(|slot| slot.host == agent.host).count();
        agent.tell(DriverToAgent::Listen {
            key: self.key.clone(),
            host: host as u32,
            interfaces: self.job.interfaces.clone(),
            // One for each rank, and one for torch.distributed's own rendezvous.
            ports: ranks as u32 + 1,
        });
    }

    /// Has an agent dial.
    pub(super) fn dial(agent: &Hands, targets: Vec<Target>) {
        let limit_millis = CALL.as_millis() as u32;
        agent.tell(DriverToAgent::Dial { targets, limit_millis });
    }

    /// Gives every agent its ranks.
    pub(super) fn ranks(&self, agents: &[Hands], plans: &[Plan]) -> Result<(), LaunchError> {
        let plans = self.with_ports(agents, plans);
        let master_port = plans.first().and_then(|plan| plan.ports.first()).copied();
        let master_port = master_port.ok_or_else(no_port)?;
        let names = agents.iter().map(|agent| agent.host.as_str());
        let workers = cluster::workers(&self.job.slots, &names.zip(&plans).collect::<Vec<_>>());
        let size = self.job.slots.len() as u32;
        let there: Vec<(OsString, OsString)> =
            self.job.env.iter().filter(|(name, _)| environment::travels(name)).cloned().collect();
        for (agent, plan) in agents.iter().zip(&plans) {
            let here = agent.way.is_local();
            if !here {
                agent.tell(DriverToAgent::Stay { addresses: plan.rendezvous.clone() });
            }
            let inherited = if here { &self.job.env } else { &there };
            let (workers, key) = (&workers, &self.key);
            let shared = Shared { inherited, size, master_port, workers, key };
            for slot in self.job.slots.iter().filter(|slot| slot.host == agent.host) {
                let bytes = |text: &OsString| text.clone().into_vec();
                // One at a time: an environment may be large, and a frame is not endless.
                let spec = RankSpec {
                    rank: slot.rank,
                    argv: self.job.command.iter().map(bytes).collect(),
                    cwd: self.job.cwd.clone().into_os_string().into_vec(),
                    env: environment::of(slot, (&agent.mark, plan), &shared),
                    own: if here { Vec::new() } else { environment::own() },
                };
                agent.tell(DriverToAgent::Start { ranks: vec![spec] });
            }
        }
        Ok(())
    }
}

impl Start {
    /// The plans with ports for hosts that were not asked for any, because all are this machine.
    fn with_ports(&self, agents: &[Hands], plans: &[Plan]) -> Vec<Plan> {
        let ranks = |host: &str| self.job.slots.iter().filter(|slot| slot.host == host).count();
        let wanting = plans.iter().any(|plan| plan.ports.is_empty());
        let count = if wanting { self.job.slots.len() + agents.len() } else { 0 };
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

/// Where the ranks will meet, and the addresses by which the hosts may try to reach it. `alone` is
/// the one if all hosts are this machine.
pub(crate) async fn listen(
    hosts: &[(String, Way)],
    alone: IpAddr,
    interfaces: &[String],
) -> Result<(TcpListener, Vec<SocketAddr>), LaunchError> {
    let failed = || machine("listen for the ranks");
    let spans = hosts.iter().any(|(_, way)| !way.is_local());
    if !spans {
        let listener = TcpListener::bind((alone, 0)).await.map_err(failed())?;
        let address = listener.local_addr().map_err(failed())?;
        return Ok((listener, vec![address]));
    }
    let listener = match TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).await {
        Ok(listener) => listener,
        // A kernel without IPv6.
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.map_err(failed())?,
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
pub(super) fn muster(job: &Job, launcher: Vec<SocketAddr>) -> Muster {
    let guest = |(name, way): &(String, Way)| Guest { name: name.clone(), here: way.is_local() };
    let guests = job.hosts.iter().map(guest).collect();
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
            // Each host has its own mark, because two names may mean one machine.
            let mark = format!("{id}-{index}");
            let child = way
                .start(program, &mark)
                .map_err(|source| LaunchError::Agent { host: host.clone(), source })?;
            Ok(Hands::new(index, (host.clone(), mark, way.clone()), child, news.clone()))
        })
        .collect()
}

fn no_port() -> LaunchError {
    machine("find a free port")(std::io::ErrorKind::AddrInUse.into())
}
