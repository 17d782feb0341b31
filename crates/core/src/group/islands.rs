//! A process set in which some members share memory: the two levels that its collectives use.

use ronde_control::Tuning;

use super::{Linked, Links, Members, ProcessSet, SegmentView, SharedGroup};

pub(crate) struct Islands<'a> {
    segment_view: &'a mut SegmentView,
    links: &'a mut Links,
    process_set: &'a mut ProcessSet,
    tuning: Tuning,
}

impl<'a> Islands<'a> {
    pub(super) fn new(
        segment_view: &'a mut SegmentView,
        links: &'a mut Links,
        process_set: &'a mut ProcessSet,
        tuning: Tuning,
    ) -> Islands<'a> {
        Islands { segment_view, links, process_set, tuning }
    }

    pub(crate) fn me(&self) -> usize {
        self.process_set.me()
    }

    pub(crate) fn size(&self) -> usize {
        self.process_set.size()
    }

    pub(crate) fn tuning(&self) -> Tuning {
        self.tuning
    }

    /// The places of the members of each island.
    pub(crate) fn islands(&self) -> &[Vec<usize>] {
        self.process_set.islands()
    }

    /// The index of this rank's island.
    pub(crate) fn island(&self) -> usize {
        self.process_set.island()
    }

    /// The places of the members on this rank's island, itself included.
    pub(crate) fn neighbors(&self) -> &[usize] {
        &self.islands()[self.island()]
    }

    /// This rank's index among the members on its island.
    pub(crate) fn local_index(&self) -> usize {
        let me = self.me();
        self.neighbors().iter().position(|place| *place == me).expect("a rank is on its own island")
    }

    /// How many ranks of every island can carry a slice to the other islands.
    pub(crate) fn carriers(&self) -> usize {
        self.islands().iter().map(Vec::len).min().unwrap_or(1)
    }

    /// The members on this rank's island, which share memory.
    pub(crate) fn local_group(&mut self) -> SharedGroup<'_> {
        SharedGroup::new(self.segment_view, self.process_set.local_members(), self.tuning)
    }

    /// One member of each island, in the order of islands, if this rank is the one chosen on its
    /// own island.
    pub(crate) fn bridge(&mut self, of: impl Fn(&[usize]) -> usize) -> Option<Linked<'_>> {
        let places: Vec<usize> = self.islands().iter().map(|island| of(island)).collect();
        if places[self.island()] != self.me() {
            return None;
        }
        let ranks = places.iter().map(|place| self.process_set.members().ranks[*place]).collect();
        let members = Members { ranks, me: self.island() };
        Some(Linked::new(self.links, members, self.tuning))
    }

    /// All members, connected by sockets.
    pub(crate) fn all_by_socket(&mut self) -> Linked<'_> {
        Linked::new(self.links, self.process_set.members().clone(), self.tuning)
    }
}
