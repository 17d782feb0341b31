//! The hosts that a job knows: which are listed, which are on cooldown after a failure, and the
//! agents on them. A host keeps the index it got when it was first listed.

use std::time::Duration;

use super::{AgentId, HostOffer};
use crate::Time;
use crate::event::{HostSourceKind, JobEventKind};

/// Minimum and maximum cooldown of a host that could not be reached: it may still be starting.
const UNREACHED: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// A host that the job knows about.
#[derive(Clone, Debug)]
pub(super) struct KnownHost {
    pub(super) name: String,
    /// How many workers it can run; 0 while it is not listed.
    pub(super) slots: u32,
    pub(super) agent: AgentOnHost,
    pub(super) cooldown: Option<Cooldown>,
    /// How often it has failed.
    failures: u32,
    /// How many times in a row it could not be reached.
    pub(super) unreached: u32,
    /// Whether its agent was told to stop: the host counts as gone until it is listed or offered
    /// again.
    pub(super) is_leaving: bool,
    /// What its ranks call it, and the machine that they are on, if they report that themselves.
    reported: Option<(String, String)>,
}

impl KnownHost {
    /// Somebody has started its agent again, so it is usable again.
    fn offered_again(&mut self) {
        (self.cooldown, self.unreached, self.is_leaving) = (None, 0, false);
    }
}

/// The agent on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AgentOnHost {
    None,
    Reaching(AgentId),
    Ready(AgentId),
}

/// A period in which no worker is started on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cooldown {
    /// Until when; `None` for the rest of the job.
    pub(super) until: Option<Time>,
    /// Whether the workers running there stay in the job.
    pub(super) keeps_workers: bool,
}

/// All hosts, in the order in which they were first listed.
#[derive(Default)]
pub(super) struct Hosts {
    pub(super) all: Vec<KnownHost>,
    /// The indices of the hosts of the latest list, in its order.
    listed: Vec<usize>,
    agents: u32,
}

