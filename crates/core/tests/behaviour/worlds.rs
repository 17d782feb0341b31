//! The worlds that every case runs in: a line for each way to connect ranks, and for each algorithm
//! that would otherwise be chosen only for some lengths.

use std::ops::Range;

use ronde_control::settings::{Encryption, Transport};
use ronde_control::{SetId, Tuning};
use ronde_testkit::{TestRank, World};

#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) name: String,
    pub(crate) ranks: usize,
    pub(crate) world: World,
}

/// All ranks share memory.
pub(crate) fn shared(ranks: Range<usize>) -> Vec<Setup> {
    ranks.map(|ranks| Setup::of("shared memory", World::new(ranks), ranks)).collect()
}

/// All ranks are connected by sockets.
pub(crate) fn linked(ranks: Range<usize>) -> Vec<Setup> {
    ranks.map(|ranks| Setup::of("sockets", over_sockets(ranks), ranks)).collect()
}

/// One algorithm for every length.
pub(crate) fn forced() -> Vec<Setup> {
    let mut setups = Vec::new();
    for ranks in [2, 3, 5, 8] {
        for tuning in ["express=0,one_shot=0", "express=0,one_shot=18446744073709551615"] {
            setups.push(Setup::of("shared memory", World::new(ranks), ranks).tuned(tuning));
        }
        for tuning in [
            "few_messages=18446744073709551615",
            "few_messages=0,halving=18446744073709551615",
            "few_messages=0,halving=0",
            "few_messages=1000,halving=2000,connections=3",
        ] {
            setups.push(Setup::of("sockets", over_sockets(ranks), ranks).tuned(tuning));
        }
    }
    setups
}

/// Some ranks share memory, and sockets connect those that do not.
pub(crate) fn islands() -> Vec<Setup> {
    let shapes: [&[usize]; 6] = [
        &[0, 0, 1],
        &[0, 1, 1, 0],
        &[0, 0, 1, 1, 2],
        &[0, 0, 0, 1, 1, 1],
        &[0, 1, 2, 2, 2, 1, 3],
        &[0, 0, 0, 0, 1, 1, 1, 1, 1],
    ];
    let mut setups = Vec::new();
    for shape in shapes {
        for tuning in ["", "one_carrier=0", "one_carrier=18446744073709551615"] {
            let name = format!("the islands {shape:?}");
            setups.push(Setup::of(&name, World::on_islands(shape), shape.len()).tuned(tuning));
        }
    }
    setups
}

/// Traffic through sockets is encrypted.
pub(crate) fn encrypted() -> Vec<Setup> {
    let mut setups = linked(2..5);
    setups.push(linked(3..4)[0].clone().tuned("few_messages=0,halving=0,connections=3"));
    setups.push(Setup::of("two islands", World::on_islands(&[0, 0, 1, 1, 1]), 5));
    setups.into_iter().map(Setup::sealed).collect()
}

/// Worlds of three ranks whose network can have faults, each with whether tensors are encrypted.
pub(crate) fn faulty() -> Vec<(Setup, Sealing)> {
    let sockets = || Setup::of("sockets", over_sockets(3), 3);
    let islands = || Setup::of("two islands", World::on_islands(&[0, 1, 1]), 3);
    vec![
        (sockets(), Sealing::Off),
        (sockets().tuned("few_messages=0,halving=0,connections=2"), Sealing::Off),
        (sockets().tuned("few_messages=0").sealed(), Sealing::On),
        (islands(), Sealing::Off),
        (islands().sealed(), Sealing::On),
    ]
}

/// Whether traffic between two ranks is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sealing {
    On,
    Off,
}

fn over_sockets(ranks: usize) -> World {
    World::new(ranks).over(Transport::Tcp)
}

impl Setup {
    pub(crate) fn of(name: &str, world: World, ranks: usize) -> Setup {
        Setup { name: format!("{ranks} ranks over {name}"), ranks, world }
    }

    pub(crate) fn tuned(self, text: &str) -> Setup {
        let tuning = Tuning::parse(text).expect("the tuning is valid");
        let world = self.world.with(|settings| settings.tuning = tuning);
        Setup { name: format!("{} with `{text}`", self.name), world, ..self }
    }

    /// The bits of results do not depend on which tensors share a bucket.
    pub(crate) fn reproducible(self) -> Setup {
        let world = self.world.with(|settings| *settings = settings.clone().reproducible());
        Setup { name: format!("{}, reproducible", self.name), world, ..self }
    }

    fn sealed(self) -> Setup {
        let world = self.world.with(|settings| settings.encryption = Encryption::On);
        Setup { name: format!("{}, encrypted", self.name), world, ..self }
    }

    /// The process sets that cases run in; the first one is the world.
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

/// Creates all sets except the world, in the same order on every rank; returns the IDs of all.
pub(crate) fn make(sets: &[Vec<u32>], member: &TestRank) -> Vec<SetId> {
    let made = sets[1..].iter().map(|ranks| member.add_set(ranks).expect("all ranks add it"));
    [SetId::WORLD].into_iter().chain(made).collect()
}
