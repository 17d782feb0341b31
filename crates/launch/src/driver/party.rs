//! Hosts on their way into a job: from the start of their agents to the moment from which workers can be
//! started there, or the reason why not.
//!
//! The hosts of a fixed job come as one party, which starts together or not at all. In an elastic job each
//! host is a party of its own, because it may come at any time and others need not wait for it; ranks dial
//! each other at all addresses that a host has, so a host has only to reach the launcher.

use std::net::SocketAddr;
use std::time::Duration;

use ronde_control::job::AgentId;
use ronde_control::muster::{Action, Event, Guest, Muster, Plan};
use ronde_control::wire::agent::Target;
use ronde_control::{Time, VERSION};

use super::start::Span;
use crate::reach::Trouble;

/// Hosts that come together.
pub(super) struct Party {
    agents: Vec<AgentId>,
    muster: Muster,
    /// When they set out; the muster's own time begins there.
    since: Time,
}

/// What to do about them.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Have one listen.
    Listen(AgentId),
    /// Have one dial.
    Dial(AgentId, Vec<Target>),
    /// They have arrived; their workers are told this.
    Arrived(Vec<(AgentId, Plan)>),
    /// They cannot take part: what is wrong with each, and what to tell the user of all.
    Failed(Vec<(AgentId, Trouble)>, String),
}

impl Party {
    /// Sets out at `now`. `launcher` is where they may reach the rendezvous, `span` how far the job
    /// reaches, with those who may come later.
    pub(super) fn new(
        guests: Vec<(AgentId, Guest)>,
        span: Span,
        launcher: Vec<SocketAddr>,
        (limit, now): (Duration, Time),
    ) -> Party {
        let (agents, guests) = guests.into_iter().unzip();
        let muster = Muster::new(VERSION, guests, launcher, limit);
        let muster = match span {
            Span::ThisMachine => muster,
            Span::Hosts => muster.among_others(),
        };
        Party { agents, muster, since: now }
    }

    /// Whether this agent belongs to it.
    pub(super) fn has(&self, agent: AgentId) -> bool {
        self.agents.contains(&agent)
    }

    /// Takes in what happened to one of them.
    pub(super) fn on(&mut self, agent: AgentId, event: Event, now: Time) -> Vec<Step> {
        let Some(index) = self.agents.iter().position(|known| *known == agent) else {
            return Vec::new();
        };
        let now = now.saturating_sub(self.since);
        let actions = self.muster.on(index, event, now);
        self.steps(actions, now)
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, now: Time) -> Vec<Step> {
        let now = now.saturating_sub(self.since);
        let actions = self.muster.tick(now);
        self.steps(actions, now)
    }

    /// Whether they have arrived, or never will.
    pub(super) fn is_over(&self) -> bool {
        self.muster.is_over()
    }

    /// When something must happen even if nothing else does.
    pub(super) fn next_wakeup(&self) -> Option<Time> {
        self.muster.next_wakeup().map(|time| self.since + time)
    }

    fn steps(&self, actions: Vec<Action>, now: Time) -> Vec<Step> {
        let agents = || self.agents.iter().copied();
        let named = |(index, trouble): (usize, Trouble)| (self.agents[index], trouble);
        let step = |action| match action {
            Action::Listen(index) => Step::Listen(self.agents[index]),
            Action::Dial(index, targets) => Step::Dial(self.agents[index], targets),
            Action::Start(plans) => Step::Arrived(agents().zip(plans).collect()),
            Action::Fail(text) => {
                Step::Failed(self.muster.troubles(now).into_iter().map(named).collect(), text)
            }
        };
        actions.into_iter().map(step).collect()
    }
}

#[cfg(test)]
mod tests {
    use ronde_control::wire::Callee;
    use ronde_control::wire::agent::{Dial, Listener};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    fn seconds(seconds: u64) -> Time {
        Duration::from_secs(seconds)
    }

    const ID: AgentId = AgentId(7);

    fn party(span: Span) -> Party {
        let guest = Guest { name: "node".into(), here: false };
        let launcher = vec!["10.0.0.1:9".parse().unwrap()];
        Party::new(vec![(ID, guest)], span, launcher, (LIMIT, seconds(100)))
    }

    fn hello() -> Event {
        Event::Hello { version: VERSION.into() }
    }

    #[test]
    fn a_host_arrives_once_it_has_reached_the_launcher() {
        let mut party = party(Span::Hosts);
        assert_eq!(party.next_wakeup(), Some(seconds(130)));
        assert_eq!(party.on(ID, hello(), seconds(101)), [Step::Listen(ID)]);
        let address = "10.0.0.2:40".parse().unwrap();
        let listeners = vec![Listener { interface: "eth0".into(), address }];
        let listening = Event::Listening { listeners, known: vec![], ports: vec![4000] };
        let steps = party.on(ID, listening, seconds(102));
        assert!(matches!(steps.as_slice(), [Step::Dial(ID, targets)] if targets.len() == 1));
        let event = Event::Dialled {
            callee: Callee::Launcher,
            address: "10.0.0.1:9".parse().unwrap(),
            outcome: Dial::Reached { micros: 90 },
        };
        let steps = party.on(ID, event, seconds(103));
        let [Step::Arrived(plans)] = steps.as_slice() else { panic!("{steps:?}") };
        let (_, plan) = &plans[0];
        assert_eq!(plan.listen, ["10.0.0.2".parse::<std::net::IpAddr>().unwrap()]);
        assert_eq!((plan.rendezvous.len(), plan.ports.as_slice()), (1, &[4000][..]));
    }

    #[test]
    fn a_host_that_says_nothing_fails_after_its_own_time() {
        let mut party = party(Span::Hosts);
        assert_eq!(party.tick(seconds(129)), []);
        let steps = party.tick(seconds(130));
        let [Step::Failed(troubles, _)] = steps.as_slice() else { panic!("{steps:?}") };
        let (_, trouble) = &troubles[0];
        assert_eq!(trouble.reason, "it has not answered within 30 s");
        assert!(trouble.hint.contains("ssh node true"), "{}", trouble.hint);
    }

    #[test]
    fn a_host_that_cannot_reach_the_launcher_fails_with_what_it_saw() {
        let mut party = party(Span::Hosts);
        party.on(ID, hello(), seconds(101));
        let address = "10.0.0.2:40".parse().unwrap();
        let listeners = vec![Listener { interface: "eth0".into(), address }];
        party.on(ID, Event::Listening { listeners, known: vec![], ports: vec![] }, seconds(101));
        let address = "10.0.0.1:9".parse().unwrap();
        let event = Event::Dialled { callee: Callee::Launcher, address, outcome: Dial::TimedOut };
        let steps = party.on(ID, event, seconds(106));
        let [Step::Failed(troubles, _)] = steps.as_slice() else { panic!("{steps:?}") };
        let (_, trouble) = &troubles[0];
        let reason = "it cannot reach the launcher: 10.0.0.1:9 ";
        assert!(trouble.reason.starts_with(reason), "{}", trouble.reason);
        assert!(trouble.hint.contains("firewall"), "{}", trouble.hint);
    }

    #[test]
    fn on_this_machine_alone_an_agent_has_arrived_when_it_is_there() {
        let guest = Guest { name: "localhost".into(), here: true };
        let launcher = vec!["127.0.0.1:9".parse().unwrap()];
        let mut alone =
            Party::new(vec![(ID, guest)], Span::ThisMachine, launcher, (LIMIT, seconds(5)));
        assert!(matches!(alone.on(ID, hello(), seconds(6)).as_slice(), [Step::Arrived(_)]));
    }
}
