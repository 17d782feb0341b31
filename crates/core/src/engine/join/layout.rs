//! Who shares memory with whom, as all ranks know it.

use ronde_control::Rank;

use crate::error::Error;

pub(super) struct Layout {
    me: Rank,
    /// The first rank of each rank's island.
    leaders: Vec<Rank>,
}

impl Layout {
    /// Refuses what cannot have been found: whoever leads an island leads itself.
    pub(super) fn new(leaders: Vec<Rank>, me: Rank) -> Result<Layout, Error> {
        let leads = |leader: &Rank| leaders.get(leader.index()) == Some(leader);
        match leaders.iter().all(leads) {
            true => Ok(Layout { me, leaders }),
            false => Err(Error::Setup(
                "the ranks do not agree on who shares memory with whom; set \
                 `RONDE_TRANSPORT=tcp` to do without"
                    .into(),
            )),
        }
    }

    /// The ranks of this rank's island, in rising order.
    pub(super) fn island(&self) -> Vec<Rank> {
        let ours = self.leaders[self.me.index()];
        let ranks = (0..self.leaders.len()).map(|rank| Rank(rank as u32));
        ranks.filter(|rank| self.leaders[rank.index()] == ours).collect()
    }

    /// Whether this rank is the first of its island.
    pub(super) fn leads(&self) -> bool {
        self.leaders[self.me.index()] == self.me
    }

    /// Whether any two ranks share memory. One rank alone has all of it: what it does is what the
    /// ranks of one host do.
    pub(super) fn is_shared(&self) -> bool {
        self.leaders.len() == 1
            || self.leaders.iter().enumerate().any(|(rank, leader)| leader.index() != rank)
    }

    /// Whether there are sockets between some ranks.
    pub(super) fn is_linked(&self) -> bool {
        self.leaders.iter().any(|leader| *leader != Rank(0))
    }

    /// The ranks that do not share memory with rank 0.
    pub(super) fn abroad(&self) -> Vec<Rank> {
        let ranks = (0..self.leaders.len()).map(|rank| Rank(rank as u32));
        ranks.filter(|rank| self.leaders[rank.index()] != Rank(0)).collect()
    }

    /// Whether a rank shares memory with rank 0.
    pub(super) fn is_at_coordinator(&self, rank: Rank) -> bool {
        self.leaders[rank.index()] == Rank(0)
    }

    pub(super) fn leaders(&self) -> Vec<usize> {
        self.leaders.iter().map(|leader| leader.index()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(leaders: &[u32], me: u32) -> Result<Layout, Error> {
        Layout::new(leaders.iter().map(|leader| Rank(*leader)).collect(), Rank(me))
    }

    #[test]
    fn islands_are_read_from_the_leaders() {
        let layout = layout(&[0, 1, 0, 1, 4], 3).unwrap();
        assert_eq!(layout.island(), [Rank(1), Rank(3)]);
        assert_eq!(layout.abroad(), [Rank(1), Rank(3), Rank(4)]);
        assert!(!layout.leads() && layout.is_shared() && layout.is_linked());
    }

    #[test]
    fn one_island_has_no_links_and_lonely_ranks_no_memory() {
        let one = layout(&[0, 0, 0], 0).unwrap();
        assert!(one.leads() && one.is_shared() && !one.is_linked() && one.abroad().is_empty());
        let only = layout(&[0], 0).unwrap();
        assert!(only.leads() && only.is_shared() && !only.is_linked());
        let lonely = layout(&[0, 1, 2], 1).unwrap();
        assert!(lonely.leads() && !lonely.is_shared() && lonely.is_linked());
    }

    #[test]
    fn a_leader_who_follows_somebody_else_is_refused() {
        assert!(layout(&[0, 0, 1], 2).is_err());
        assert!(layout(&[0, 9], 0).is_err());
    }
}
