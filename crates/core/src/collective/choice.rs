//! The table that chooses between algorithms, and the text that explains a choice.
//!
//! A choice depends only on what all ranks know: the collective, its bytes, how many ranks and
//! hosts take part, and the [`Tuning`] that the coordinator sends to all.

use std::fmt;

use ronde_control::{Collective, Tuning};
use strum::{Display, IntoStaticStr};

/// How the ranks of a group are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Connectivity {
    /// All share memory.
    Shared,
    /// Sockets between all of them.
    Linked,
    /// Shared memory within hosts, sockets between them.
    Both,
}

/// The algorithms; each is in the file of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Display, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
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

/// What the choice depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChoiceInput {
    pub(crate) collective: Collective,
    pub(crate) connectivity: Connectivity,
    pub(crate) bytes: usize,
    pub(crate) ranks: usize,
    pub(crate) hosts: usize,
}

/// A chosen algorithm and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) algorithm: Algorithm,
    why: &'static str,
    what: &'static str,
    case: ChoiceInput,
}

struct ChoiceRow {
    collective: Collective,
    connectivity: Connectivity,
    fits: fn(&ChoiceInput, &Tuning) -> bool,
    algorithm: Algorithm,
    why: &'static str,
}

const fn row(
    collective: Collective,
    connectivity: Connectivity,
    fits: fn(&ChoiceInput, &Tuning) -> bool,
    algorithm: Algorithm,
    why: &'static str,
) -> ChoiceRow {
    ChoiceRow { collective, connectivity, fits, algorithm, why }
}

/// The first row that fits applies; the last row of each collective and connectivity always fits.
#[rustfmt::skip]
const TABLE: &[ChoiceRow] = {
    use {Algorithm as A, Collective as C, Connectivity as W};
    &[
        row(C::Allreduce, W::Shared, |case, by| case.upto(by.one_shot), A::OneShot, "one exchange of cache lines is cheaper than two"),
        row(C::Allreduce, W::Shared, always, A::Sliced, "each rank reduces a slice in its cache"),
        row(C::Allreduce, W::Linked, |case, by| case.ranks == 1 || case.upto(by.few_messages), A::Doubling, "the number of messages dominates the cost"),
        row(C::Allreduce, W::Linked, |case, by| case.ranks > 2 && case.upto(by.halving), A::Halving, "few messages, and each byte is sent at most twice"),
        row(C::Allreduce, W::Linked, always, A::Ring, "each byte is sent at most twice, and both directions are in use"),
        row(C::Allreduce, W::Both, always, A::Levels, "shared memory within a host is faster than the network between hosts"),
        row(C::Allgather, W::Shared, always, A::Pieces, "it is the only algorithm in shared memory"),
        row(C::Allgather, W::Linked, always, A::Ring, "each byte is sent once"),
        row(C::Allgather, W::Both, always, A::Levels, "shared memory within a host is faster than the network between hosts"),
        row(C::Broadcast, W::Shared, always, A::Pieces, "it is the only algorithm in shared memory"),
        row(C::Broadcast, W::Linked, |case, by| case.upto(by.few_messages), A::Tree, "the number of messages dominates the cost"),
        row(C::Broadcast, W::Linked, always, A::Chain, "pieces keep the whole chain busy"),
        row(C::Broadcast, W::Both, always, A::Levels, "shared memory within a host is faster than the network between hosts"),
        row(C::Reducescatter, W::Shared, always, A::Sliced, "each rank reduces its part in its cache"),
        row(C::Reducescatter, W::Linked, always, A::Ring, "each byte is sent once"),
        row(C::Reducescatter, W::Both, always, A::Levels, "shared memory within a host is faster than the network between hosts"),
        row(C::Alltoall, W::Shared, always, A::Pieces, "it is the only algorithm in shared memory"),
        row(C::Alltoall, W::Linked, always, A::Pairs, "each byte is sent once, straight to its destination"),
        row(C::Alltoall, W::Both, always, A::Levels, "shared memory within a host is faster than the network between hosts"),
        row(C::Barrier, W::Shared, always, A::Step, "it is the only algorithm in shared memory"),
        row(C::Barrier, W::Linked, always, A::Dissemination, "the number of messages dominates the cost"),
        row(C::Barrier, W::Both, always, A::Levels, "shared memory within a host is faster than the network between hosts"),
    ]
};

fn always(_: &ChoiceInput, _: &Tuning) -> bool {
    true
}

impl ChoiceInput {
    fn upto(&self, limit: u64) -> bool {
        self.bytes as u64 <= limit
    }

    pub(crate) fn choose(self, tuning: &Tuning) -> Choice {
        let fits = |row: &&ChoiceRow| {
            row.collective == self.collective
                && row.connectivity == self.connectivity
                && (row.fits)(&self, tuning)
        };
        let row = TABLE.iter().find(fits).expect("the last row of each collective always fits");
        let what = self.collective.into();
        Choice { algorithm: row.algorithm, why: row.why, what, case: self }
    }

    /// The same for Adasum, which has one algorithm, whatever connects the ranks.
    pub(crate) fn choose_adasum(self) -> Choice {
        let why = "each pair shares the work, and every byte goes twice at most";
        Choice { algorithm: Algorithm::Halving, why, what: "adasum", case: self }
    }
}

/// The size is rounded up to a power of two, so that one choice is logged once, not for every size.
impl fmt::Display for Choice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ChoiceInput { connectivity, bytes, ranks, hosts, .. } = self.case;
        let connectivity = match connectivity {
            Connectivity::Shared => "in shared memory",
            Connectivity::Linked => "over sockets",
            Connectivity::Both => "in shared memory and over sockets",
        };
        write!(
            out,
            "{} of up to {} bytes among {ranks} ranks on {hosts} hosts {connectivity}: {}, because {}",
            self.what,
            bytes.next_power_of_two(),
            self.algorithm,
            self.why
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_an_algorithm_whatever_the_tuning() {
        let extremes = [
            Tuning::default(),
            Tuning { one_shot: 0, few_messages: 0, halving: 0, ..Tuning::default() },
            Tuning { one_shot: u64::MAX, few_messages: u64::MAX, ..Tuning::default() },
        ];
        for tuning in extremes {
            for &collective in Collective::ALL {
                for connectivity in [Connectivity::Shared, Connectivity::Linked, Connectivity::Both]
                {
                    for (bytes, ranks) in [(0, 1), (1, 2), (1 << 40, 9)] {
                        ChoiceInput { collective, connectivity, bytes, ranks, hosts: ranks }
                            .choose(&tuning);
                    }
                }
            }
        }
    }

    #[test]
    fn thresholds_decide_and_the_text_explains_the_choice() {
        let case = ChoiceInput {
            collective: Collective::Allreduce,
            connectivity: Connectivity::Linked,
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
             each byte is sent at most twice, and both directions are in use"
        );
    }
}
