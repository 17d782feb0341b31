//! A process set whose ranks share memory, and the steps of its collectives.
//!
//! Every collective is a sequence of steps, the same on every member. A step uses one slot of each
//! rank's staging memory, the next step of the same set the next slot, and so on, round robin. In
//! the set's lane each member has three counters that only it writes, each counting steps: those it
//! has *published*, those it has *reduced*, and those it has *finished* reading. Three rules say
//! who may touch the memory:
//!
//! 1. A rank writes to a slot of its staging memory only after all members of the set that used
//!    that slot last, this set or another, have finished that step; and only until it publishes the
//!    step, except for the part that it keeps.
//! 2. A rank reads the memory of another only after that one has published the step and before it
//!    has itself finished it; the part that the other one keeps, only after that one has reduced
//!    the step.
//! 3. All members run the same algorithm on the same sizes, so each knows what the others keep.
//!
//! This file turns the rules into slices: each slice borrows the set, and counting borrows it
//! exclusively, so no slice outlives its permission. What a process cannot know about another one,
//! rule 3 guarantees.
//!
//! Tensors in the arena need no staging. Before a step a rank *offers* those it has there: in a
//! fourth counter, an even number means none, an odd one that their offsets are in its staging
//! memory. Everybody sees the same offers and finds the same tensors that all members have there. A
//! rank that has nothing to offer does not wait for the others.
#![expect(
    unsafe_code,
    reason = "counters say who may touch shared memory, which the compiler cannot check"
)]

use std::marker::PhantomData;
use std::ops::Range;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ronde_control::{Rank, Tuning};

use super::{Arena, Counter, ExpressLane, SLOTS, Segment, count, has_reached};
use crate::buffer::RowMut;
use crate::error::Error;
use crate::transport::waiter::Waiter;

/// One rank's view of its host's shared memory.
pub(crate) struct SegmentView {
    segment: Arc<Segment>,
    waiter: Arc<Waiter>,
    /// The last use of each slot of this rank's staging memory.
    slots: [Option<LaneUse>; SLOTS],
    arena: Option<Arc<Arena>>,
    /// The rank at each local index.
    ranks: Vec<usize>,
}

/// No counter of steps ever gets this far; most stray writes do.
const FAR: u64 = 1 << 56;

struct LaneUse {
    ranks: Arc<[usize]>,
    lane: usize,
    step: u64,
    /// What this rank still writes to; everything until the step is published.
    kept: KeptStep,
}

enum KeptStep {
    All,
    Part(Range<usize>),
}

/// The members of a process set that share memory with this rank.
pub(crate) struct LocalMembers {
    /// Their indices in the shared memory.
    pub(crate) local_indices: Arc<[usize]>,
    /// This rank's position among them.
    pub(crate) me: usize,
    /// The lane of counters.
    pub(crate) lane: usize,
    /// Steps taken so far.
    pub(crate) step: u64,
}

impl SegmentView {
    pub(crate) fn new(
        segment: Arc<Segment>,
        waiter: Arc<Waiter>,
        arena: Option<Arc<Arena>>,
        ranks: Vec<usize>,
    ) -> SegmentView {
        SegmentView { segment, waiter, slots: Default::default(), arena, ranks }
    }

    /// The express lane of a world whose ranks all share this memory.
    pub(crate) fn express_lane(&self, me: usize) -> ExpressLane {
        ExpressLane::new(self.segment.clone(), me)
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
            self.waiter.waits_for(self.ranks[rank]);
            let reached = || Ok(has_reached(word, needed).then_some(()));
            self.waiter.until(&[], None, reached)?;
        }
        match word.load(Ordering::Relaxed) {
            count if count < FAR => Ok(()),
            count => {
                let who = self.waiter.world_state.name(Rank(self.ranks[rank] as u32));
                let what = format!("a counter of {who} is {count:#x}, far beyond any step");
                Err(self.waiter.overwritten(&what))
            }
        }
    }
}

/// The tensors of a row that are in the arena on every member, while all members share them.
pub(crate) struct ArenaRow<'a> {
    /// The addresses of each member's tensors.
    rows: Vec<Vec<*mut u8>>,
    /// Their lengths, the same on every member.
    lengths: Vec<usize>,
    /// For each tensor of the row, whether it is one of these.
    here: Vec<bool>,
    /// Keeps the memory of the others mapped.
    _arena: Arc<Arena>,
    own: PhantomData<&'a mut [u8]>,
}

