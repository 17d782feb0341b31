//! The express lane: collectives of all ranks of a host that need no negotiation.
//!
//! In each round (see `round`) every rank writes the fingerprint of what it has submitted, and its
//! data with it. If all fingerprints are equal, everybody has everything and computes the result.
//! If they differ, or a rank refuses, nothing has happened: the ranks announce what they have
//! submitted, as usual. Rounds take part in no order but their own.
//!
//! A round starts in one cache line per rank: the words, and as much data as fits behind them.
#![expect(unsafe_code, reason = "the words of a round say who may touch which memory")]

use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Segment;
use super::layout::EXPRESS;
use super::round::{REFUSAL, RoundWords};

/// This rank's view of the lane.
pub(crate) struct ExpressLane {
    segment: Arc<Segment>,
    me: usize,
    /// The round whose answer this rank does not know yet.
    round: u64,
    /// What this rank wants in it, once it has said so.
    wish: Option<u64>,
    /// How many ranks are known to want the same.
    equal: usize,
}

/// What a rank knows of the current round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoundAnswer {
    /// Some ranks have not said what they want.
    Open,
    /// All want the same: [`ExpressLane::contributions`] has the data.
    Agreed,
    /// They do not, and the round is over.
    Refused,
}

/// A rank has written a length that does not fit into its place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CorruptLength {
    /// Its local index.
    pub(crate) rank: usize,
}

impl ExpressLane {
    /// The most data that a rank can send along, in bytes.
    pub(crate) const LIMIT: usize = EXPRESS;

    pub(crate) fn new(segment: Arc<Segment>, me: usize) -> ExpressLane {
        ExpressLane { segment, me, round: 1, wish: None, equal: 0 }
    }

    /// The number of the current round.
    pub(crate) fn round(&self) -> u64 {
        self.round
    }

    /// Says what this rank wants, unless it is too early for that. `write` gets room for `length`
    /// bytes of data.
    pub(crate) fn offer(
        &mut self,
        fingerprint: u64,
        length: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> bool {
        assert!(self.wish.is_none() && length <= EXPRESS, "one offer in a round, and it fits");
        let others = (0..self.segment.ranks()).filter(|rank| *rank != self.me);
        let before = self.round - 1;
        if fingerprint == REFUSAL
            || !others.clone().all(|rank| self.words(rank, before).has(before))
        {
            return false;
        }
        let start = self.segment.express_body(self.me, self.half());
        // SAFETY: all have the answer of the round before the last, which was the last to use this
        // place, and nobody looks here before the words of this round are written. The slice ends
        // before that.
        write(unsafe { slice::from_raw_parts_mut(start, length) });
        self.length(self.me).store(length as u64, Ordering::Relaxed);
        self.words(self.me, self.round).publish(self.round, fingerprint);
        (self.wish, self.equal) = (Some(fingerprint), 0);
        true
    }

    /// Looks for the answer to this rank's offer.
    pub(crate) fn answer(&mut self) -> RoundAnswer {
        let Some(wish) = self.wish else { return RoundAnswer::Open };
        while self.equal < self.segment.ranks() {
            match self.words(self.equal, self.round).wish(self.round) {
                None => return RoundAnswer::Open,
                Some(other) if other == wish => self.equal += 1,
                Some(_) => {
                    self.end_round();
                    return RoundAnswer::Refused;
                }
            }
        }
        RoundAnswer::Agreed
    }

    /// The data of all ranks, once they agree.
    pub(crate) fn contributions(&self) -> Result<Vec<&[u8]>, CorruptLength> {
        assert_eq!(self.equal, self.segment.ranks(), "the ranks agree");
        let contribution = |rank| {
            let length = self.length(rank).load(Ordering::Relaxed) as usize;
            if length > EXPRESS {
                return Err(CorruptLength { rank });
            }
            let start = self.segment.express_body(rank, self.half());
            // SAFETY: the rank has written its data before its words, and writes to this place
            // again only when all have gone on to the next round, for which this borrow must end.
            Ok(unsafe { slice::from_raw_parts(start, length) })
        };
        (0..self.segment.ranks()).map(contribution).collect()
    }

    /// Ends a round after an agreement.
    pub(crate) fn end_round(&mut self) {
        self.round += 1;
        self.wish = None;
    }

    /// Whether others wait for this rank's word in the current round.
    pub(crate) fn is_called(&self) -> bool {
        self.wish.is_none()
            && (0..self.segment.ranks()).any(|rank| self.words(rank, self.round).has(self.round))
    }

    /// Whether the current round may have an answer that this rank has not seen.
    pub(crate) fn has_news(&self) -> bool {
        let next = |rank| self.words(rank, self.round).has(self.round);
        self.wish.is_some() && self.equal < self.segment.ranks() && next(self.equal)
    }

    /// Refuses, because others wait and this rank has something else in flight; ends the round.
    pub(crate) fn refuse(&mut self) {
        // Others have written their words for this round, so all have for the one before.
        self.words(self.me, self.round).publish(self.round, REFUSAL);
        self.end_round();
    }

    fn half(&self) -> usize {
        (self.round % 2) as usize
    }

    fn words(&self, rank: usize, round: u64) -> RoundWords<'_> {
        let half = (round % 2) as usize;
        RoundWords {
            round: self.segment.express_word(rank, half, 0),
            wish: self.segment.express_word(rank, half, 1),
        }
    }

