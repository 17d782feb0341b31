//! The one table that chooses between algorithms, and the words for what it chose.
//!
//! The choice depends on nothing but what all ranks know: the collective, its bytes, how many ranks
//! take part and on how many hosts, and the [`Tuning`] that the coordinator gave to all.

use std::fmt;

use ronde_control::Tuning;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collective {
    Allreduce,
    Adasum,
    Allgather,
    Broadcast,
    Reducescatter,
    Alltoall,
    Barrier,
}

/// What connects those who do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ways {
    /// Memory, between all.
    Shared,
    /// Sockets, between all.
    Linked,
    /// Memory inside hosts, sockets between them.
    Both,
}

/// What is chosen between; each stands in the file of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    OneShot,
    Sliced,
    Pieces,
    Step,
    Doubling,
    Halving,
    Ring,
    Tree,
    Chain,
    Pairs,
    Dissemination,
    Levels,
}

impl Algorithm {
    /// Its name in what is said and written down.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Algorithm::OneShot => "oneshot",
            Algorithm::Sliced => "sliced",
            Algorithm::Pieces => "pieces",
            Algorithm::Step => "step",
            Algorithm::Doubling => "doubling",
            Algorithm::Halving => "halving",
            Algorithm::Ring => "ring",
            Algorithm::Tree => "tree",
            Algorithm::Chain => "chain",
            Algorithm::Pairs => "pairs",
            Algorithm::Dissemination => "dissemination",
            Algorithm::Levels => "levels",
        }
    }
}

/// What the choice depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) collective: Collective,
    pub(crate) ways: Ways,
    pub(crate) bytes: usize,
    pub(crate) ranks: usize,
    pub(crate) hosts: usize,
}

/// An algorithm and why it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) algorithm: Algorithm,
    why: &'static str,
    case: Case,
}

struct Row {
    collective: Collective,
    ways: Ways,
    fits: fn(&Case, &Tuning) -> bool,
    algorithm: Algorithm,
    why: &'static str,
}

const fn row(
    collective: Collective,
    ways: Ways,
    fits: fn(&Case, &Tuning) -> bool,
    algorithm: Algorithm,
    why: &'static str,
) -> Row {
    Row { collective, ways, fits, algorithm, why }
}

/// The first row that fits counts; the last one of each collective always fits.
#[rustfmt::skip]
const TABLE: &[Row] = {
    use {Algorithm as A, Collective as C, Ways as W};
    &[
        row(C::Allreduce, W::Shared, |case, by| case.upto(by.one_shot), A::OneShot, "one exchange of cache lines costs less than two"),
        row(C::Allreduce, W::Shared, always, A::Sliced, "each rank reduces a slice inside the caches"),
        row(C::Allreduce, W::Linked, |case, by| case.ranks == 1 || case.upto(by.few_messages), A::Doubling, "the number of messages counts"),
        row(C::Allreduce, W::Linked, |case, by| case.ranks > 2 && case.upto(by.halving), A::Halving, "few messages, and every byte twice at most"),
        row(C::Allreduce, W::Linked, always, A::Ring, "every byte twice at most, and both directions are full"),
        row(C::Allreduce, W::Both, always, A::Levels, "memory inside hosts is faster than what is between them"),
        row(C::Adasum, W::Shared, always, A::Halving, "each pair shares the work, and every byte goes twice at most"),
        row(C::Adasum, W::Linked, always, A::Halving, "each pair shares the work, and every byte goes twice at most"),
        row(C::Adasum, W::Both, always, A::Halving, "the tree over the ranks is the same whatever connects them"),
        row(C::Allgather, W::Shared, always, A::Pieces, "there is one way in memory"),
        row(C::Allgather, W::Linked, always, A::Ring, "every byte once"),
        row(C::Allgather, W::Both, always, A::Levels, "memory inside hosts is faster than what is between them"),
        row(C::Broadcast, W::Shared, always, A::Pieces, "there is one way in memory"),
        row(C::Broadcast, W::Linked, |case, by| case.upto(by.few_messages), A::Tree, "the number of messages counts"),
        row(C::Broadcast, W::Linked, always, A::Chain, "pieces fill the whole chain at once"),
        row(C::Broadcast, W::Both, always, A::Levels, "memory inside hosts is faster than what is between them"),
        row(C::Reducescatter, W::Shared, always, A::Sliced, "each rank reduces its part inside the caches"),
        row(C::Reducescatter, W::Linked, always, A::Ring, "every byte once"),
        row(C::Reducescatter, W::Both, always, A::Levels, "memory inside hosts is faster than what is between them"),
        row(C::Alltoall, W::Shared, always, A::Pieces, "there is one way in memory"),
        row(C::Alltoall, W::Linked, always, A::Pairs, "every byte once, straight to its place"),
        row(C::Alltoall, W::Both, always, A::Levels, "memory inside hosts is faster than what is between them"),
        row(C::Barrier, W::Shared, always, A::Step, "there is one way in memory"),
        row(C::Barrier, W::Linked, always, A::Dissemination, "the number of messages counts"),
        row(C::Barrier, W::Both, always, A::Levels, "memory inside hosts is faster than what is between them"),
    ]
};

