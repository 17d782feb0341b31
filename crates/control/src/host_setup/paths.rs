//! The results of all calls between hosts.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::wire::Callee;
use crate::wire::agent::{Dial, DialTarget};

/// Every requested call, and its result once that is known.
pub(crate) struct Paths {
    hosts: usize,
    calls: BTreeMap<(usize, usize), Vec<PathCheck>>,
}

#[derive(Clone, Debug)]
pub(crate) struct PathCheck {
    pub(crate) address: SocketAddr,
    pub(crate) outcome: Option<Dial>,
}

impl Paths {
    pub(crate) fn new(hosts: usize) -> Paths {
        Paths { hosts, calls: BTreeMap::new() }
    }

    /// The number of a host; the launcher comes after the hosts.
    fn number(&self, callee: Callee) -> Option<usize> {
        match callee {
            Callee::Launcher => Some(self.hosts),
            Callee::Host(number) => Some(number as usize),
            Callee::Rank(_) | Callee::DataService | Callee::StandingAgent => None,
        }
    }

    pub(crate) fn expect(&mut self, from: usize, target: &DialTarget) {
        let Some(to) = self.number(target.callee) else { return };
        let call = |address: &SocketAddr| PathCheck { address: *address, outcome: None };
        self.calls.insert((from, to), target.addresses.iter().map(call).collect());
    }

    pub(crate) fn record(&mut self, from: usize, to: Callee, address: SocketAddr, outcome: &Dial) {
        let Some(to) = self.number(to) else { return };
        let calls = self.calls.get_mut(&(from, to)).into_iter().flatten();
        for call in calls.filter(|call| call.address == address) {
            call.outcome = Some(outcome.clone());
        }
    }

    /// All calls by caller and callee; the launcher comes after the hosts.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = ((usize, usize), &[PathCheck])> {
        self.calls.iter().map(|(pair, calls)| (*pair, calls.as_slice()))
    }

    /// The calls from one host to another.
    pub(crate) fn calls(&self, from: usize, to: usize) -> &[PathCheck] {
        self.calls.get(&(from, to)).map_or(&[], Vec::as_slice)
    }

    /// Whether every host has reached the launcher and all other hosts that it needs.
    pub(crate) fn is_complete(&self) -> bool {
        self.broken().next().is_none()
    }

    /// Whether any call has no result yet.
    pub(crate) fn is_waiting(&self) -> bool {
        self.calls.values().flatten().any(|call| call.outcome.is_none())
    }

    /// The needed calls that failed at every address: from, to (`None` is the launcher), and
    /// results.
    pub(crate) fn broken(&self) -> impl Iterator<Item = (usize, Option<usize>, &[PathCheck])> {
        let broken = self.needed().filter(|(_, calls)| calls.iter().all(|c| c.micros().is_none()));
        let callee = |to: usize| (to < self.hosts).then_some(to);
        broken.map(move |((from, to), calls)| (from, callee(to), calls))
    }

    /// The addresses at which `from` reached `to`, fastest first.
    pub(crate) fn reached(&self, from: usize, to: Callee) -> Vec<SocketAddr> {
        let calls = self.number(to).and_then(|to| self.calls.get(&(from, to)));
        let mut found: Vec<(u32, SocketAddr)> = calls
            .into_iter()
            .flatten()
            .filter_map(|call| call.micros().map(|micros| (magnitude(micros), call.address)))
            .collect();
        // Addresses of similar speed stay in the order in which the host listed them.
        found.sort_by_key(|(magnitude, _)| *magnitude);
        found.into_iter().map(|(_, address)| address).collect()
    }

    /// The addresses at which others reached a host: by how many did, then by the worst time.
    pub(crate) fn best_of(&self, to: usize) -> Vec<SocketAddr> {
        let mut found: Vec<(SocketAddr, usize, u32)> = Vec::new();
        for ((from, _), calls) in self.calls.iter().filter(|((_, called), _)| *called == to) {
            debug_assert_ne!(*from, to, "no host dials itself");
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

    /// The calls that ranks need: to the launcher and to earlier hosts.
    fn needed(&self) -> impl Iterator<Item = ((usize, usize), &[PathCheck])> {
        let needed = |from: usize, to: usize| to < from || to == self.hosts;
        self.pairs().filter(move |((from, to), _)| needed(*from, *to))
    }
}

impl PathCheck {
    /// How long the expected process took to answer, if it did.
    pub(crate) fn micros(&self) -> Option<u32> {
        match self.outcome {
            Some(Dial::Reached { micros }) => Some(micros),
            _ => None,
        }
    }

    /// What happened otherwise. The text follows the address.
    pub(crate) fn failure(&self) -> Option<String> {
        match &self.outcome {
            Some(Dial::Reached { .. }) => None,
            Some(Dial::Refused) => Some("refused".into()),
            Some(Dial::WrongProcess) => Some("belongs to a different process".into()),
            Some(Dial::Failed { error }) => Some(error.clone()),
            Some(Dial::TimedOut) | None => Some("timed out".into()),
        }
    }
}

/// Times that differ by less than about a factor of two have the same magnitude.
fn magnitude(micros: u32) -> u32 {
    micros.max(1).ilog2()
}
