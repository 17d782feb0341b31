//! Hosts on their way into a job: agents are sent for or dial in, hosts come together, and are there.

use std::net::Ipv4Addr;
use std::time::Duration;

use ronde_control::event::{Happening, Source};
use ronde_control::job::{self, AgentId, Event};
use ronde_control::muster::{self, Action, Guest, Muster, Plan};
use ronde_control::wire::agent::DriverToAgent;
use ronde_control::{Time, VERSION};

use super::{Agent, Driver, LINGER, State};
use crate::agent::free_ports;
use crate::driver::hands::Hands;
use crate::driver::start::{self, Span};
use crate::hosts::{self, Host};
use crate::reach::dialled::Offer;
use crate::reach::{Trouble, Way};
use crate::{LaunchError, machine};

/// How long one call between hosts may take.
const CALL: Duration = Duration::from_secs(5);

impl Driver<'_> {
    /// Gets agents onto hosts: all in one party in a job that needs all of them.
    pub(super) fn reach(&mut self, hosts: Vec<(AgentId, String)>, now: Time) -> Vec<Event> {
        let mut events = Vec::new();
        let mut guests = Vec::new();
        for (id, host) in hosts {
            match self.reach_one(id, &host) {
                Ok(guest) => guests.push((id, guest)),
                Err(error) => events.push(self.unreached(id, host, error)),
            }
        }
        let together = if self.needs_all_hosts() { guests.len().max(1) } else { 1 };
        for guests in guests.chunks(together) {
            let (launcher, time) = (self.stage.addresses.clone(), (self.job.start_timeout, now));
            let party = Muster::new(VERSION, guests.to_vec(), launcher, time);
            self.parties.push(match self.span {
                Span::ThisMachine => party,
                Span::Hosts => party.among_others(),
            });
        }
        events
    }

    fn reach_one(&mut self, id: AgentId, host: &str) -> std::io::Result<Guest> {
        let index = id.0 as usize;
        let hands = match self.waiting.remove(host) {
            Some(offer) => {
                let mark = offer.mark.clone();
                Hands::new(index, (host.to_owned(), mark), offer.take()?, self.news.clone())
            }
            None => {
                let way = self.ways.get(host).cloned().unwrap_or(Way::Local);
                start::agent(index, (host, &way), (&self.job.program, &self.id), &self.news)?
            }
        };
        let here = hands.ties.network;
        self.agents.insert(id, Agent { hands, state: State::Coming });
        Ok(Guest { name: host.to_owned(), here })
    }

    fn unreached(&self, agent: AgentId, host: String, source: std::io::Error) -> Event {
        let error = LaunchError::Agent { host, source };
        match self.needs_all_hosts() {
            true => Event::CalledOff(error.report()),
            false => Event::Gone { agent, reason: error.to_string(), hint: error.hint().into() },
        }
    }

    /// Asks a party what an event means, and does it.
    pub(super) fn gather(&mut self, id: AgentId, event: muster::Event, now: Time) {
        let party = self.parties.iter_mut().find(|party| party.awaits(id));
        let actions = party.map(|party| party.on(id, event, now)).unwrap_or_default();
        self.proceed(actions, now);
    }

    pub(super) fn proceed(&mut self, actions: Vec<Action>, now: Time) {
        self.parties.retain(|party| !party.is_over());
        for action in actions {
            match action {
                Action::Listen(id) => self.listen(id),
                Action::Dial(id, targets) => {
                    let limit_millis = CALL.as_millis() as u32;
                    self.tell(id, DriverToAgent::Dial { targets, limit_millis });
                }
                Action::Start(plans) => self.arrived(plans, now),
                Action::Fail(troubles, text) => {
                    for (id, trouble) in troubles {
                        self.failed(id, trouble, now);
                    }
                    if self.needs_all_hosts() {
                        self.decide(Event::CalledOff(text), now);
                    }
                }
            }
        }
    }

    /// A host cannot take part.
    fn failed(&mut self, id: AgentId, Trouble { reason, hint }: Trouble, now: Time) {
        let host = self.agents.get(&id).map(|agent| agent.hands.host.clone());
        if self.needs_all_hosts() {
            if let Some(host) = host {
                let retry_seconds = None;
                self.stage.happened(Happening::HostUnreachable {
                    host,
                    reason,
                    hint,
                    retry_seconds,
                });
            }
            return;
        }
        if let Some(agent) = self.agents.get_mut(&id) {
            agent.hands.kill();
            agent.state = State::Leaving;
        }
        self.decide(Event::Gone { agent: id, reason, hint }, now);
        self.forget(host, now);
    }

    /// Whether the job begins with all its hosts or not at all.
    fn needs_all_hosts(&self) -> bool {
        !self.job.terms.outlives_losses() && !self.comes_by_itself()
    }

    /// Whether hosts come by themselves: nobody else starts their agents again.
    fn comes_by_itself(&self) -> bool {
        self.job.terms.source == Source::DialledIn
    }

    /// An agent that nobody here has started offers its host.
    pub(super) fn offered(&mut self, offer: Offer, now: Time) {
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
        if !self.job.terms.outlives_losses() {
            self.slots = hosts::assign(&self.hosts, self.job.terms.start).unwrap_or_default();
        }
        let offer = |host: &Host| job::Offer { host: host.name.clone(), slots: host.slots };
        self.decide(Event::Discovered(self.hosts.iter().map(offer).collect()), now);
    }

    /// Has an agent listen for the others, and find ports.
    fn listen(&self, id: AgentId) {
        if let Some(agent) = self.agents.get(&id) {
            agent.hands.tell(DriverToAgent::Listen {
                key: self.stage.key.clone(),
                host: id.0,
                interfaces: self.job.interfaces.clone(),
                ports: self.ports_for(&agent.hands.host),
            });
        }
    }

    /// How many free ports a host needs: one for torch.distributed's own rendezvous, and one for each
    /// rank that is known to run there.
    fn ports_for(&self, host: &str) -> u32 {
        1 + self.slots.iter().filter(|slot| slot.host == host).count() as u32
    }

    /// Hosts have arrived: workers can be started there.
    fn arrived(&mut self, mut plans: Vec<(AgentId, Plan)>, now: Time) {
        tracing::info!(?plans, "hosts have arrived");
        for (id, plan) in &mut plans {
            let Some(agent) = self.agents.get(id) else { continue };
            if plan.ports.is_empty() && (self.master.is_none() || !self.slots.is_empty()) {
                plan.ports = free_ports(self.ports_for(&agent.hands.host));
            }
            if let (None, Some(port)) = (self.master, plan.ports.first()) {
                let address = plan.listen.first().copied();
                self.master = Some((address.unwrap_or(Ipv4Addr::LOCALHOST.into()), *port));
            }
        }
        if self.master.is_none() {
            let error = machine("find a free port")(std::io::ErrorKind::AddrInUse.into());
            return self.decide(Event::CalledOff(error.report()), now);
        }
        for (id, plan) in plans {
            let Some(agent) = self.agents.get_mut(&id) else { continue };
            // One that is a child can only vanish together with the launcher.
            if !agent.hands.ties.child {
                agent.hands.tell(DriverToAgent::Stay { addresses: plan.rendezvous.clone() });
            }
            if self.job.terms.outlives_losses() {
                let millis = LINGER.as_millis() as u32;
                agent.hands.tell(DriverToAgent::Linger { millis });
            }
            agent.state = State::Ready(plan);
            self.decide(Event::Ready(id), now);
        }
    }

    pub(super) fn found(&mut self, hosts: Vec<(Host, Way)>, now: Time) {
        self.ways.extend(hosts.iter().map(|(host, way)| (host.name.clone(), way.clone())));
        self.hosts = hosts.into_iter().map(|(host, _)| host).collect();
        self.listed_anew(now);
    }
}
