//! One host of an elastic job on its way: from the start of its agent to the moment from which workers
//! can be started there, or the reason why not.
//!
//! Each host has a muster of its own, because it may come at any time and others need not wait for it.
//! Ranks dial each other at all addresses that a host has; so a host has only to reach the launcher.

use std::net::SocketAddr;
use std::time::Duration;

use ronde_control::VERSION;
use ronde_control::muster::{Action, Event, Guest, Muster, Plan};
use ronde_control::rendezvous::Time;
use ronde_control::wire::agent::Target;

use crate::driver::start::Span;
use crate::reach::Trouble;

/// A host on its way.
pub(super) struct Arrival {
    muster: Muster,
    /// When it was set out for; the muster's own time begins there.
    since: Time,
}

/// What to do about it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Have it listen.
    Listen,
    /// Have it dial.
    Dial(Vec<Target>),
    /// It has arrived; its workers are told this.
    Arrived(Plan),
    /// It cannot take part.
    Failed(Trouble),
}

impl Arrival {
    /// Sets out for a host at `now`. `launcher` is where it may reach the rendezvous.
    pub(super) fn new(
        guest: Guest,
        span: Span,
        launcher: Vec<SocketAddr>,
        (limit, now): (Duration, Time),
    ) -> Arrival {
        let muster = Muster::new(VERSION, vec![guest], launcher, limit);
        let muster = match span {
            Span::ThisMachine => muster,
            Span::Hosts => muster.among_others(),
        };
        Arrival { muster, since: now }
    }

    /// Takes in what happened there.
    pub(super) fn on(&mut self, event: Event, now: Time) -> Vec<Step> {
        let actions = self.muster.on(0, event, now.saturating_sub(self.since));
        self.steps(actions)
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, now: Time) -> Vec<Step> {
        let actions = self.muster.tick(now.saturating_sub(self.since));
        self.steps(actions)
    }

    /// When something must happen even if nothing else does.
    pub(super) fn next_wakeup(&self) -> Option<Time> {
        self.muster.next_wakeup().map(|time| self.since + time)
    }

    fn steps(&self, actions: Vec<Action>) -> Vec<Step> {
        let step = |action| match action {
            Action::Listen(_) => Step::Listen,
            Action::Dial(_, targets) => Step::Dial(targets),
            Action::Start(plans) => Step::Arrived(plans.into_iter().next().unwrap_or_default()),
            Action::Fail(_) => {
                let (reason, hint) = self.muster.trouble(0);
                Step::Failed(Trouble { reason, hint })
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

    fn arrival(span: Span) -> Arrival {
        let guest = Guest { name: "node".into(), here: false };
        Arrival::new(guest, span, vec!["10.0.0.1:9".parse().unwrap()], (LIMIT, seconds(100)))
    }

    fn hello() -> Event {
        Event::Hello { version: VERSION.into() }
    }

    #[test]
    fn a_host_arrives_once_it_has_reached_the_launcher() {
        let mut arrival = arrival(Span::Hosts);
        assert_eq!(arrival.next_wakeup(), Some(seconds(130)));
        assert_eq!(arrival.on(hello(), seconds(101)), [Step::Listen]);
        let address = "10.0.0.2:40".parse().unwrap();
        let listeners = vec![Listener { interface: "eth0".into(), address }];
        let listening = Event::Listening { listeners, known: vec![], ports: vec![4000] };
        let steps = arrival.on(listening, seconds(102));
        assert!(matches!(steps.as_slice(), [Step::Dial(targets)] if targets.len() == 1));
        let event = Event::Dialled {
            callee: Callee::Launcher,
            address: "10.0.0.1:9".parse().unwrap(),
            outcome: Dial::Reached { micros: 90 },
        };
        let steps = arrival.on(event, seconds(103));
        let [Step::Arrived(plan)] = steps.as_slice() else { panic!("{steps:?}") };
        assert_eq!(plan.listen, ["10.0.0.2".parse::<std::net::IpAddr>().unwrap()]);
        assert_eq!((plan.rendezvous.len(), plan.ports.as_slice()), (1, &[4000][..]));
    }

    #[test]
    fn a_host_that_says_nothing_fails_after_its_own_time() {
        let mut arrival = arrival(Span::Hosts);
        assert_eq!(arrival.tick(seconds(129)), []);
        let steps = arrival.tick(seconds(130));
        let [Step::Failed(trouble)] = steps.as_slice() else { panic!("{steps:?}") };
        assert_eq!(trouble.reason, "it has not answered within 30 s");
        assert!(trouble.hint.contains("ssh node true"), "{}", trouble.hint);
    }

    #[test]
    fn a_host_that_cannot_reach_the_launcher_fails_with_what_it_saw() {
        let mut arrival = arrival(Span::Hosts);
        arrival.on(hello(), seconds(101));
        let address = "10.0.0.2:40".parse().unwrap();
        let listeners = vec![Listener { interface: "eth0".into(), address }];
        arrival.on(Event::Listening { listeners, known: vec![], ports: vec![] }, seconds(101));
        let address = "10.0.0.1:9".parse().unwrap();
        let event = Event::Dialled { callee: Callee::Launcher, address, outcome: Dial::TimedOut };
        let steps = arrival.on(event, seconds(106));
        let [Step::Failed(trouble)] = steps.as_slice() else { panic!("{steps:?}") };
        let reason = "it cannot reach the launcher: 10.0.0.1:9 ";
        assert!(trouble.reason.starts_with(reason), "{}", trouble.reason);
        assert!(trouble.hint.contains("firewall"), "{}", trouble.hint);
    }

    #[test]
    fn on_this_machine_alone_an_agent_has_arrived_when_it_is_there() {
        let mut alone = Arrival::new(
            Guest { name: "localhost".into(), here: true },
            Span::ThisMachine,
            vec!["127.0.0.1:9".parse().unwrap()],
            (LIMIT, seconds(5)),
        );
        assert!(matches!(alone.on(hello(), seconds(6)).as_slice(), [Step::Arrived(_)]));
    }
}