    fn length(&self, rank: usize) -> &AtomicU64 {
        self.segment.express_word(rank, self.half(), 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(ranks: usize) -> Vec<ExpressLane> {
        let (segment, _fd) = Segment::create(ranks).unwrap();
        let segment = Arc::new(segment);
        (0..ranks).map(|me| ExpressLane::new(segment.clone(), me)).collect()
    }

    fn offer(lane: &mut ExpressLane, wish: u64, data: &[u8]) -> bool {
        lane.offer(wish, data.len(), |room| room.copy_from_slice(data))
    }

    #[test]
    fn ranks_that_want_the_same_have_all_data() {
        let mut lanes = lanes(3);
        for round in 0..5u8 {
            for (me, lane) in lanes.iter_mut().enumerate() {
                assert!(offer(lane, 7, &[round, me as u8]));
            }
            for lane in &mut lanes {
                assert_eq!(lane.answer(), RoundAnswer::Agreed);
                let data: Vec<&[u8]> = lane.contributions().unwrap();
                assert_eq!(data, [[round, 0], [round, 1], [round, 2]]);
            }
            lanes.iter_mut().for_each(ExpressLane::end_round);
        }
    }

    #[test]
    fn a_round_is_open_until_the_last_has_spoken_and_one_refusal_ends_it_for_all() {
        let mut lanes = lanes(3);
        assert!(!lanes[1].is_called() && offer(&mut lanes[0], 7, &[]));
        assert_eq!(lanes[0].answer(), RoundAnswer::Open);
        assert!(lanes[1].is_called() && !lanes[0].is_called() && !lanes[0].has_news());
        lanes[1].refuse();
        assert!(lanes[0].has_news() && !lanes[1].is_called());
        assert_eq!(lanes[0].answer(), RoundAnswer::Refused);
        // Rank 2 has not spoken: nobody may start the next round yet.
        assert!(!offer(&mut lanes[0], 8, &[]) && !offer(&mut lanes[1], 8, &[]));
        assert!(offer(&mut lanes[2], 7, &[]));
        assert_eq!(lanes[2].answer(), RoundAnswer::Refused);
        for lane in &mut lanes {
            assert!(offer(lane, 9, &[]));
        }
        assert!(lanes.iter_mut().all(|lane| lane.answer() == RoundAnswer::Agreed));
    }

    #[test]
    fn a_length_beyond_the_place_is_an_error() {
        let mut lanes = lanes(2);
        lanes.iter_mut().for_each(|lane| assert!(offer(lane, 7, &[1])));
        lanes[0].length(1).store(u64::MAX, Ordering::Relaxed);
        assert_eq!(lanes[0].answer(), RoundAnswer::Agreed);
        assert_eq!(lanes[0].contributions(), Err(CorruptLength { rank: 1 }));
    }
}
