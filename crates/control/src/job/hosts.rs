//! The hosts that a job knows: which are listed, which rest after a failure, and the agents
//! on them. A host keeps its place in the row from when it was first listed.

use std::time::Duration;

use super::{AgentId, Offer};
use crate::Time;
use crate::event::{Happening, Source};

/// How long a host rests that could not be reached, at least and at most: it may still be starting.
const UNREACHED: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// One host.
#[derive(Clone, Debug)]
pub(super) struct Host {
    pub(super) name: String,
    /// How many workers it takes; none while it is not listed.
    pub(super) slots: u32,
    pub(super) agent: Agent,
    pub(super) rest: Option<Rest>,
    /// How often it has failed.
    failures: u32,
    /// How often in a row it could not be reached.
    pub(super) unreached: u32,
    /// Whether its agent was told to stop: it counts as not there until it is listed anew.
    pub(super) is_leaving: bool,
}

/// The agent on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Agent {
    None,
    Reaching(AgentId),
    Ready(AgentId),
}

/// A pause in which no worker is started on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rest {
    /// Until when; for ever if nobody says.
    pub(super) until: Option<Time>,
    /// Whether the workers that live there stay.
    pub(super) spares: bool,
}

/// All hosts, in the order in which they were first listed.
#[derive(Default)]
pub(super) struct Hosts {
    pub(super) all: Vec<Host>,
    agents: u32,
}

impl Hosts {
    /// Takes in which hosts there are; one that is listed twice has the slots of both.
    pub(super) fn list(&mut self, offers: &[Offer], source: Source) -> Vec<Happening> {
        let mut news = Vec::new();
        for offer in offers {
            self.place(&offer.host);
        }
        for host in &mut self.all {
            let slots = offers.iter().filter(|offer| offer.host == host.name).map(|it| it.slots);
            let slots = slots.fold(0, u32::saturating_add);
            host.is_leaving &= slots > 0;
            let slots = if host.is_leaving { 0 } else { slots };
            let name = host.name.clone();
            match std::mem::replace(&mut host.slots, slots) {
                before if before == slots => {}
                0 => {
                    // Somebody has started an agent there: the host is there for them again.
                    if source == Source::DialledIn {
                        (host.rest, host.unreached) = (None, 0);
                    }
                    news.push(Happening::HostFound { host: name, slots, source });
                }
                _ if slots == 0 => news.push(Happening::HostUnlisted { host: name, source }),
                before => news.push(Happening::HostResized { host: name, slots, before, source }),
            }
        }
        news
    }

    /// The place in the row of the host of this name, which is new if it was not there.
    pub(super) fn place(&mut self, name: &str) -> usize {
        if let Some(index) = self.all.iter().position(|host| host.name == name) {
            return index;
        }
        self.all.push(Host {
            name: name.to_owned(),
            slots: 0,
            agent: Agent::None,
            rest: None,
            failures: 0,
            unreached: 0,
            is_leaving: false,
        });
        self.all.len() - 1
    }

    /// A host's name.
    pub(super) fn name(&self, index: usize) -> String {
        self.all[index].name.clone()
    }

    /// Where workers sit: on all slots of a host before those of the next.
    pub(super) fn seats(&self) -> impl Iterator<Item = (&str, u32)> {
        let hosts = self.all.iter();
        hosts.flat_map(|host| (0..host.slots).map(|slot| (host.name.as_str(), slot)))
    }

    /// How many hosts are like that, and how many slots they have.
    pub(super) fn count(&self, are: fn(&Host) -> bool) -> (u32, u32) {
        self.all.iter().filter(|host| are(host)).fold((0, 0), |(hosts, slots), host| {
            (hosts + 1, u32::saturating_add(slots, host.slots))
        })
    }

    /// The number of the next agent, on this host from now on.
    pub(super) fn reach(&mut self, index: usize) -> AgentId {
        let id = AgentId(self.agents);
        self.agents += 1;
        self.all[index].agent = Agent::Reaching(id);
        id
    }

    /// Which host an agent is on.
    pub(super) fn of(&self, agent: AgentId) -> Option<usize> {
        self.all.iter().position(|host| host.agent.id() == Some(agent))
    }

    /// Lets a host rest after a failure. `fraction` below one is chance.
    pub(super) fn rest(
        &mut self,
        index: usize,
        cooldown: Option<(Duration, Duration)>,
        fraction: f64,
        (spares, now): (bool, Time),
    ) -> Option<Duration> {
        let host = &mut self.all[index];
        host.failures += 1;
        let length = cooldown.map(|range| delay(range, host.failures, fraction));
        let until = length.map(|length| now + length);
        // A longer rest stands.
        let until = match host.rest {
            Some(Rest { until: before, .. }) => before.zip(until).map(|(a, b)| a.max(b)),
            None => until,
        };
        let spares = spares && host.rest.is_none_or(|rest| rest.spares);
        host.rest = Some(Rest { until, spares });
        length
    }

    /// Lets a host rest that could not be reached; gives how long.
    pub(super) fn unreached(&mut self, index: usize, now: Time) -> Duration {
        let host = &mut self.all[index];
        let (least, most) = UNREACHED;
        let length = least.saturating_mul(1 << host.unreached.min(10)).min(most);
        host.unreached += 1;
        host.rest = Some(Rest { until: Some(now + length), spares: true });
        length
    }

