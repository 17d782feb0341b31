//! Hosts on their way into a job: agents are sent for or dial in, hosts come together, and are there.

use std::net::Ipv4Addr;
use std::time::Duration;

use ronde_control::event::{HostSourceKind, JobEventKind};
use ronde_control::host_setup::{self, HostPlan, HostSetup, HostSetupAction, SetupHost};
use ronde_control::job::{self, AgentId, JobInput};
use ronde_control::wire::agent::DriverToAgent;
use ronde_control::{Time, VERSION};

use super::{AgentState, ConnectedAgent, Driver, LINGER};
use crate::agent::free_ports;
use crate::driver::agent_handle::AgentHandle;
use crate::driver::start::{self, Span};
use crate::hosts::{self, Host};
use crate::reach::dialled::DialledAgent;
use crate::reach::{HostProblem, ReachMethod};
use crate::{LaunchError, machine};

/// How long one call between hosts may take.
const CALL: Duration = Duration::from_secs(5);

impl Driver<'_> {
    /// Gets agents onto hosts: all in one party in a job that needs all of them.
    pub(super) fn reach(&mut self, hosts: Vec<(AgentId, String)>, now: Time) -> Vec<JobInput> {
        let mut events = Vec::new();
        let mut side_connections = Vec::new();
        for (id, host) in hosts {
            match self.reach_one(id, &host) {
                Ok(setup_host) => side_connections.push((id, setup_host)),
                Err(error) => events.push(self.unreached(id, host, error)),
            }
        }
        let together = if self.needs_all_hosts() { side_connections.len().max(1) } else { 1 };
        for side_connections in side_connections.chunks(together) {
            let (launcher, time) = (self.context.addresses.clone(), (self.job.start_timeout, now));
            let party = HostSetup::new(VERSION, side_connections.to_vec(), launcher, time);
            self.parties.push(match self.span {
                Span::ThisMachine => party,
                Span::Hosts => party.among_others(),
            });
        }
        events
    }

    fn reach_one(&mut self, id: AgentId, host: &str) -> std::io::Result<SetupHost> {
        let index = id.0 as usize;
        let handle = match self.waiting.remove(host) {
            Some(offer) => {
                let mark = offer.mark.clone();
                AgentHandle::new(index, (host.to_owned(), mark), offer.take()?, self.news.clone())
            }
            None => {
                let method = self.methods.get(host).cloned().unwrap_or(ReachMethod::Local);
                start::agent(index, (host, &method), (&self.job.program, &self.id), &self.news)?
            }
        };
        let here = handle.traits.network;
        self.agents.insert(id, ConnectedAgent { handle, state: AgentState::Coming });
        Ok(SetupHost { name: host.to_owned(), here })
    }

    fn unreached(&self, agent: AgentId, host: String, source: std::io::Error) -> JobInput {
        let error = LaunchError::Agent { host, source };
        match self.needs_all_hosts() {
            true => JobInput::CalledOff(error.report()),
            false => JobInput::Gone { agent, reason: error.to_string(), hint: error.hint().into() },
        }
    }

    /// Asks a party what an event means, and does it.
    pub(super) fn gather(&mut self, id: AgentId, event: host_setup::HostSetupInput, now: Time) {
        let party = self.parties.iter_mut().find(|party| party.awaits(id));
        let actions = party.map(|party| party.on(id, event, now)).unwrap_or_default();
        self.proceed(actions, now);
    }

    pub(super) fn proceed(&mut self, actions: Vec<HostSetupAction>, now: Time) {
        self.parties.retain(|party| !party.is_over());
        for action in actions {
            match action {
                HostSetupAction::Listen(id) => self.listen(id),
                HostSetupAction::Dial(id, targets) => {
                    let limit_millis = CALL.as_millis() as u32;
                    self.tell(id, DriverToAgent::Dial { targets, limit_millis });
                }
                HostSetupAction::Start(plans) => self.arrived(plans, now),
                HostSetupAction::Fail(troubles, text) => {
                    for (id, host_problem) in troubles {
                        self.failed(id, host_problem, now);
                    }
                    if self.needs_all_hosts() {
                        self.decide(JobInput::CalledOff(text), now);
                    }
                }
            }
        }
    }

    /// A host cannot take part.
    fn failed(&mut self, id: AgentId, HostProblem { reason, hint }: HostProblem, now: Time) {
        let host = self.agents.get(&id).map(|agent| agent.handle.host.clone());
        if self.needs_all_hosts() {
            if let Some(host) = host {
                let retry_seconds = None;
                self.context.happened(JobEventKind::HostUnreachable {
                    host,
                    reason,
                    hint,
                    retry_seconds,
                });
            }
            return;
        }
        if let Some(agent) = self.agents.get_mut(&id) {
            agent.handle.kill();
            agent.state = AgentState::Leaving;
        }
        self.decide(JobInput::Gone { agent: id, reason, hint }, now);
        self.forget(host, now);
    }

    /// Whether the job begins with all its hosts or not at all.
    fn needs_all_hosts(&self) -> bool {
        !self.job.job_spec.outlives_losses() && !self.comes_by_itself()
    }

    /// Whether hosts come by themselves: nobody else starts their agents again.
    fn comes_by_itself(&self) -> bool {
        self.job.job_spec.source == HostSourceKind::DialledIn
    }

    /// An agent that nobody here has started offers its host.
    pub(super) fn offered(&mut self, offer: DialledAgent, now: Time) {
        if !self.comes_by_itself() {
            return offer.refuse("this job starts its agents itself");
        }
        if let Some(mismatch) = offer.mismatch() {
            return offer.refuse(&mismatch);
        }
        if !self.machine.takes_hosts() {
            return offer.refuse("the job takes no more hosts");
        }
        let taken = |name: &str| self.hosts.iter().any(|known| known.name == name);
        // Two agents may be on one machine, or on machines of one name.
        let names = (2..).map(|number| format!("{}-{number}", offer.name));
        let name = std::iter::once(offer.name.clone()).chain(names).find(|name| !taken(name));
        let name = name.unwrap_or_default();
        tracing::info!(host = name, slots = offer.slots, address = ?offer.address(), "an agent dialled in");
        self.hosts.push(Host { name: name.clone(), user: None, slots: offer.slots });
        self.waiting.insert(name, offer);
        self.listed_anew(now);
    }

    /// A host whose agent had dialled in is not on offer any more.
    pub(super) fn forget(&mut self, host: Option<String>, now: Time) {
        if let Some(host) = host.filter(|_| self.comes_by_itself()) {
            self.hosts.retain(|known| known.name != host);
            self.listed_anew(now);
        }
    }

    /// The hosts are others now.
    fn listed_anew(&mut self, now: Time) {
        if !self.job.job_spec.outlives_losses() {
            self.slots = hosts::assign(&self.hosts, self.job.job_spec.start).unwrap_or_default();
        }
        let offer = |host: &Host| job::HostOffer { host: host.name.clone(), slots: host.slots };
        self.decide(JobInput::Discovered(self.hosts.iter().map(offer).collect()), now);
    }

    /// Has an agent listen for the others, and find ports.
    fn listen(&self, id: AgentId) {
        if let Some(agent) = self.agents.get(&id) {
            agent.handle.tell(DriverToAgent::Listen {
                key: self.context.key.clone(),
                host: id.0,
                interfaces: self.job.interfaces.clone(),
                ports: self.ports_for(&agent.handle.host),
            });
        }
    }

    /// How many free ports a host needs: one for torch.distributed's own rendezvous, and one for each
    /// rank that is known to run there.
    fn ports_for(&self, host: &str) -> u32 {
        1 + self.slots.iter().filter(|slot| slot.host == host).count() as u32
    }

    /// Hosts have arrived: workers can be started there.
    fn arrived(&mut self, mut plans: Vec<(AgentId, HostPlan)>, now: Time) {
        tracing::info!(?plans, "hosts have arrived");
        for (id, plan) in &mut plans {
            let Some(agent) = self.agents.get(id) else { continue };
            if plan.ports.is_empty() && (self.master.is_none() || !self.slots.is_empty()) {
                plan.ports = free_ports(self.ports_for(&agent.handle.host));
            }
            if let (None, Some(port)) = (self.master, plan.ports.first()) {
                let address = plan.listen.first().copied();
                self.master = Some((address.unwrap_or(Ipv4Addr::LOCALHOST.into()), *port));
            }
        }
        if self.master.is_none() {
            let error = machine("find a free port")(std::io::ErrorKind::AddrInUse.into());
            return self.decide(JobInput::CalledOff(error.report()), now);
        }
        for (id, plan) in plans {
            let Some(agent) = self.agents.get_mut(&id) else { continue };
            // One that is a child can only vanish together with the launcher.
            if !agent.handle.traits.child {
                agent.handle.tell(DriverToAgent::Stay { addresses: plan.rendezvous.clone() });
            }
            if self.job.job_spec.outlives_losses() {
                let millis = LINGER.as_millis() as u32;
                agent.handle.tell(DriverToAgent::Linger { millis });
            }
            agent.state = AgentState::Ready(plan);
            self.decide(JobInput::Ready(id), now);
        }
    }

    pub(super) fn found(&mut self, hosts: Vec<(Host, ReachMethod)>, now: Time) {
        self.methods.extend(hosts.iter().map(|(host, method)| (host.name.clone(), method.clone())));
        self.hosts = hosts.into_iter().map(|(host, _)| host).collect();
        self.listed_anew(now);
    }
}
