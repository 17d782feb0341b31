//! What came of all the calls between hosts.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::wire::Callee;
use crate::wire::agent::{Dial, Target};

/// Every call that was asked for, and what came of it once that is known.
pub(super) struct Paths {
    hosts: usize,
    calls: BTreeMap<(usize, usize), Vec<Call>>,
}

#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) address: SocketAddr,
    pub(super) outcome: Option<Dial>,
}

impl Paths {
    pub(super) fn new(hosts: usize) -> Paths {
        Paths { hosts, calls: BTreeMap::new() }
    }

    /// The launcher stands behind the hosts.
    fn number(&self, callee: Callee) -> Option<usize> {
        match callee {
            Callee::Launcher => Some(self.hosts),
            Callee::Host(number) => Some(number as usize),
            Callee::Rank(_) => None,
        }
    }

    pub(super) fn expect(&mut self, from: usize, target: &Target) {
        let Some(to) = self.number(target.callee) else { return };
        let call = |address: &SocketAddr| Call { address: *address, outcome: None };
        self.calls.insert((from, to), target.addresses.iter().map(call).collect());
    }

    pub(super) fn note(&mut self, from: usize, to: Callee, address: SocketAddr, outcome: &Dial) {
        let Some(to) = self.number(to) else { return };
        let calls = self.calls.get_mut(&(from, to)).into_iter().flatten();
        for call in calls.filter(|call| call.address == address) {
            call.outcome = Some(outcome.clone());
        }
    }

    /// Whether every host has reached the launcher and whom else it must.
    pub(super) fn is_complete(&self) -> bool {
        self.needed().all(|(_, calls)| calls.iter().any(|call| micros(call).is_some()))
    }

    /// Whether any call has not been answered.
    pub(super) fn is_waiting(&self) -> bool {
        self.calls.values().flatten().any(|call| call.outcome.is_none())
    }

    /// The needed calls that failed at every address: who, whom (none is the launcher), and how.
    pub(super) fn broken(&self) -> Vec<(usize, Option<usize>, &[Call])> {
        let broken = self.needed().filter(|(_, calls)| calls.iter().all(|c| micros(c).is_none()));
        let whom = |to: usize| (to < self.hosts).then_some(to);
        broken.map(|((from, to), calls)| (from, whom(to), calls)).collect()
    }

    /// Where `from` reached `to`, fastest first.
    pub(super) fn reached(&self, from: usize, to: Callee) -> Vec<SocketAddr> {
        let calls = self.number(to).and_then(|to| self.calls.get(&(from, to)));
        let mut found: Vec<(u32, SocketAddr)> = calls
            .into_iter()
            .flatten()
            .filter_map(|call| micros(call).map(|micros| (magnitude(micros), call.address)))
            .collect();
        // Addresses that are about as fast stay in the order in which the host named them.
        found.sort_by_key(|(magnitude, _)| *magnitude);
        found.into_iter().map(|(_, address)| address).collect()
    }

    /// Where others reached a host: what most of them reached first, then what was fast for all.
    pub(super) fn best_of(&self, to: usize) -> Vec<SocketAddr> {
        let mut found: Vec<(SocketAddr, usize, u32)> = Vec::new();
        for ((from, _), calls) in self.calls.iter().filter(|((_, called), _)| *called == to) {
            debug_assert_ne!(*from, to, "nobody calls itself");
            for call in calls {
                let Some(micros) = micros(call) else { continue };
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
        self.calls
            .iter()
            .filter(move |((from, to), _)| needed(*from, *to))
            .map(|(pair, calls)| (*pair, calls.as_slice()))
    }
}

fn micros(call: &Call) -> Option<u32> {
    match call.outcome {
        Some(Dial::Reached { micros }) => Some(micros),
        _ => None,
    }
}

/// Times that differ by less than a factor of two are the same.
fn magnitude(micros: u32) -> u32 {
    micros.max(1).ilog2()
}
