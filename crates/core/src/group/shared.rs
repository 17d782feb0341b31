//! A set of ranks that share memory, and the steps they take in it.
//!
//! Every collective is a row of steps, the same row on every member. A step uses one slot of each
//! rank's staging memory, the next step of the same set the next slot, and so on around. Each member has three
//! counters in the set's lane that only it writes, each counting steps: what it has *published*, what
//! it has *reduced*, and what it has *finished* reading. Two rules make the memory safe to use again:
//!
//! - A rank writes a slot of its staging memory only when all members of the set that used that slot
//!   last, be it this set or another, have finished the step in which they did.
//! - A rank reads the memory of another only after that one's counter says that it may.

use std::sync::Arc;

use ronde_control::Tuning;

use super::circle::Home;
use crate::buffer::Region;
use crate::error::Error;
use crate::transport::shm::{Counter, SLOTS, Segment, count, has_reached};
use crate::transport::vigil::Vigil;

/// The shared memory of a host as one of its ranks uses it.
pub(crate) struct Stage {
    segment: Arc<Segment>,
    vigil: Arc<Vigil>,
    /// The last use of each slot of this rank's staging memory.
    slots: [Option<Use>; SLOTS],
}

struct Use {
    ranks: Arc<[usize]>,
    lane: usize,
    step: u64,
}

impl Stage {
    pub(crate) fn new(segment: Arc<Segment>, vigil: Arc<Vigil>) -> Stage {
        Stage { segment, vigil, slots: Default::default() }
    }

    fn await_count(
        &self,
        (lane, rank): (usize, usize),
        counter: Counter,
        needed: u64,
    ) -> Result<(), Error> {
        let word = self.segment.counter(lane, rank, counter);
        let reached = || Ok(has_reached(word, needed).then_some(()));
        self.vigil.until(&[], None, reached).map(|_| ())
    }
}

pub(crate) struct Shared<'a> {
    stage: &'a mut Stage,
    home: &'a mut Home,
    tuning: Tuning,
}

impl<'a> Shared<'a> {
    pub(super) fn new(stage: &'a mut Stage, home: &'a mut Home, tuning: Tuning) -> Shared<'a> {
        Shared { stage, home, tuning }
    }

    pub(crate) fn me(&self) -> usize {
        self.home.seats.me
    }

    pub(crate) fn ranks(&self) -> usize {
        self.home.seats.ranks.len()
    }

    /// What was tuned, as far as a step can carry it.
    pub(crate) fn tuning(&self) -> Tuning {
        let one_shot = self.tuning.one_shot.min(self.piece() as u64);
        Tuning { one_shot, ..self.tuning }
    }

    /// The bytes that a step can carry per rank.
    pub(crate) fn piece(&self) -> usize {
        self.stage.segment.piece()
    }

    /// The step that everything below is about.
    pub(crate) fn step(&self) -> u64 {
        self.home.step
    }

    /// Turns to another step: some algorithms begin one before they have left the last.
    pub(crate) fn turn_to(&mut self, step: u64) {
        self.home.step = step;
    }

    /// Enters a step in which this rank writes its staging memory: waits until that is free again.
    pub(crate) fn enter(&mut self) -> Result<(), Error> {
        let Home { seats, lane, step } = &*self.home;
        let this = Use { ranks: seats.ranks.clone(), lane: *lane, step: *step };
        let slot = (step % SLOTS as u64) as usize;
        if let Some(last) = self.stage.slots[slot].take() {
            for rank in last.ranks.iter() {
                self.stage.await_count((last.lane, *rank), Counter::Finished, last.step + 1)?;
            }
        }
        self.stage.slots[slot] = Some(this);
        Ok(())
    }

    /// The staging memory of a member in this step.
    pub(crate) fn staging(&self, place: usize) -> Region {
        let slot = (self.home.step % SLOTS as u64) as usize;
        self.stage.segment.staging(self.home.seats.ranks[place], slot)
    }

    pub(crate) fn publish(&self) {
        self.count(Counter::Published);
    }

    pub(crate) fn reduced(&self) {
        self.count(Counter::Reduced);
    }

    /// Leaves the step: this rank reads nothing of the others any more.
    pub(crate) fn finish(&mut self) {
        self.count(Counter::Finished);
        self.home.step += 1;
    }

    pub(crate) fn await_published(&self, place: usize) -> Result<(), Error> {
        let at = (self.home.lane, self.home.seats.ranks[place]);
        self.stage.await_count(at, Counter::Published, self.home.step + 1)
    }

    pub(crate) fn await_reduced(&self, place: usize) -> Result<(), Error> {
        let at = (self.home.lane, self.home.seats.ranks[place]);
        self.stage.await_count(at, Counter::Reduced, self.home.step + 1)
    }

    fn count(&self, counter: Counter) {
        let Home { seats, lane, step } = &*self.home;
        let word = self.stage.segment.counter(*lane, seats.ranks[seats.me], counter);
        count(word, step + 1);
        self.stage.vigil.ring_others();
    }
}
