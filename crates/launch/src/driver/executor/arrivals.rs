//! Hosts that join a job: agents are started or dial in, their hosts are set up, and become ready.

use std::net::Ipv4Addr;
use std::time::Duration;

use ronde_control::event::{HostSourceKind, JobEventKind};
use ronde_control::host_setup::{self, HostPlan, HostSetup, HostSetupAction, SetupHost};
use ronde_control::job::{self, AgentId, JobInput};
use ronde_control::wire::agent::{DriverToAgent, NetworkChoice};
use ronde_control::{Time, VERSION};

use super::{AgentState, ConnectedAgent, Driver};
use crate::driver::DriverInput;
use crate::driver::agent_handle::AgentHandle;
use crate::driver::start::{self, Span};
use crate::hosts::{self, Host};
use crate::reach::dialed::DialedAgent;
use crate::reach::{HostProblem, ReachMethod, standing};
use crate::{LaunchError, machine, ports};

/// Time limit for one connection attempt between hosts.
const CALL: Duration = Duration::from_secs(5);

impl Driver<'_> {
    /// Gets agents onto hosts, all in one batch if the job needs all of them.
    pub(super) fn reach(&mut self, hosts: Vec<(AgentId, String)>, now: Time) -> Vec<JobInput> {
        let mut events = Vec::new();
        let mut setup_hosts = Vec::new();
        for (id, host) in hosts {
            match self.reach_one(id, &host) {
                Ok(setup_host) => setup_hosts.push((id, setup_host)),
                Err(error) => events.push(self.unreached(id, host, error)),
            }
        }
        let together = if self.needs_all_hosts() { setup_hosts.len().max(1) } else { 1 };
        for setup_hosts in setup_hosts.chunks(together) {
            let (launcher, time) = (self.context.addresses.clone(), (self.job.start_timeout, now));
            let batch = HostSetup::new(VERSION, setup_hosts.to_vec(), launcher, time);
            self.batches.push(match self.span {
                Span::ThisMachine => batch,
                Span::Hosts => batch.among_others(),
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

    /// Passes an event to the batch of this host, and carries out the resulting actions.
    pub(super) fn gather(&mut self, id: AgentId, event: host_setup::HostSetupInput, now: Time) {
        let batch = self.batches.iter_mut().find(|batch| batch.awaits(id));
        let actions = batch.map(|batch| batch.on(id, event, now)).unwrap_or_default();
        self.proceed(actions, now);
    }

    pub(super) fn proceed(&mut self, actions: Vec<HostSetupAction>, now: Time) {
        self.batches.retain(|batch| !batch.is_over());
        for action in actions {
            match action {
                HostSetupAction::Listen(id) => self.listen(id),
                HostSetupAction::Dial(id, targets) => {
                    let limit_millis = CALL.as_millis() as u32;
                    self.tell(id, DriverToAgent::Dial { targets, limit_millis });
                }
                HostSetupAction::Start(plans) => self.arrived(plans, now),
                HostSetupAction::Fail(problems, text) => {
                    for (id, host_problem) in problems {
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

    /// Whether the job starts with all its hosts or not at all.
    fn needs_all_hosts(&self) -> bool {
        !self.job.job_spec.outlives_losses() && !self.agents_dial_in()
    }

    /// Whether agents dial in, in which case nobody restarts them.
    fn agents_dial_in(&self) -> bool {
        self.job.job_spec.source == HostSourceKind::DialedIn
    }

    /// Handles an agent that dialed in and offers its host.
    pub(super) fn offered(&mut self, offer: DialedAgent, now: Time) {
        if !self.agents_dial_in() {
            return offer.refuse("this job starts its agents itself");
        }
        if let Some(mismatch) = offer.mismatch() {
            return offer.refuse(&mismatch);
        }
        if !self.machine.takes_hosts() {
            return offer.refuse("the job accepts no more hosts");
        }
        let taken = |name: &str| self.hosts.iter().any(|known| known.name == name);
        // Two agents may run on one machine, or on machines with the same name.
        let names = (2..).map(|number| format!("{}-{number}", offer.name));
        let name = std::iter::once(offer.name.clone()).chain(names).find(|name| !taken(name));
        let name = name.unwrap_or_default();
        let address = offer.address().map_or_else(|| "nowhere".into(), |it| it.to_string());
        tracing::info!(host = name, slots = offer.slots, "an agent dialed in from {address}");
        // Ranks are numbered in the order of this list, those of one machine without a gap.
        let machine = |host: &Host| self.machines.get(&host.name) == offer.shared_host.as_ref();
        let near = match offer.shared_host {
            Some(_) => self.hosts.iter().rposition(machine),
            None => None,
        };
        let place = near.map_or(self.hosts.len(), |near| near + 1);
        self.hosts.insert(place, Host { name: name.clone(), user: None, slots: offer.slots });
        match offer.shared_host.clone() {
            Some(machine) => self.machines.insert(name.clone(), machine),
            None => self.machines.remove(&name),
        };
        self.waiting.insert(name, offer);
        self.hosts_changed(now);
    }

    /// Removes a host whose agent had dialed in.
    pub(super) fn forget(&mut self, host: Option<String>, now: Time) {
        if let Some(host) = host.filter(|_| self.agents_dial_in()) {
            self.hosts.retain(|known| known.name != host);
            self.hosts_changed(now);
        }
    }

    /// Looks out for the standing agent of a host to be started again, if the job could use it.
    pub(super) fn watch_for_return(&mut self, host: &str) {
        let is_wanted = self.job.job_spec.outlives_losses() && !self.machine.is_over();
        if let Some(ReachMethod::Standing(agent)) = self.methods.get(host).filter(|_| is_wanted) {
            let (agent, host, news) = (agent.clone(), host.to_owned(), self.news.clone());
            self.search.spawn(async move {
                standing::restarted(&agent).await;
                let _ = news.send(DriverInput::StandsAgain(host)).await;
            });
        }
    }

    /// The standing agent of a host was started again.
    pub(super) fn stands_again(&mut self, host: String, now: Time) {
        self.decide(JobInput::OfferedAgain(host), now);
        self.hosts_changed(now);
    }

    /// The list of hosts has changed.
    fn hosts_changed(&mut self, now: Time) {
        if !self.job.job_spec.outlives_losses() {
            self.slots = hosts::assign_shared(&self.hosts, &self.machines, self.job.job_spec.start)
                .unwrap_or_default();
        }
        let offer = |host: &Host| job::HostOffer { host: host.name.clone(), slots: host.slots };
        self.decide(JobInput::Discovered(self.hosts.iter().map(offer).collect()), now);
    }

    /// Makes an agent listen for the other hosts and find free ports.
    fn listen(&self, id: AgentId) {
        if let Some(agent) = self.agents.get(&id) {
            agent.handle.tell(DriverToAgent::Listen {
                key: self.context.key.clone(),
                host: id.0,
                interfaces: self.job.interfaces.clone(),
                ports: self.ports_for(&agent.handle.host),
                network: match agent.handle.traits.environment {
                    true => NetworkChoice::Launcher(self.job.network.clone()),
                    false => NetworkChoice::Own(self.job.network.ports.clone()),
                },
            });
        }
    }

    /// Number of free ports that a host needs: one for torch.distributed's own rendezvous, and one
    /// for each rank known to run there.
    fn ports_for(&self, host: &str) -> u32 {
        1 + self.slots.iter().filter(|slot| slot.host == host).count() as u32
    }

    /// Hosts are ready: workers can be started on them.
    fn arrived(&mut self, mut plans: Vec<(AgentId, HostPlan)>, now: Time) {
        for (id, plan) in &plans {
            let host = self.agents.get(id).map_or("", |agent| agent.handle.host.as_str());
            tracing::info!(
                "host {host} is ready; it reaches the launcher at [{}] and its ranks listen on [{}]",
                joined(&plan.rendezvous),
                joined(&plan.listen)
            );
        }
        let (mut no_ports, mut given) = (None, Vec::new());
        for (id, plan) in &mut plans {
            let Some(agent) = self.agents.get(id) else { continue };
            if plan.range.is_any() {
                plan.range = self.job.network.ports.clone();
            }
            if plan.ports.is_empty() && (self.master.is_none() || !self.slots.is_empty()) {
                // Its ranks and the launcher share this machine, and its agent was not asked.
                plan.range = plan.range.without(&given);
                match ports::free(self.ports_for(&agent.handle.host), &plan.range) {
                    Ok(free) => (plan.range, plan.ports) = (plan.range.without(&free), free),
                    Err(error) => no_ports = Some(error),
                }
                given.extend(&plan.ports);
            }
            if let (None, Some(port)) = (self.master, plan.ports.first()) {
                let address = plan.listen.first().copied();
                self.master = Some((address.unwrap_or(Ipv4Addr::LOCALHOST.into()), *port));
            }
        }
        if let Some(source) = no_ports {
            let error = match self.job.network.ports.is_any() {
                true => machine("find a free port")(source),
                false => LaunchError::Ports { source },
            };
            return self.decide(JobInput::CalledOff(error.report()), now);
        }
        for (id, plan) in plans {
            let Some(agent) = self.agents.get_mut(&id) else { continue };
            // A child agent runs on this machine and needs no lifeline.
            if !agent.handle.traits.child {
                agent.handle.tell(DriverToAgent::Stay { addresses: plan.rendezvous.clone() });
            }
            if self.job.job_spec.outlives_losses() {
                let time_limit = self.job.job_spec.leaving.as_millis();
                let millis = u32::try_from(time_limit).unwrap_or(u32::MAX);
                agent.handle.tell(DriverToAgent::Linger { millis });
            }
            agent.state = AgentState::Ready(plan);
            self.decide(JobInput::Ready(id), now);
        }
    }

    pub(super) fn found(&mut self, hosts: Vec<(Host, ReachMethod)>, now: Time) {
        self.methods.extend(hosts.iter().map(|(host, method)| (host.name.clone(), method.clone())));
        self.hosts = hosts.into_iter().map(|(host, _)| host).collect();
        self.hosts_changed(now);
    }
}

fn joined(addresses: &[impl ToString]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