impl ArenaRow<'_> {
    /// Bytes in each member's row.
    pub(crate) fn length(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// `range` of every member's row, for the one rank that reduces it.
    pub(crate) fn slice(&mut self, range: &Range<usize>) -> Vec<RowMut<'_>> {
        let row = |starts: &Vec<*mut u8>| {
            // SAFETY: the rows belong to different members, and all of them borrow `self`
            // exclusively.
            RowMut::new(unsafe { self.parts(starts, range) })
        };
        self.rows.iter().map(row).collect()
    }

    /// The parts, within `range` of their row, of the tensors that start at `starts`.
    ///
    /// # Safety
    /// While they live, there are no other slices of this row.
    unsafe fn parts<'b>(&self, starts: &[*mut u8], range: &Range<usize>) -> Vec<&'b mut [u8]> {
        let (mut base, mut parts) = (0, Vec::with_capacity(starts.len()));
        for (start, length) in starts.iter().zip(&self.lengths) {
            let (low, high) = (range.start.max(base), range.end.min(base + length));
            if low < high {
                // SAFETY: an offer is checked to be inside its rank's region of the arena, and so
                // is a part of it.
                let start = unsafe { start.add(low - base) };
                // SAFETY: the arena stays mapped. From the offer until all have reduced, each rank
                // touches only its own slice, the same one of every member's row; within this
                // process the caller guarantees that, and the rank's own tensors are borrowed for
                // as long.
                parts.push(unsafe { slice::from_raw_parts_mut(start, high - low) });
            }
            base += length;
        }
        parts
    }

    /// Which tensors of the row have been reduced; ends the sharing.
    pub(crate) fn end(self) -> Vec<bool> {
        self.here
    }
}

/// In place of an offset in the arena.
const NOWHERE: u64 = u64::MAX;

pub(crate) struct SharedGroup<'a> {
    segment_view: &'a mut SegmentView,
    home: &'a mut LocalMembers,
    tuning: Tuning,
}