impl Hosts {
    /// Updates the list of hosts; a host that is listed twice has the slots of both entries.
    pub(super) fn list(
        &mut self,
        offers: &[HostOffer],
        source: HostSourceKind,
    ) -> Vec<JobEventKind> {
        let mut news = Vec::new();
        self.listed.clear();
        for offer in offers {
            let index = self.place(&offer.host);
            if !self.listed.contains(&index) {
                self.listed.push(index);
            }
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
                    if source == HostSourceKind::DialedIn {
                        host.offered_again();
                    }
                    news.push(JobEventKind::HostFound { host: name, slots, source });
                }
                _ if slots == 0 => news.push(JobEventKind::HostUnlisted { host: name, source }),
                before => {
                    news.push(JobEventKind::HostResized { host: name, slots, before, source });
                }
            }
        }
        news
    }

    /// The agent of a host was started again.
    pub(super) fn offered_again(&mut self, name: &str) {
        if let Some(host) = self.all.iter_mut().find(|host| host.name == name) {
            host.offered_again();
        }
    }

    /// The index of the host with this name, which is added if it is new.
    pub(super) fn place(&mut self, name: &str) -> usize {
        if let Some(index) = self.all.iter().position(|host| host.name == name) {
            return index;
        }
        self.all.push(KnownHost {
            name: name.to_owned(),
            slots: 0,
            agent: AgentOnHost::None,
            cooldown: None,
            failures: 0,
            unreached: 0,
            is_leaving: false,
            reported: None,
        });
        self.all.len() - 1
    }

    /// The index of the host of a rank that reports this name and machine. Containers and cloned
    /// machines may have the same name: the second one is called `NAME-2`.
    pub(super) fn place_reported(&mut self, name: &str, machine: &str) -> usize {
        let reported = Some((name.to_owned(), machine.to_owned()));
        if let Some(index) = self.all.iter().position(|host| host.reported == reported) {
            return index;
        }
        let numbered = (2..).map(|number| format!("{name}-{number}"));
        let is_new = |name: &String| self.all.iter().all(|host| host.name != *name);
        let name = std::iter::once(name.to_owned()).chain(numbered).find(is_new);
        let index = self.place(&name.unwrap_or_default());
        self.all[index].reported = reported;
        index
    }

    /// A host's name.
    pub(super) fn name(&self, index: usize) -> String {
        self.all[index].name.clone()
    }

    /// The listed hosts with their indices, in the order in which workers are started on them.
    pub(super) fn in_order(&self) -> impl Iterator<Item = (usize, &KnownHost)> {
        self.listed.iter().map(|&index| (index, &self.all[index]))
    }

    /// The slots for workers: all slots of a host before those of the next.
    pub(super) fn slots_in_order(&self) -> impl Iterator<Item = (&str, u32)> {
        let hosts = self.in_order();
        hosts.flat_map(|(_, host)| (0..host.slots).map(|slot| (host.name.as_str(), slot)))
    }

    /// The number of hosts that satisfy a condition, and of their slots.
    pub(super) fn count(&self, are: fn(&KnownHost) -> bool) -> (u32, u32) {
        self.all.iter().filter(|host| are(host)).fold((0, 0), |(hosts, slots), host| {
            (hosts + 1, u32::saturating_add(slots, host.slots))
        })
    }

    /// Assigns the next agent number to a host.
    pub(super) fn reach(&mut self, index: usize) -> AgentId {
        let id = AgentId(self.agents);
        self.agents += 1;
        self.all[index].agent = AgentOnHost::Reaching(id);
        id
    }

    /// The host of an agent.
    pub(super) fn of(&self, agent: AgentId) -> Option<usize> {
        self.all.iter().position(|host| host.agent.id() == Some(agent))
    }

    /// Puts a host on cooldown after a failure. `fraction` is a random number below one.
    pub(super) fn cool_down(
        &mut self,
        index: usize,
        cooldown: Option<(Duration, Duration)>,
        fraction: f64,
        (keeps_workers, now): (bool, Time),
    ) -> Option<Duration> {
        let host = &mut self.all[index];
        host.failures += 1;
        let length = cooldown.map(|range| delay(range, host.failures, fraction));
        let until = length.map(|length| now + length);
        // A longer cooldown stays in force.
        let until = match host.cooldown {
            Some(Cooldown { until: before, .. }) => before.zip(until).map(|(a, b)| a.max(b)),
            None => until,
        };
        let keeps_workers =
            keeps_workers && host.cooldown.is_none_or(|cooldown| cooldown.keeps_workers);
        host.cooldown = Some(Cooldown { until, keeps_workers });
        length
    }

    /// Puts a host that could not be reached on cooldown; returns its length.
    pub(super) fn unreached(&mut self, index: usize, now: Time) -> Duration {
        let host = &mut self.all[index];
        let (least, most) = UNREACHED;
        let length = least.saturating_mul(1 << host.unreached.min(10)).min(most);
        host.unreached += 1;
        host.cooldown = Some(Cooldown { until: Some(now + length), keeps_workers: true });
        length
    }

    /// A host is ready.
    pub(super) fn reached(&mut self, index: usize, agent: AgentId) {
        self.all[index].agent = AgentOnHost::Ready(agent);
        self.all[index].unreached = 0;
    }

    /// Ends the cooldowns that are over.
    pub(super) fn end_cooldowns(&mut self, now: Time) -> Vec<JobEventKind> {
        let mut news = Vec::new();
        for host in &mut self.all {
            let over = |cooldown: &mut Cooldown| cooldown.until.is_some_and(|until| until <= now);
            // It is no event that a host is tried again that could not be reached.
            if host.cooldown.take_if(over).is_some() && host.unreached == 0 && host.slots > 0 {
                news.push(JobEventKind::HostUsable { host: host.name.clone() });
            }
        }
        news
    }

    /// When the next cooldown is over.
    pub(super) fn next_wakeup(&self) -> Option<Time> {
        self.all.iter().filter_map(|host| host.cooldown?.until).min()
    }

    /// Whether more workers may run here later without a change of the list.
    pub(super) fn may_recover(&self) -> bool {
        self.all.iter().any(|host| {
            host.slots > 0 && host.cooldown.is_none_or(|cooldown| cooldown.until.is_some())
        })
    }
}

impl AgentOnHost {
    pub(super) fn id(self) -> Option<AgentId> {
        match self {
            AgentOnHost::None => None,
            AgentOnHost::Reaching(id) | AgentOnHost::Ready(id) => Some(id),
        }
    }
}

impl KnownHost {
    /// Whether a new worker may be started here.
    pub(super) fn is_open(&self) -> bool {
        self.slots > 0 && self.cooldown.is_none()
    }

    /// Whether its agent is ready and new workers may be started.
    pub(super) fn is_ready(&self) -> bool {
        self.is_open() && matches!(self.agent, AgentOnHost::Ready(_))
    }

    /// Whether it is being reached, and new workers will be started on it.
    pub(super) fn is_coming(&self) -> bool {
        self.is_open() && matches!(self.agent, AgentOnHost::Reaching(_))
    }

    /// Whether a worker that runs on this slot may stay.
    pub(super) fn keeps(&self, slot: u32) -> bool {
        slot < self.slots && self.cooldown.is_none_or(|cooldown| cooldown.keeps_workers)
    }
}

