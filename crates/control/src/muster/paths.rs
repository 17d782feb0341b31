//! What came of all the calls between hosts.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::wire::Callee;
use crate::wire::agent::{Dial, Target};

/// Every call that was asked for, and what came of it once that is known.
pub(crate) struct Paths {
    hosts: usize,
    calls: BTreeMap<(usize, usize), Vec<Call>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) address: SocketAddr,
    pub(crate) outcome: Option<Dial>,
}

impl Paths {
    pub(crate) fn new(hosts: usize) -> Paths {
        Paths { hosts, calls: BTreeMap::new() }
    }

    /// The launcher stands behind the hosts.
    fn number(&self, callee: Callee) -> Option<usize> {
        match callee {
            Callee::Launcher => Some(self.hosts),
            Callee::Host(number) => Some(number as usize),
            Callee::Rank(_) | Callee::DataService => None,
        }
    }

    pub(crate) fn expect(&mut self, from: usize, target: &Target) {
        let Some(to) = self.number(target.callee) else { return };
        let call = |address: &SocketAddr| Call { address: *address, outcome: None };
        self.calls.insert((from, to), target.addresses.iter().map(call).collect());
    }

    pub(crate) fn note(&mut self, from: usize, to: Callee, address: SocketAddr, outcome: &Dial) {
        let Some(to) = self.number(to) else { return };
        let calls = self.calls.get_mut(&(from, to)).into_iter().flatten();
        for call in calls.filter(|call| call.address == address) {
            call.outcome = Some(outcome.clone());
        }
    }

    /// All calls, by who called and who was called; the launcher stands behind the hosts.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = ((usize, usize), &[Call])> {
        self.calls.iter().map(|(pair, calls)| (*pair, calls.as_slice()))
    }

    /// The calls from one host to another.
    pub(crate) fn calls(&self, from: usize, to: usize) -> &[Call] {
        self.calls.get(&(from, to)).map_or(&[], Vec::as_slice)
    }

    /// Whether every host has reached the launcher and whom else it must.
    pub(crate) fn is_complete(&self) -> bool {
        self.broken().next().is_none()
    }

    /// Whether any call has not been answered.
    pub(crate) fn is_waiting(&self) -> bool {
        self.calls.values().flatten().any(|call| call.outcome.is_none())
    }

    /// The needed calls that failed at every address: who, whom (none is the launcher), and how.
    pub(crate) fn broken(&self) -> impl Iterator<Item = (usize, Option<usize>, &[Call])> {
        let broken = self.needed().filter(|(_, calls)| calls.iter().all(|c| c.micros().is_none()));
        let whom = |to: usize| (to < self.hosts).then_some(to);
        broken.map(move |((from, to), calls)| (from, whom(to), calls))
    }

    /// Where `from` reached `to`, fastest first.
    pub(crate) fn reached(&self, from: usize, to: Callee) -> Vec<SocketAddr> {
        let calls = self.number(to).and_then(|to| self.calls.get(&(from, to)));
        let mut found: Vec<(u32, SocketAddr)> = calls
            .into_iter()
            .flatten()
            .filter_map(|call| call.micros().map(|micros| (magnitude(micros), call.address)))
            .collect();
        // Addresses that are about as fast stay in the order in which the host named them.
        found.sort_by_key(|(magnitude, _)| *magnitude);
        found.into_iter().map(|(_, address)| address).collect()
    }

    /// Where others reached a host: what most of them reached first, then what was fast for all.
    pub(crate) fn best_of(&self, to: usize) -> Vec<SocketAddr> {
        let mut found: Vec<(SocketAddr, usize, u32)> = Vec::new();
        for ((from, _), calls) in self.calls.iter().filter(|((_, called), _)| *called == to) {
            debug_assert_ne!(*from, to, "nobody calls itself");
            for call in calls {
                let Some(micros) = call.micros() else { continue };
                match found.iter_mut().find(|(address, ..)| *address == call.address) {
                    Some((_, count, worst)) => {
                        *count += 1;
                        *worst = (*worst).max(magnitude(micros));
                    }
                    None => found.push((call.address, 1, magnitude(micros))),
                }
            }
        }
        found.sort_by_key(|(_, count, worst)| (usize::MAX - count, *worst));
        found.into_iter().map(|(address, ..)| address).collect()
    }

    /// Ranks dial those in front of them, and the launcher.
    fn needed(&self) -> impl Iterator<Item = ((usize, usize), &[Call])> {
        let needed = |from: usize, to: usize| to < from || to == self.hosts;
        self.pairs().filter(move |((from, to), _)| needed(*from, *to))
    }
}

impl Call {
    /// How long it took to be answered by the one who was meant.
    pub(crate) fn micros(&self) -> Option<u32> {
        match self.outcome {
            Some(Dial::Reached { micros }) => Some(micros),
            _ => None,
        }
    }

    /// What came of it instead, in words that read behind the address.
    pub(crate) fn failure(&self) -> Option<String> {
        match &self.outcome {
            Some(Dial::Reached { .. }) => None,
            Some(Dial::Refused) => Some("refused".into()),
            Some(Dial::Stranger) => Some("is somebody else".into()),
            Some(Dial::Failed { error }) => Some(error.clone()),
            Some(Dial::TimedOut) | None => Some("timed out".into()),
        }
    }
}

/// Times that differ by less than a factor of two are the same.
fn magnitude(micros: u32) -> u32 {
    micros.max(1).ilog2()
}
