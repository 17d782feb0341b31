//! Which ranks share memory with each other; the same on all ranks.

use ronde_control::Rank;

use crate::error::Error;

pub(super) struct IslandLayout {
    me: Rank,
    /// The first rank of each rank's island.
    leaders: Vec<Rank>,
}

impl IslandLayout {
    /// Refuses an impossible layout: the leader of an island must be its own leader.
    pub(super) fn new(leaders: Vec<Rank>, me: Rank) -> Result<IslandLayout, Error> {
        let leads = |leader: &Rank| leaders.get(leader.index()) == Some(leader);
        match leaders.iter().all(leads) {
            true => Ok(IslandLayout { me, leaders }),
            false => Err(Error::Setup(
                "the ranks do not agree on which of them share memory; set `RONDE_TRANSPORT=tcp` \
                 to do without shared memory"
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

    /// Whether any two ranks share memory. A single rank counts as sharing: it works like the ranks
    /// of one host.
    pub(super) fn is_shared(&self) -> bool {
        self.leaders.len() == 1
            || self.leaders.iter().enumerate().any(|(rank, leader)| leader.index() != rank)
    }

    /// Whether some ranks are connected by sockets.
    pub(super) fn is_linked(&self) -> bool {
        self.leaders.iter().any(|leader| *leader != Rank(0))
    }

    /// The ranks that do not share memory with rank 0.
    pub(super) fn remote_ranks(&self) -> Vec<Rank> {
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

    fn layout(leaders: &[u32], me: u32) -> Result<IslandLayout, Error> {
        IslandLayout::new(leaders.iter().map(|leader| Rank(*leader)).collect(), Rank(me))
    }

    #[test]
    fn islands_are_read_from_the_leaders() {
        let layout = layout(&[0, 1, 0, 1, 4], 3).unwrap();
        assert_eq!(layout.island(), [Rank(1), Rank(3)]);
        assert_eq!(layout.remote_ranks(), [Rank(1), Rank(3), Rank(4)]);
        assert!(!layout.leads() && layout.is_shared() && layout.is_linked());
    }

    #[test]
    fn one_island_has_no_links_and_single_ranks_share_no_memory() {
        let one = layout(&[0, 0, 0], 0).unwrap();
        assert!(
            one.leads() && one.is_shared() && !one.is_linked() && one.remote_ranks().is_empty()
        );
        let only = layout(&[0], 0).unwrap();
        assert!(only.leads() && only.is_shared() && !only.is_linked());
        let separate = layout(&[0, 1, 2], 1).unwrap();
        assert!(separate.leads() && !separate.is_shared() && separate.is_linked());
    }

    #[test]
    fn a_leader_that_follows_another_rank_is_refused() {
        assert!(layout(&[0, 0, 1], 2).is_err());
        assert!(layout(&[0, 9], 0).is_err());
    }
}
