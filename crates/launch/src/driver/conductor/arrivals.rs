//! Hosts on their way into a job: agents are sent for or dial in, hosts come together, and are there.

use std::net::Ipv4Addr;

use ronde_control::Time;
use ronde_control::event::{Happening, Source};
use ronde_control::job::{self, AgentId, Event};
use ronde_control::muster::{self, Guest, Plan};
use ronde_control::wire::agent::DriverToAgent;

use super::{Agent, Driver, LINGER, Office, State};
use crate::agent::free_ports;
use crate::driver::hands::Hands;
use crate::driver::party::{self, Party};
use crate::driver::start::{self, Recipe};
use crate::hosts::{self, Host};
use crate::reach::dialled::Offer;
use crate::reach::{Trouble, Way};
use crate::{LaunchError, machine};

impl Driver {
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
        let parties = match self.office.outlives_losses || self.comes_by_itself() {
            true => guests.into_iter().map(|guest| vec![guest]).collect(),
            false => vec![guests],
        };
        let parties = parties.into_iter().filter(|guests: &Vec<_>| !guests.is_empty());
        for guests in parties {
            let Office { span, start_timeout, .. } = self.office;
            let addresses = self.stage.addresses.clone();
            self.parties.push(Party::new(guests, span, addresses, (start_timeout, now)));
        }
        events
    }

    fn reach_one(&mut self, id: AgentId, host: &str) -> std::io::Result<Guest> {
        let Office { program, id: mark, news, .. } = &self.office;
        let index = id.0 as usize;
        let hands = match self.waiting.remove(host) {
            Some(offer) => {
                let mark = offer.mark.clone();
                Hands::new(index, (host.to_owned(), mark), offer.take()?, news.clone())
            }
            None => {
                let way = self.ways.get(host).cloned().unwrap_or(Way::Local);
                start::agent(index, (host, &way), (program, mark), news)?
            }
        };
        let here = hands.ties.network;
        self.agents.insert(id, Agent { hands, state: State::Coming });
        Ok(Guest { name: host.to_owned(), here })
    }

    fn unreached(&self, agent: AgentId, host: String, source: std::io::Error) -> Event {
        let error = LaunchError::Agent { host, source };
        match self.office.outlives_losses || self.comes_by_itself() {
            true => Event::Gone { agent, reason: error.in_full(), hint: error.hint().into() },
            false => {
                Event::CalledOff(format!("error: {}\n\nhint: {}\n", error.in_full(), error.hint()))
            }
        }
    }

    /// Asks a party what an event means, and does it.
    pub(super) fn gather(&mut self, id: AgentId, event: muster::Event, now: Time) {
        let party = self.parties.iter_mut().find(|party| party.has(id));
        let steps = party.map(|party| party.on(id, event, now)).unwrap_or_default();
        self.proceed(steps, now);
    }

    pub(super) fn proceed(&mut self, steps: Vec<party::Step>, now: Time) {
        self.parties.retain(|party| !party.is_over());
        for step in steps {
            match step {
                party::Step::Listen(id) => self.listen(id),
                party::Step::Dial(id, targets) => {
                    if let Some(agent) = self.agents.get(&id) {
                        start::dial(&agent.hands, targets);
                    }
                }
                party::Step::Arrived(plans) => self.arrived(plans, now),
                party::Step::Failed(troubles, text)
                    if !self.office.outlives_losses && !self.comes_by_itself() =>
                {
                    self.tell_of_hosts(troubles);
                    self.decide(Event::CalledOff(text), now);
                }
                party::Step::Failed(troubles, _) => {
                    for (id, trouble) in troubles {
                        self.failed(id, trouble, now);
                    }
                }
            }
        }
    }

    /// A host cannot take part.
    fn failed(&mut self, id: AgentId, Trouble { reason, hint }: Trouble, now: Time) {
        let agent = self.agents.get_mut(&id).map(|agent| {
            agent.hands.kill();
            agent.state = State::Leaving;
            agent.hands.host.clone()
        });
        self.decide(Event::Gone { agent: id, reason, hint }, now);
        self.forget(agent, now);
    }

    /// Hosts keep the job from starting.
    fn tell_of_hosts(&mut self, troubles: Vec<(AgentId, Trouble)>) {
        for (id, Trouble { reason, hint }) in troubles {
            if let Some(agent) = self.agents.get(&id) {
                let (host, retry_seconds) = (agent.hands.host.clone(), None);
                let what = Happening::HostUnreachable { host, reason, hint, retry_seconds };
                self.stage.happened(what);
            }
        }
    }

    /// Whether hosts come by themselves: nobody else starts their agents again.
    fn comes_by_itself(&self) -> bool {
        self.office.source == Source::DialledIn
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
        let taken = |name: &str| self.offers.iter().any(|known| known.host == name);
        // Two agents may be on one machine, or on machines of one name.
        let names = (2..).map(|number| format!("{}-{number}", offer.name));
        let name = std::iter::once(offer.name.clone()).chain(names).find(|name| !taken(name));
        let name = name.unwrap_or_default();
        tracing::info!(host = name, slots = offer.slots, address = ?offer.address(), "an agent dialled in");
        self.offers.push(job::Offer { host: name.clone(), slots: offer.slots });
        self.waiting.insert(name, offer);
        self.listed_anew(now);
    }

    /// A host whose agent had dialled in is not on offer any more.
    pub(super) fn forget(&mut self, host: Option<String>, now: Time) {
        if let Some(host) = host.filter(|_| self.comes_by_itself()) {
            self.offers.retain(|offer| offer.host != host);
            self.listed_anew(now);
        }
    }

    /// The hosts are others now.
    fn listed_anew(&mut self, now: Time) {
        if !self.office.outlives_losses {
            let host = |offer: &job::Offer| Host {
                name: offer.host.clone(),
                user: None,
                slots: offer.slots,
            };
            let hosts: Vec<Host> = self.offers.iter().map(host).collect();
            let ranks = self.office.ranks;
            self.slots = hosts::assign(&hosts, ranks).unwrap_or_default();
        }
        self.decide(Event::Discovered(self.offers.clone()), now);
    }

    /// Has an agent listen for the others, and find ports.
    fn listen(&self, id: AgentId) {
        if let Some(agent) = self.agents.get(&id) {
            self.recipe.listen((id.0, &agent.hands), self.ports_for(&agent.hands.host));
        }
    }

    /// How many free ports a host needs: one for torch.distributed's own rendezvous, and one for each
    /// rank that is known to run there.
    fn ports_for(&self, host: &str) -> u32 {
        1 + self.slots.iter().filter(|slot| slot.host == host).count() as u32
    }

    /// Hosts have arrived: workers can be started there.
    fn arrived(&mut self, plans: Vec<(AgentId, Plan)>, now: Time) {
        tracing::info!(?plans, "hosts have arrived");
        let mut named = Vec::new();
        for (id, mut plan) in plans {
            let Some(agent) = self.agents.get(&id) else { continue };
            if plan.ports.is_empty() && (self.master.is_none() || !self.slots.is_empty()) {
                plan.ports = free_ports(self.ports_for(&agent.hands.host));
            }
            if let (None, Some(port)) = (self.master, plan.ports.first()) {
                let address = plan.listen.first().copied();
                self.master = Some((address.unwrap_or(Ipv4Addr::LOCALHOST.into()), *port));
            }
            named.push((id, agent.hands.host.clone(), plan));
        }
        if self.master.is_none() {
            let error = machine("find a free port")(std::io::ErrorKind::AddrInUse.into());
            let text = format!("error: {}\n\nhint: {}\n", error.in_full(), error.hint());
            return self.decide(Event::CalledOff(text), now);
        }
        let ids: Vec<AgentId> = named.iter().map(|(id, ..)| *id).collect();
        for (id, _, plan) in named {
            let Some(agent) = self.agents.get_mut(&id) else { continue };
            Recipe::stay(&agent.hands, &plan);
            if self.office.outlives_losses {
                let millis = LINGER.as_millis() as u32;
                agent.hands.tell(DriverToAgent::Linger { millis });
            }
            agent.state = State::Ready(plan);
        }
        ids.into_iter().for_each(|id| self.decide(Event::Ready(id), now));
    }

    pub(super) fn found(&mut self, hosts: Vec<(Host, Way)>, now: Time) {
        let offer =
            |(host, _): &(Host, Way)| job::Offer { host: host.name.clone(), slots: host.slots };
        self.offers = hosts.iter().map(offer).collect();
        self.ways.extend(hosts.into_iter().map(|(host, way)| (host.name, way)));
        self.listed_anew(now);
    }
}
