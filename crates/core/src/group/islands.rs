//! A set of ranks of which some share memory: the two levels that its collectives go through.

use ronde_control::Tuning;

use super::{Circle, Linked, Links, Members, Shared, Stage};

pub(crate) struct Islands<'a> {
    stage: &'a mut Stage,
    links: &'a mut Links,
    circle: &'a mut Circle,
    tuning: Tuning,
}

impl<'a> Islands<'a> {
    pub(super) fn new(
        stage: &'a mut Stage,
        links: &'a mut Links,
        circle: &'a mut Circle,
        tuning: Tuning,
    ) -> Islands<'a> {
        Islands { stage, links, circle, tuning }
    }

    pub(crate) fn me(&self) -> usize {
        self.circle.me()
    }

    pub(crate) fn size(&self) -> usize {
        self.circle.size()
    }

    pub(crate) fn tuning(&self) -> Tuning {
        self.tuning
    }

    /// The places of the members of each island.
    pub(crate) fn islands(&self) -> &[Vec<usize>] {
        self.circle.islands()
    }

    /// Which island this rank lives on.
    pub(crate) fn island(&self) -> usize {
        self.circle.island()
    }

    /// The places of those who live on this rank's island.
    pub(crate) fn neighbours(&self) -> &[usize] {
        &self.islands()[self.island()]
    }

    /// This rank's place among its neighbours.
    pub(crate) fn seat(&self) -> usize {
        let me = self.me();
        self.neighbours().iter().position(|place| *place == me).expect("it is its own neighbour")
    }

    /// How many ranks of every island can carry a slice to the other islands.
    pub(crate) fn carriers(&self) -> usize {
        self.islands().iter().map(Vec::len).min().unwrap_or(1)
    }

    /// The neighbours, who share memory.
    pub(crate) fn home(&mut self) -> Shared<'_> {
        Shared::new(self.stage, self.circle.home(), self.tuning)
    }

    /// One member of each island, in the order of islands, if this rank is the one of its own.
    pub(crate) fn bridge(&mut self, of: impl Fn(&[usize]) -> usize) -> Option<Linked<'_>> {
        let places: Vec<usize> = self.islands().iter().map(|island| of(island)).collect();
        if places[self.island()] != self.me() {
            return None;
        }
        let ranks = places.iter().map(|place| self.circle.members().ranks[*place]).collect();
        let members = Members { ranks, me: self.island() };
        Some(Linked::new(self.links, members, self.tuning))
    }

    /// All members, by socket.
    pub(crate) fn everybody(&mut self) -> Linked<'_> {
        Linked::new(self.links, self.circle.members().clone(), self.tuning)
    }
}
