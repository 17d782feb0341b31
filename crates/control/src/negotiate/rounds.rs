//! What the coordinator knows of rounds without negotiation: who waits in the current one.
//!
//! In such a round the ranks of a host find out by themselves whether all want the same; see
//! `docs/design/0019-express.md`. The coordinator hears of it from a rank that has waited for a
//! while, so that it can say which ranks are late, and from its own rank, which takes part in every
//! round and sees how it ends.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Request, Stall};
use crate::Rank;

#[derive(Default)]
pub(super) struct Rounds {
    /// The last round that has ended.
    ended: u64,
    waiting: BTreeMap<Rank, RoundWait>,
}

struct RoundWait {
    request: Request,
    round: u64,
    since: Duration,
}

impl Rounds {
    /// A rank waits; the message may be older than the end of its round.
    pub(super) fn waits(&mut self, rank: Rank, request: Request, round: u64, since: Duration) {
        if round > self.ended {
            self.waiting.insert(rank, RoundWait { request, round, since });
        }
    }

    pub(super) fn ended(&mut self, round: u64) {
        self.ended = round;
        self.waiting.retain(|_, waiting| waiting.round > round);
    }

    /// What a rank waits for, and since when.
    pub(super) fn awaited_by(&self, rank: Rank) -> Option<(&str, Duration)> {
        let waiting = self.waiting.get(&rank)?;
        Some((&waiting.request.name, waiting.since))
    }

    /// Tensors that have been waiting since `before` or longer, in a world of `size` ranks.
    pub(super) fn stalls(&self, before: Duration, size: usize) -> Vec<Stall> {
        let mut stalls: Vec<Stall> = Vec::new();
        for (rank, RoundWait { request, since, .. }) in &self.waiting {
            match stalls.iter_mut().find(|stall| stall.name == request.name) {
                Some(stall) => {
                    stall.since = stall.since.min(*since);
                    stall.waiting.push(*rank);
                    stall.missing.retain(|missing| missing != rank);
                }
                None => stalls.push(Stall {
                    name: request.name.clone(),
                    since: *since,
                    waiting: vec![*rank],
                    missing: (0..size as u32).map(Rank).filter(|other| other != rank).collect(),
                }),
            }
        }
        stalls.retain(|stall| stall.since <= before);
        stalls
    }
}
