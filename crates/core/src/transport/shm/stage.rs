//! A set of ranks that share memory, and the steps they take in it.
//!
//! Every collective is a row of steps, the same row on every member. A step uses one slot of each
//! rank's staging memory, the next step of the same set the next slot, and so on around. Each member has three
//! counters in the set's lane that only it writes, each counting steps: what it has *published*, what
//! it has *reduced*, and what it has *finished* reading. Three rules say who may touch the memory:
//!
//! 1. A rank writes a slot of its staging memory only when all members of the set that used that slot
//!    last, be it this set or another, have finished the step in which they did; and only until it
//!    publishes the step, but for the part that it keeps.
//! 2. A rank reads the memory of another only between that one's publishing and its own finishing of
//!    the step; what that one keeps, only from when it has reduced the step.
//! 3. All members run the same algorithm on the same sizes, so each knows what the others keep.
//!
//! This file turns the rules into slices: each borrows the set, and counting takes the set for itself,
//! so no slice outlives its right. What one process cannot see of another is what the third rule
//! promises.
//!
//! Tensors in the arena need no staging. Which ones a rank has there it *offers* before a step: in a
//! fourth counter, an even number says none, an odd one that the places lie in its staging memory.
//! Everybody sees the same offers and finds the same tensors that all have there. Who has nothing
//! to offer does not wait for the others.
#![expect(
    unsafe_code,
    reason = "counters say who may touch shared memory, and no compiler reads them"
)]

use std::marker::PhantomData;
use std::ops::Range;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ronde_control::{Rank, Tuning};

use super::{Arena, Counter, SLOTS, Segment, count, has_reached};
use crate::buffer::RowMut;
use crate::error::Error;
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
    /// What this rank still writes; all of it until the step is published.
    kept: Kept,
}

enum Kept {
    All,
    Part(Range<usize>),
}

/// The members of a set that share memory with this rank.
pub(crate) struct Home {
    /// Their seats in the shared memory.
    pub(crate) seats: Arc<[usize]>,
    /// This rank's place among them.
    pub(crate) me: usize,
    /// The lane of counters.
    pub(crate) lane: usize,
    /// Steps taken.
    pub(crate) step: u64,
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

    pub(crate) fn arena(&self) -> Option<&Arc<Arena>> {
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

/// The tensors of a row that lie in the arena on every member, as long as they belong to all.
pub(crate) struct Common<'a> {
    /// Where those of each member start.
    rows: Vec<Vec<*mut u8>>,
    /// How long they are, on every member.
    lengths: Vec<usize>,
    /// Which of the row these are.
    here: Vec<bool>,
    /// Keeps the memory of the others.
    _arena: Arc<Arena>,
    own: PhantomData<&'a mut [u8]>,
}

impl Common<'_> {
    /// The bytes of each member's row.
    pub(crate) fn length(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// `range` of everybody's row, for the one rank that reduces it.
    pub(crate) fn slice(&mut self, range: &Range<usize>) -> Vec<RowMut<'_>> {
        let row = |starts: &Vec<*mut u8>| {
            // SAFETY: each row is another's, and all borrow this for themselves.
            RowMut::new(unsafe { self.parts(starts, range) })
        };
        self.rows.iter().map(row).collect()
    }

    /// The parts of tensors that start there and lie in `range` of their row.
    ///
    /// # Safety
    /// While they live, there are no others of this row.
    unsafe fn parts<'b>(&self, starts: &[*mut u8], range: &Range<usize>) -> Vec<&'b mut [u8]> {
        let (mut base, mut parts) = (0, Vec::with_capacity(starts.len()));
        for (start, length) in starts.iter().zip(&self.lengths) {
            let (low, high) = (range.start.max(base), range.end.min(base + length));
            if low < high {
                // SAFETY: an offer is checked to lie in its rank's part of the arena, and so does a
                // part of it.
                let start = unsafe { start.add(low - base) };
                // SAFETY: the arena is kept. From the offer until all have reduced, each rank touches
                // its slice only, the same one of everybody's row; in this process the caller vouches
                // for it, and the rank's own tensors are borrowed as long.
                parts.push(unsafe { slice::from_raw_parts_mut(start, high - low) });
            }
            base += length;
        }
        parts
    }

    /// Which tensors of the row have been reduced; the owner has all back.
    pub(crate) fn end(self) -> Vec<bool> {
        self.here
    }
}

/// Instead of a place in the arena.
const NOWHERE: u64 = u64::MAX;

pub(crate) struct Shared<'a> {
    stage: &'a mut Stage,
    home: &'a mut Home,
    tuning: Tuning,
}

