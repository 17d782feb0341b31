//! The worlds that every case runs in: a line for each way in which ranks can be connected.

use ronde_control::SetId;
use ronde_control::settings::Transport;
use ronde_testkit::{Member, World};

pub(crate) struct Setup {
    pub(crate) name: String,
    pub(crate) ranks: usize,
    pub(crate) world: World,
}

/// All ranks share memory.
pub(crate) fn shared(ranks: impl Iterator<Item = usize>) -> Vec<Setup> {
    ranks.map(|ranks| setup("shared memory", ranks, |world| world)).collect()
}

/// All ranks reach each other through sockets.
pub(crate) fn linked(ranks: impl Iterator<Item = usize>) -> Vec<Setup> {
    ranks.map(|ranks| setup("sockets", ranks, |world| world.over(Transport::Tcp))).collect()
}

fn setup(name: &str, ranks: usize, change: impl Fn(World) -> World) -> Setup {
    let name = format!("{ranks} ranks over {name}");
    Setup { name, ranks, world: change(World::new(ranks)) }
}

impl Setup {
    /// The sets of ranks that cases run in; the first one is the world.
    pub(crate) fn sets(&self) -> Vec<Vec<u32>> {
        let all: Vec<u32> = (0..self.ranks as u32).collect();
        let odd: Vec<u32> = all.iter().copied().filter(|rank| rank % 2 == 1).collect();
        let rest: Vec<u32> = all.iter().copied().skip(1).collect();
        let mut sets = vec![all];
        if self.ranks > 2 {
            sets.extend([odd, rest]);
        }
        sets
    }
}

/// Makes all sets but the world, on every rank alike; gives the numbers of all.
pub(crate) fn make(sets: &[Vec<u32>], member: &Member) -> Vec<SetId> {
    let made = sets[1..].iter().map(|ranks| member.add_set(ranks).unwrap());
    [SetId::WORLD].into_iter().chain(made).collect()
}
