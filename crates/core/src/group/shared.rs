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
//!
//! Tensors in the arena need no staging. Which ones a rank has there it *offers* before a step: in a
//! fourth counter, an even number says none, an odd one that the places lie in its staging memory.
//! Everybody sees the same offers and finds the same tensors that all have there. Who has nothing
//! to offer does not wait for the others.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ronde_control::{Rank, Tuning};

use super::circle::Home;
use crate::buffer::{Region, Segments};
use crate::error::Error;
use crate::transport::shm::{Arena, Counter, SLOTS, Segment, count, has_reached};
use crate::transport::vigil::Vigil;

/// The shared memory of a host as one of its ranks uses it.
pub(crate) struct Stage {
    segment: Arc<Segment>,
    vigil: Arc<Vigil>,
    /// The last use of each slot of this rank's staging memory.
    slots: [Option<Use>; SLOTS],
    arena: Option<Arc<Arena>>,
    /// The rank in each seat.
    ranks: Vec<usize>,
}

/// No counter of steps ever gets here; stray writes mostly do.
const FAR: u64 = 1 << 56;

struct Use {
    ranks: Arc<[usize]>,
    lane: usize,
    step: u64,
}

impl Stage {
    pub(crate) fn new(
        segment: Arc<Segment>,
        vigil: Arc<Vigil>,
        arena: Option<Arc<Arena>>,
        ranks: Vec<usize>,
    ) -> Stage {
        Stage { segment, vigil, slots: Default::default(), arena, ranks }
    }

    pub(super) fn arena(&self) -> Option<&Arc<Arena>> {
        self.arena.as_ref()
    }

    fn await_count(
        &self,
        (lane, rank): (usize, usize),
        counter: Counter,
        needed: u64,
    ) -> Result<(), Error> {
        let word = self.segment.counter(lane, rank, counter);
        if !has_reached(word, needed) {
            self.vigil.waits_for(self.ranks[rank]);
            let reached = || Ok(has_reached(word, needed).then_some(()));
            self.vigil.until(&[], None, reached)?;
        }
        match word.load(Ordering::Relaxed) {
            count if count < FAR => Ok(()),
            count => {
                let who = self.vigil.fate.name(Rank(self.ranks[rank] as u32));
                let what = format!("a counter of {who} is {count:#x}, far beyond any step");
                Err(self.vigil.overwritten(&what))
            }
        }
    }
}

/// What of a row lies in the arena on every member.
pub(crate) struct Common {
    /// The rows of the members, of the common regions only.
    pub(crate) rows: Vec<Segments>,
    /// Which regions these are.
    pub(crate) here: Vec<bool>,
}

/// Instead of a place in the arena.
const NOWHERE: u64 = u64::MAX;

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
        if let Some(last) = &self.stage.slots[slot]
            && (last.lane, last.step) == (*lane, *step)
        {
            return Ok(());
        }
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

    /// Tells the others which regions of this rank's row lie in the arena, and where; a region that
    /// is `None` must go through staging memory anyway. Gives what lies there on every member, and
    /// then the caller takes the step to its end, for others may still read the offer; or nothing,
    /// if some member has nothing there, and then the step has not begun.
    pub(crate) fn offer(&mut self, row: &[Option<Region>]) -> Result<Option<Common>, Error> {
        let needed = 2 * (self.home.step + 1);
        let Some((arena, places)) = self.places(row) else {
            self.set(Counter::Offered, needed);
            return Ok(None);
        };
        self.enter()?;
        let bytes: Vec<u8> = places.iter().flat_map(|place| place.to_ne_bytes()).collect();
        self.staging(self.home.seats.me).part(0..bytes.len()).write(&bytes);
        self.set(Counter::Offered, needed + 1);
        for rank in self.home.seats.ranks.iter() {
            let at = (self.home.lane, *rank);
            self.stage.await_count(at, Counter::Offered, needed)?;
            let word = self.stage.segment.counter(at.0, at.1, Counter::Offered);
            if word.load(Ordering::Acquire) != needed + 1 {
                return Ok(None);
            }
        }
        let read = |place| {
            let mut bytes = vec![0; size_of_val(&*places)];
            self.staging(place).part(0..bytes.len()).read(&mut bytes);
            let (words, _) = bytes.as_chunks::<{ size_of::<u64>() }>();
            words.iter().map(|word| u64::from_ne_bytes(*word)).collect()
        };
        let all: Vec<Vec<u64>> = (0..self.ranks()).map(read).collect();
        Ok(Some(self.common(row, &all, &arena)))
    }

    /// Counts bytes that were reduced in the arena.
    pub(crate) fn note_in_place(&self, bytes: usize) {
        if let Some(arena) = &self.stage.arena {
            arena.in_place().fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Ends a long piece of work when the world does.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.stage.vigil.check()
    }

    /// Where in the arena the regions of a row lie, or [`NOWHERE`]; none if nothing lies there or
    /// there is no room to say so.
    fn places(&self, row: &[Option<Region>]) -> Option<(Arc<Arena>, Vec<u64>)> {
        let arena = self.stage.arena.as_ref()?;
        let place = |region: &Option<Region>| {
            region.and_then(|region| arena.offset(region)).map_or(NOWHERE, |offset| offset as u64)
        };
        let places: Vec<u64> = row.iter().map(place).collect();
        let fits = size_of_val(&*places) <= self.piece();
        // What is empty lies anywhere, and is not worth an offer.
        let solid = |region: &Option<Region>| region.is_some_and(|region| region.length() > 0);
        let some = row.iter().zip(&places).any(|(region, at)| solid(region) && *at != NOWHERE);
        (fits && some).then(|| (arena.clone(), places))
    }

    /// The rows of all members as this rank sees them, cut alike, without what is not everywhere;
    /// a place outside a member's part of the arena counts as nowhere.
    fn common(&self, row: &[Option<Region>], all: &[Vec<u64>], arena: &Arena) -> Common {
        let mut rows = vec![Vec::new(); all.len()];
        let mut here = Vec::with_capacity(row.len());
        for (index, own) in row.iter().enumerate() {
            let region = |(seat, places): (&usize, &Vec<u64>)| {
                arena.region(*seat, places[index] as usize, (*own)?.length())
            };
            let everywhere: Option<Vec<Region>> =
                self.home.seats.ranks.iter().zip(all).map(region).collect();
            here.push(everywhere.is_some());
            for (row, region) in rows.iter_mut().zip(everywhere.into_iter().flatten()) {
                row.push(region);
            }
        }
        Common { rows: rows.into_iter().map(Segments::new).collect(), here }
    }

    fn count(&self, counter: Counter) {
        self.set(counter, self.home.step + 1);
    }

    fn set(&self, counter: Counter, value: u64) {
        let Home { seats, lane, .. } = &*self.home;
        let word = self.stage.segment.counter(*lane, seats.ranks[seats.me], counter);
        count(word, value);
        self.stage.vigil.ring_others();
    }
}