fn always(_: &Case, _: &Tuning) -> bool {
    true
}

impl Case {
    fn upto(&self, limit: u64) -> bool {
        self.bytes as u64 <= limit
    }

    pub(crate) fn choose(self, tuning: &Tuning) -> Choice {
        let fits = |row: &&Row| {
            row.collective == self.collective && row.ways == self.ways && (row.fits)(&self, tuning)
        };
        let row = TABLE.iter().find(fits).expect("the last row of each collective always fits");
        Choice { algorithm: row.algorithm, why: row.why, case: self }
    }
}

/// The size is rounded up to a power of two, so that the same words mean the same choice.
impl fmt::Display for Choice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { collective, ways, bytes, ranks, hosts } = self.case;
        let ways = match ways {
            Ways::Shared => "in shared memory",
            Ways::Linked => "over sockets",
            Ways::Both => "in shared memory and over sockets",
        };
        write!(
            out,
            "{} of up to {} bytes among {ranks} ranks on {hosts} hosts {ways}: {}, because {}",
            format!("{collective:?}").to_lowercase(),
            bytes.next_power_of_two(),
            self.algorithm.name(),
            self.why
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLLECTIVES: [Collective; 7] = [
        Collective::Allreduce,
        Collective::Adasum,
        Collective::Allgather,
        Collective::Broadcast,
        Collective::Reducescatter,
        Collective::Alltoall,
        Collective::Barrier,
    ];

    #[test]
    fn every_case_has_an_algorithm_whatever_the_tuning() {
        let extremes = [
            Tuning::default(),
            Tuning { one_shot: 0, few_messages: 0, halving: 0, ..Tuning::default() },
            Tuning { one_shot: u64::MAX, few_messages: u64::MAX, ..Tuning::default() },
        ];
        for tuning in extremes {
            for collective in COLLECTIVES {
                for ways in [Ways::Shared, Ways::Linked, Ways::Both] {
                    for (bytes, ranks) in [(0, 1), (1, 2), (1 << 40, 9)] {
                        Case { collective, ways, bytes, ranks, hosts: ranks }.choose(&tuning);
                    }
                }
            }
        }
    }

    #[test]
    fn thresholds_decide_and_the_words_say_what_and_why() {
        let case = Case {
            collective: Collective::Allreduce,
            ways: Ways::Linked,
            bytes: 100_000,
            ranks: 4,
            hosts: 4,
        };
        let choose = |text: &str| case.choose(&Tuning::parse(text).unwrap());
        assert_eq!(choose("few_messages=100000").algorithm, Algorithm::Doubling);
        assert_eq!(choose("few_messages=99999,halving=100000").algorithm, Algorithm::Halving);
        assert_eq!(choose("few_messages=0,halving=0").algorithm, Algorithm::Ring);
        assert_eq!(
            choose("few_messages=0,halving=0").to_string(),
            "allreduce of up to 131072 bytes among 4 ranks on 4 hosts over sockets: ring, because \
             every byte twice at most, and both directions are full"
        );
    }
}