    /// A host has been reached.
    pub(super) fn reached(&mut self, index: usize, agent: AgentId) {
        self.all[index].agent = Agent::Ready(agent);
        self.all[index].unreached = 0;
    }

    /// Ends the rests whose time is over.
    pub(super) fn wake(&mut self, now: Time) -> Vec<Happening> {
        let mut news = Vec::new();
        for host in &mut self.all {
            let over = |rest: &mut Rest| rest.until.is_some_and(|until| until <= now);
            // That a host is called again that could not be reached is no news.
            if host.rest.take_if(over).is_some() && host.unreached == 0 && host.slots > 0 {
                news.push(Happening::HostUsable { host: host.name.clone() });
            }
        }
        news
    }

    /// When the next rest is over.
    pub(super) fn next_wakeup(&self) -> Option<Time> {
        self.all.iter().filter_map(|host| host.rest?.until).min()
    }

    /// Whether more workers may run here one day without a new listing.
    pub(super) fn may_recover(&self) -> bool {
        self.all
            .iter()
            .any(|host| host.slots > 0 && host.rest.is_none_or(|rest| rest.until.is_some()))
    }
}

impl Agent {
    pub(super) fn id(self) -> Option<AgentId> {
        match self {
            Agent::None => None,
            Agent::Reaching(id) | Agent::Ready(id) => Some(id),
        }
    }
}

impl Host {
    /// Whether a new worker may be started here.
    pub(super) fn is_open(&self) -> bool {
        self.slots > 0 && self.rest.is_none()
    }

    /// Whether its agent is there and new workers may be started.
    pub(super) fn is_ready(&self) -> bool {
        self.is_open() && matches!(self.agent, Agent::Ready(_))
    }

    /// Whether it is just being reached, and new workers will be started then.
    pub(super) fn is_coming(&self) -> bool {
        self.is_open() && matches!(self.agent, Agent::Reaching(_))
    }

    /// Whether a worker that runs on this slot may stay.
    pub(super) fn keeps(&self, slot: u32) -> bool {
        slot < self.slots && self.rest.is_none_or(|rest| rest.spares)
    }
}

/// How long a host rests after so many failures, as Horovod counts: the least doubles with each, from
/// the first on, with a little chance on top, and stays within the range.
fn delay((least, most): (Duration, Duration), failures: u32, fraction: f64) -> Duration {
    let doubled = least.saturating_mul(1u32.checked_shl(failures.min(20)).unwrap_or(u32::MAX));
    doubled.saturating_add(least.mul_f64(fraction.clamp(0.0, 1.0))).clamp(least, most.max(least))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers(list: &[(&str, u32)]) -> Vec<Offer> {
        list.iter().map(|(host, slots)| Offer { host: (*host).into(), slots: *slots }).collect()
    }

    #[test]
    fn hosts_keep_their_places_and_only_changes_are_news() {
        let mut hosts = Hosts::default();
        let first = hosts.list(&offers(&[("b", 2), ("a", 1), ("b", 1)]), Source::Script);
        let found = |host: &str, slots| {
            let (host, source) = (host.to_owned(), Source::Script);
            Happening::HostFound { host, slots, source }
        };
        assert_eq!(first, [found("b", 3), found("a", 1)]);
        assert_eq!(hosts.all[0].slots, 3);
        assert_eq!(hosts.list(&offers(&[("a", 1), ("b", 3)]), Source::Script), []);
        let changed = hosts.list(&offers(&[("c", 4), ("a", 2)]), Source::Script);
        let source = Source::Script;
        let unlisted = Happening::HostUnlisted { host: "b".into(), source };
        let resized = Happening::HostResized { host: "a".into(), slots: 2, before: 1, source };
        assert_eq!(changed, [unlisted, resized, found("c", 4)]);
        let names: Vec<&str> = hosts.all.iter().map(|host| host.name.as_str()).collect();
        assert_eq!(names, ["b", "a", "c"]);
    }

    #[test]
    fn the_first_rest_is_twice_the_least_and_the_range_holds() {
        let range = (Duration::from_secs(1), Duration::from_secs(10));
        let seconds = |failures, fraction| delay(range, failures, fraction).as_secs_f64();
        assert_eq!(seconds(1, 0.0), 2.0);
        assert_eq!(seconds(1, 0.5), 2.5);
        assert_eq!(seconds(2, 0.0), 4.0);
        assert_eq!(seconds(9, 0.9), 10.0);
        assert_eq!(seconds(4_000_000_000, 0.9), 10.0);
    }

    #[test]
    fn a_rest_without_an_end_is_not_cut_short() {
        let mut hosts = Hosts::default();
        hosts.list(&offers(&[("a", 1)]), Source::Script);
        let now = Duration::from_secs(5);
        assert_eq!(hosts.rest(0, None, 0.0, (true, now)), None);
        assert!(!hosts.may_recover() && hosts.all[0].keeps(0) && !hosts.all[0].is_open());
        let range = Some((Duration::from_secs(1), Duration::from_secs(2)));
        hosts.rest(0, range, 0.0, (false, now));
        assert_eq!(hosts.all[0].rest, Some(Rest { until: None, spares: false }));
        assert_eq!(hosts.wake(Duration::from_secs(3600)), []);
    }
}