impl<'a> SharedGroup<'a> {
    pub(crate) fn new(
        segment_view: &'a mut SegmentView,
        home: &'a mut LocalMembers,
        tuning: Tuning,
    ) -> SharedGroup<'a> {
        SharedGroup { segment_view, home, tuning }
    }

    pub(crate) fn me(&self) -> usize {
        self.home.me
    }

    pub(crate) fn ranks(&self) -> usize {
        self.home.local_indices.len()
    }

    /// The tuning, limited to what a step can carry.
    pub(crate) fn tuning(&self) -> Tuning {
        let one_shot = self.tuning.one_shot.min(self.piece() as u64);
        Tuning { one_shot, ..self.tuning }
    }

    /// Bytes per rank that a step can carry.
    pub(crate) fn piece(&self) -> usize {
        self.segment_view.segment.piece()
    }

    /// The step that the methods below refer to.
    pub(crate) fn step(&self) -> u64 {
        self.home.step
    }

    /// Switches to another step: some algorithms begin one before they have finished the last.
    pub(crate) fn turn_to(&mut self, step: u64) {
        self.home.step = step;
    }

    /// Enters a step in which this rank writes its staging memory: waits until the slot is free
    /// again.
    pub(crate) fn enter(&mut self) -> Result<&mut [u8], Error> {
        let LocalMembers { local_indices, lane, step, .. } = &*self.home;
        let slot = (step % SLOTS as u64) as usize;
        if self.this_use().is_none() {
            let this = LaneUse {
                ranks: local_indices.clone(),
                lane: *lane,
                step: *step,
                kept: KeptStep::All,
            };
            if let Some(last) = self.segment_view.slots[slot].take() {
                for rank in last.ranks.iter() {
                    self.segment_view.await_count(
                        (last.lane, *rank),
                        Counter::Finished,
                        last.step + 1,
                    )?;
                }
            }
            self.segment_view.slots[slot] = Some(this);
        }
        let is_own = self.this_use().is_some_and(|this| matches!(this.kept, KeptStep::All));
        assert!(is_own, "published memory is no longer written");
        let (start, length) = (self.staging(self.home.me), self.piece());
        // SAFETY: by rule 1 nobody else touches the slot until it is published. Publishing borrows
        // the set exclusively, as entering does, so no other slice of the slot is alive here
        // either.
        Ok(unsafe { slice::from_raw_parts_mut(start, length) })
    }

    /// Lets the others read what this rank has written.
    pub(crate) fn publish(&mut self) {
        self.publish_but(0..0);
    }

    /// Like `publish`, except for a part that this rank goes on writing until it has reduced the
    /// step.
    pub(crate) fn publish_but(&mut self, kept: Range<usize>) {
        assert!(kept.end <= self.piece(), "the kept part is inside the piece");
        let this = self.this_use_mut().expect("a step is entered before it is published");
        this.kept = KeptStep::Part(kept);
        self.count(Counter::Published);
    }

    pub(crate) fn await_published(&self, place: usize) -> Result<(), Error> {
        let at = (self.home.lane, self.home.local_indices[place]);
        self.segment_view.await_count(at, Counter::Published, self.home.step + 1)
    }

    /// What a member has published, without the part that it keeps; waits for it.
    pub(crate) fn published(&self, place: usize, range: Range<usize>) -> Result<&[u8], Error> {
        self.await_published(place)?;
        Ok(self.read(place, range))
    }

    /// What all members have published of the part that this rank keeps, with an empty slice for
    /// this rank; and that part itself, for writing. Waits for all members.
    pub(crate) fn reducing(&mut self) -> Result<(Vec<&[u8]>, &mut [u8]), Error> {
        (0..self.ranks()).try_for_each(|place| self.await_published(place))?;
        let me = self.home.me;
        let kept = match self.this_use().map(|this| &this.kept) {
            Some(KeptStep::Part(kept)) => kept.clone(),
            _ => panic!("a step is published before it is reduced"),
        };
        // SAFETY: publishing has checked that the part is inside the piece.
        let start = unsafe { self.staging(me).add(kept.start) };
        // SAFETY: by rule 2 nobody else touches what this rank keeps until it has reduced the step.
        // That borrows the set exclusively, as this does.
        let own = unsafe { slice::from_raw_parts_mut(start, kept.len()) };
        let theirs = |place| if place == me { &[] } else { self.read(place, kept.clone()) };
        Ok(((0..self.ranks()).map(theirs).collect(), own))
    }

    /// Marks the kept part as reduced and shares it with the others.
    pub(crate) fn reduced(&mut self) {
        if let Some(this) = self.this_use_mut() {
            this.kept = KeptStep::Part(0..0);
        }
        self.count(Counter::Reduced);
    }

    pub(crate) fn await_reduced(&self, place: usize) -> Result<(), Error> {
        let at = (self.home.lane, self.home.local_indices[place]);
        self.segment_view.await_count(at, Counter::Reduced, self.home.step + 1)
    }

    /// The part that a member kept, after it has reduced it; waits for it.
    pub(crate) fn result(&self, place: usize, range: Range<usize>) -> Result<&[u8], Error> {
        self.await_reduced(place)?;
        Ok(self.read(place, range))
    }

    /// Leaves the step: this rank no longer reads the memory of the others.
    pub(crate) fn finish(&mut self) {
        self.count(Counter::Finished);
        self.home.step += 1;
    }

    /// Tells the others which tensors of this rank are in the arena, and where; a tensor that is
    /// `None` must go through staging memory anyway. Returns the tensors that are in the arena on
    /// every member; then the caller must complete the step, because others may still read the
    /// offer. Returns `None` if some member has none there; then the step has not begun.
    pub(crate) fn offer<'b>(
        &mut self,
        row: Vec<Option<&'b mut [u8]>>,
    ) -> Result<Option<ArenaRow<'b>>, Error> {
        let needed = 2 * (self.home.step + 1);
        let Some((arena, places)) = self.places(&row) else {
            self.set(Counter::Offered, needed);
            return Ok(None);
        };
        let bytes: Vec<u8> = places.iter().flat_map(|place| place.to_ne_bytes()).collect();
        self.enter()?[..bytes.len()].copy_from_slice(&bytes);
        self.set(Counter::Offered, needed + 1);
        for rank in self.home.local_indices.iter() {
            let at = (self.home.lane, *rank);
            self.segment_view.await_count(at, Counter::Offered, needed)?;
            let word = self.segment_view.segment.counter(at.0, at.1, Counter::Offered);
            if word.load(Ordering::Acquire) != needed + 1 {
                return Ok(None);
            }
        }
        // All have offered, so all read what all have written.
        if let Some(this) = self.this_use_mut() {
            this.kept = KeptStep::Part(0..0);
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
        if let Some(arena) = &self.segment_view.arena {
            arena.in_place().fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Ends a long computation when the world ends.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.segment_view.waiter.check()
    }

    /// The offsets in the arena of the tensors of a row, or [`NOWHERE`]; `None` if none of them is
    /// there or the offsets do not fit into a piece.
    fn places(&self, row: &[Option<&mut [u8]>]) -> Option<(Arc<Arena>, Vec<u64>)> {
        let arena = self.segment_view.arena.as_ref()?;
        let place = |tensor: &Option<&mut [u8]>| {
            let offset = tensor.as_ref().and_then(|tensor| arena.offset(tensor));
            offset.map_or(NOWHERE, |offset| offset as u64)
        };
        let places: Vec<u64> = row.iter().map(place).collect();
        let fits = size_of_val(&*places) <= self.piece();
        // An empty tensor counts as being anywhere, and is not worth an offer.
        let nonempty =
            |tensor: &Option<&mut [u8]>| tensor.as_ref().is_some_and(|tensor| !tensor.is_empty());
        let some = row.iter().zip(&places).any(|(tensor, at)| nonempty(tensor) && *at != NOWHERE);
        (fits && some).then(|| (arena.clone(), places))
    }

    /// The rows of all members as this rank sees them, reduced to the tensors that are in the arena
    /// on all of them; an offset outside a member's region counts as nowhere.
    fn common<'b>(
        &self,
        row: Vec<Option<&'b mut [u8]>>,
        all: &[Vec<u64>],
        arena: Arc<Arena>,
    ) -> ArenaRow<'b> {
        let mut rows = vec![Vec::new(); all.len()];
        let (mut here, mut lengths) = (Vec::with_capacity(row.len()), Vec::new());
        for (index, own) in row.into_iter().enumerate() {
            let length = own.as_ref().map_or(0, |own| own.len());
            let own = own.map(<[u8]>::as_mut_ptr);
            let start = |(place, places): (usize, &Vec<u64>)| match place == self.home.me {
                true => own.filter(|_| places[index] != NOWHERE),
                false => {
                    arena.address(self.home.local_indices[place], places[index] as usize, length)
                }
            };
            let starts = all.iter().enumerate().map(start).collect::<Option<Vec<*mut u8>>>();
            let everywhere = starts.filter(|_| own.is_some());
            here.push(everywhere.is_some());
            if let Some(starts) = everywhere {
                lengths.push(length);
                rows.iter_mut().zip(starts).for_each(|(row, start)| row.push(start));
            }
        }
        ArenaRow { rows, lengths, here, _arena: arena, own: PhantomData }
    }

    /// This rank's use of the slot of this step, if it has entered the step.
    fn this_use(&self) -> Option<&LaneUse> {
        let LocalMembers { lane, step, .. } = &*self.home;
        let slot = self.segment_view.slots[(step % SLOTS as u64) as usize].as_ref();
        slot.filter(|last| (last.lane, last.step) == (*lane, *step))
    }

    fn this_use_mut(&mut self) -> Option<&mut LaneUse> {
        let LocalMembers { lane, step, .. } = &*self.home;
        let slot = self.segment_view.slots[(step % SLOTS as u64) as usize].as_mut();
        slot.filter(|last| (last.lane, last.step) == (*lane, *step))
    }

    /// The address of a member's staging memory in this step.
    fn staging(&self, place: usize) -> *mut u8 {
        let slot = (self.home.step % SLOTS as u64) as usize;
        self.segment_view.segment.staging(self.home.local_indices[place], slot)
    }

    /// Staging memory of a member whose counter allows reading it.
    fn read(&self, place: usize, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.piece(), "a part of the piece");
        // SAFETY: just checked to be inside the piece.
        let start = unsafe { self.staging(place).add(range.start) };
        // SAFETY: the caller has seen the member's counter, and by rule 2 nobody writes there until
        // this rank finishes the step, which borrows the set exclusively. Of its own staging memory
        // this rank has no mutable slice while the set is borrowed.
        unsafe { slice::from_raw_parts(start, range.len()) }
    }

    fn count(&self, counter: Counter) {
        self.set(counter, self.home.step + 1);
    }

    fn set(&self, counter: Counter, value: u64) {
        let LocalMembers { local_indices, me, lane, .. } = &*self.home;
        let word = self.segment_view.segment.counter(*lane, local_indices[*me], counter);
        count(word, value);
        self.segment_view.waiter.ring_others();
    }
}