/// The cooldown of a host after so many failures, as in Horovod: the minimum doubles with each
/// failure, from the first one on, plus a random fraction of the minimum, within the range.
fn delay((least, most): (Duration, Duration), failures: u32, fraction: f64) -> Duration {
    let doubled = least.saturating_mul(1u32.checked_shl(failures.min(20)).unwrap_or(u32::MAX));
    doubled.saturating_add(least.mul_f64(fraction.clamp(0.0, 1.0))).clamp(least, most.max(least))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers(list: &[(&str, u32)]) -> Vec<HostOffer> {
        list.iter().map(|(host, slots)| HostOffer { host: (*host).into(), slots: *slots }).collect()
    }

    #[test]
    fn hosts_keep_their_order_and_only_changes_are_events() {
        let mut hosts = Hosts::default();
        let first = hosts.list(&offers(&[("b", 2), ("a", 1), ("b", 1)]), HostSourceKind::Script);
        let found = |host: &str, slots| {
            let (host, source) = (host.to_owned(), HostSourceKind::Script);
            JobEventKind::HostFound { host, slots, source }
        };
        assert_eq!(first, [found("b", 3), found("a", 1)]);
        assert_eq!(hosts.all[0].slots, 3);
        assert_eq!(hosts.list(&offers(&[("a", 1), ("b", 3)]), HostSourceKind::Script), []);
        let changed = hosts.list(&offers(&[("c", 4), ("a", 2)]), HostSourceKind::Script);
        let source = HostSourceKind::Script;
        let unlisted = JobEventKind::HostUnlisted { host: "b".into(), source };
        let resized = JobEventKind::HostResized { host: "a".into(), slots: 2, before: 1, source };
        assert_eq!(changed, [unlisted, resized, found("c", 4)]);
        let names: Vec<&str> = hosts.all.iter().map(|host| host.name.as_str()).collect();
        assert_eq!(names, ["b", "a", "c"]);
    }

    #[test]
    fn workers_are_started_in_the_order_of_the_latest_list() {
        let mut hosts = Hosts::default();
        hosts.list(&offers(&[("a", 1), ("b", 1), ("c", 1)]), HostSourceKind::DialedIn);
        hosts.list(&offers(&[("b", 1), ("d", 2), ("a", 1)]), HostSourceKind::DialedIn);
        let slots: Vec<_> = hosts.slots_in_order().collect();
        assert_eq!(slots, [("b", 0), ("d", 0), ("d", 1), ("a", 0)]);
    }

    #[test]
    fn the_first_cooldown_is_twice_the_minimum_and_the_range_holds() {
        let range = (Duration::from_secs(1), Duration::from_secs(10));
        let seconds = |failures, fraction| delay(range, failures, fraction).as_secs_f64();
        assert_eq!(seconds(1, 0.0), 2.0);
        assert_eq!(seconds(1, 0.5), 2.5);
        assert_eq!(seconds(2, 0.0), 4.0);
        assert_eq!(seconds(9, 0.9), 10.0);
        assert_eq!(seconds(4_000_000_000, 0.9), 10.0);
    }

    #[test]
    fn an_unlimited_cooldown_is_not_shortened() {
        let mut hosts = Hosts::default();
        hosts.list(&offers(&[("a", 1)]), HostSourceKind::Script);
        let now = Duration::from_secs(5);
        assert_eq!(hosts.cool_down(0, None, 0.0, (true, now)), None);
        assert!(!hosts.may_recover() && hosts.all[0].keeps(0) && !hosts.all[0].is_open());
        let range = Some((Duration::from_secs(1), Duration::from_secs(2)));
        hosts.cool_down(0, range, 0.0, (false, now));
        assert_eq!(hosts.all[0].cooldown, Some(Cooldown { until: None, keeps_workers: false }));
        assert_eq!(hosts.end_cooldowns(Duration::from_secs(3600)), []);
    }

    #[test]
    fn machines_with_the_same_name_are_told_apart() {
        let mut hosts = Hosts::default();
        let one = hosts.place_reported("worker", "boot-1 pid-1");
        let two = hosts.place_reported("worker", "boot-1 pid-2");
        assert_eq!(hosts.place_reported("worker", "boot-1 pid-1"), one);
        assert_eq!(hosts.place_reported("worker", "boot-1 pid-2"), two);
        let named = hosts.place_reported("worker-2", "boot-2");
        let names: Vec<String> = [one, two, named].map(|index| hosts.name(index)).into();
        assert_eq!(names, ["worker", "worker-2", "worker-2-2"]);
    }
}