impl<'a> Shared<'a> {
    pub(crate) fn new(stage: &'a mut Stage, home: &'a mut Home, tuning: Tuning) -> Shared<'a> {
        Shared { stage, home, tuning }
    }

    pub(crate) fn me(&self) -> usize {
        self.home.me
    }

    pub(crate) fn ranks(&self) -> usize {
        self.home.seats.len()
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
    pub(crate) fn enter(&mut self) -> Result<&mut [u8], Error> {
        let Home { seats, lane, step, .. } = &*self.home;
        let slot = (step % SLOTS as u64) as usize;
        if self.this_use().is_none() {
            let this = Use { ranks: seats.clone(), lane: *lane, step: *step, kept: Kept::All };
            if let Some(last) = self.stage.slots[slot].take() {
                for rank in last.ranks.iter() {
                    self.stage.await_count((last.lane, *rank), Counter::Finished, last.step + 1)?;
                }
            }
            self.stage.slots[slot] = Some(this);
        }
        let is_own = self.this_use().is_some_and(|this| matches!(this.kept, Kept::All));
        assert!(is_own, "what is published is not written any more");
        let (start, length) = (self.staging(self.home.me), self.piece());
        // SAFETY: by rule 1 nobody else touches the slot until it is published, which takes the set
        // for itself, as entering does: so no other slice of it is alive here either.
        Ok(unsafe { slice::from_raw_parts_mut(start, length) })
    }

    /// Lets the others read what this rank has written.
    pub(crate) fn publish(&mut self) {
        self.publish_but(0..0);
    }

    /// The same, but for a part that this rank goes on writing until it has reduced the step.
    pub(crate) fn publish_but(&mut self, kept: Range<usize>) {
        assert!(kept.end <= self.piece(), "what is kept is a part");
        let this = self.this_use_mut().expect("a step is entered before it is published");
        this.kept = Kept::Part(kept);
        self.count(Counter::Published);
    }

    pub(crate) fn await_published(&self, place: usize) -> Result<(), Error> {
        let at = (self.home.lane, self.home.seats[place]);
        self.stage.await_count(at, Counter::Published, self.home.step + 1)
    }

    /// What a member has published, as far as it does not keep it; waits for it.
    pub(crate) fn published(&self, place: usize, range: Range<usize>) -> Result<&[u8], Error> {
        self.await_published(place)?;
        Ok(self.read(place, range))
    }

    /// What all members have published of the part that this rank keeps, nothing in its own place;
    /// and that part itself, to be written. Waits for everybody.
    pub(crate) fn reducing(&mut self) -> Result<(Vec<&[u8]>, &mut [u8]), Error> {
        (0..self.ranks()).try_for_each(|place| self.await_published(place))?;
        let me = self.home.me;
        let kept = match self.this_use().map(|this| &this.kept) {
            Some(Kept::Part(kept)) => kept.clone(),
            _ => panic!("a step is published before it is reduced"),
        };
        // SAFETY: publishing has checked that the part lies in the piece.
        let start = unsafe { self.staging(me).add(kept.start) };
        // SAFETY: by rule 2 nobody else touches what this rank keeps until it has reduced the step,
        // which takes the set for itself, as this does.
        let own = unsafe { slice::from_raw_parts_mut(start, kept.len()) };
        let theirs = |place| if place == me { &[] } else { self.read(place, kept.clone()) };
        Ok(((0..self.ranks()).map(theirs).collect(), own))
    }

    /// This rank has reduced what it kept, and gives that to the others too.
    pub(crate) fn reduced(&mut self) {
        if let Some(this) = self.this_use_mut() {
            this.kept = Kept::Part(0..0);
        }
        self.count(Counter::Reduced);
    }

    pub(crate) fn await_reduced(&self, place: usize) -> Result<(), Error> {
        let at = (self.home.lane, self.home.seats[place]);
        self.stage.await_count(at, Counter::Reduced, self.home.step + 1)
    }

    /// What a member had kept until it had reduced it; waits for it.
    pub(crate) fn result(&self, place: usize, range: Range<usize>) -> Result<&[u8], Error> {
        self.await_reduced(place)?;
        Ok(self.read(place, range))
    }

    /// Leaves the step: this rank reads nothing of the others any more.
    pub(crate) fn finish(&mut self) {
        self.count(Counter::Finished);
        self.home.step += 1;
    }

    /// Tells the others which tensors of this rank lie in the arena, and where; one that is `None`
    /// must go through staging memory anyway. Gives what lies there on every member, and then the
    /// caller takes the step to its end, for others may still read the offer; or nothing, if some
    /// member has nothing there, and then the step has not begun.
    pub(crate) fn offer<'b>(
        &mut self,
        row: Vec<Option<&'b mut [u8]>>,
    ) -> Result<Option<Common<'b>>, Error> {
        let needed = 2 * (self.home.step + 1);
        let Some((arena, places)) = self.places(&row) else {
            self.set(Counter::Offered, needed);
            return Ok(None);
        };
        let bytes: Vec<u8> = places.iter().flat_map(|place| place.to_ne_bytes()).collect();
        self.enter()?[..bytes.len()].copy_from_slice(&bytes);
        self.set(Counter::Offered, needed + 1);
        for rank in self.home.seats.iter() {
            let at = (self.home.lane, *rank);
            self.stage.await_count(at, Counter::Offered, needed)?;
            let word = self.stage.segment.counter(at.0, at.1, Counter::Offered);
            if word.load(Ordering::Acquire) != needed + 1 {
                return Ok(None);
            }
        }
        // All have offered, so all read what all have written.
        if let Some(this) = self.this_use_mut() {
            this.kept = Kept::Part(0..0);
        }
        let read = |place| {
            let (words, _) = self.read(place, 0..bytes.len()).as_chunks::<{ size_of::<u64>() }>();
            words.iter().map(|word| u64::from_ne_bytes(*word)).collect()
        };
        let all: Vec<Vec<u64>> = (0..self.ranks()).map(read).collect();
        Ok(Some(self.common(row, &all, arena)))
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

    /// Where in the arena the tensors of a row lie, or [`NOWHERE`]; none if nothing lies there or
    /// there is no room to say so.
    fn places(&self, row: &[Option<&mut [u8]>]) -> Option<(Arc<Arena>, Vec<u64>)> {
        let arena = self.stage.arena.as_ref()?;
        let place = |tensor: &Option<&mut [u8]>| {
            let offset = tensor.as_ref().and_then(|tensor| arena.offset(tensor));
            offset.map_or(NOWHERE, |offset| offset as u64)
        };
        let places: Vec<u64> = row.iter().map(place).collect();
        let fits = size_of_val(&*places) <= self.piece();
        // What is empty lies anywhere, and is not worth an offer.
        let solid =
            |tensor: &Option<&mut [u8]>| tensor.as_ref().is_some_and(|tensor| !tensor.is_empty());
        let some = row.iter().zip(&places).any(|(tensor, at)| solid(tensor) && *at != NOWHERE);
        (fits && some).then(|| (arena.clone(), places))
    }

    /// The rows of all members as this rank sees them, cut alike, without what is not everywhere;
    /// a place outside a member's part of the arena counts as nowhere.
    fn common<'b>(
        &self,
        row: Vec<Option<&'b mut [u8]>>,
        all: &[Vec<u64>],
        arena: Arc<Arena>,
    ) -> Common<'b> {
        let mut rows = vec![Vec::new(); all.len()];
        let (mut here, mut lengths) = (Vec::with_capacity(row.len()), Vec::new());
        for (index, own) in row.into_iter().enumerate() {
            let length = own.as_ref().map_or(0, |own| own.len());
            let own = own.map(<[u8]>::as_mut_ptr);
            let start = |(place, places): (usize, &Vec<u64>)| match place == self.home.me {
                true => own.filter(|_| places[index] != NOWHERE),
                false => arena.address(self.home.seats[place], places[index] as usize, length),
            };
            let starts = all.iter().enumerate().map(start).collect::<Option<Vec<*mut u8>>>();
            let everywhere = starts.filter(|_| own.is_some());
            here.push(everywhere.is_some());
            if let Some(starts) = everywhere {
                lengths.push(length);
                rows.iter_mut().zip(starts).for_each(|(row, start)| row.push(start));
            }
        }
        Common { rows, lengths, here, _arena: arena, own: PhantomData }
    }

    /// This rank's use of the slot of this step, if it has entered the step.
    fn this_use(&self) -> Option<&Use> {
        let Home { lane, step, .. } = &*self.home;
        let slot = self.stage.slots[(step % SLOTS as u64) as usize].as_ref();
        slot.filter(|last| (last.lane, last.step) == (*lane, *step))
    }

    fn this_use_mut(&mut self) -> Option<&mut Use> {
        let Home { lane, step, .. } = &*self.home;
        let slot = self.stage.slots[(step % SLOTS as u64) as usize].as_mut();
        slot.filter(|last| (last.lane, last.step) == (*lane, *step))
    }

    /// Where the staging memory of a member starts in this step.
    fn staging(&self, place: usize) -> *mut u8 {
        let slot = (self.home.step % SLOTS as u64) as usize;
        self.stage.segment.staging(self.home.seats[place], slot)
    }

    /// Staging memory of a member that has counted what allows reading it.
    fn read(&self, place: usize, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.piece(), "a part of the piece");
        // SAFETY: just checked to lie in the piece.
        let start = unsafe { self.staging(place).add(range.start) };
        // SAFETY: the caller has seen the member's counter, and by rule 2 nobody writes there until
        // this rank finishes the step, which takes the set for itself. Of its own staging memory
        // this rank has no slice to write while the set is lent.
        unsafe { slice::from_raw_parts(start, range.len()) }
    }

    fn count(&self, counter: Counter) {
        self.set(counter, self.home.step + 1);
    }

    fn set(&self, counter: Counter, value: u64) {
        let Home { seats, me, lane, .. } = &*self.home;
        let word = self.stage.segment.counter(*lane, seats[*me], counter);
        count(word, value);
        self.stage.vigil.ring_others();
    }
}
