//! The table that chooses between algorithms, and the text that explains a choice.
//!
//! A choice depends only on what all ranks know: the collective, its bytes, how many ranks and
//! hosts take part, and the [`Tuning`] that the coordinator sends to all. `core::collective` runs
//! what the table says, and `ronde bench --choices` prints it. A collective that a rank submits on
//! its own, in shared memory, is not chosen here: it is [`Tuning::express`] that decides.

use std::fmt;

use strum::{Display, IntoStaticStr, VariantArray};

use crate::{Collective, Knob, Tuning};

/// How the ranks of a group are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Display, VariantArray)]
pub enum Connectivity {
    /// All share memory.
    #[strum(to_string = "in shared memory")]
    Shared,
    /// Sockets between all of them.
    #[strum(to_string = "over sockets")]
    Linked,
    /// Shared memory within hosts, sockets between them.
    #[strum(to_string = "in shared memory and over sockets")]
    Both,
}

/// The algorithms; each is in the file of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Display, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[expect(missing_docs, reason = "each is explained in the file of its name")]
pub enum Algorithm {
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
pub struct ChoiceInput {
    /// The collective.
    pub collective: Collective,
    /// How its ranks are connected.
    pub connectivity: Connectivity,
    /// The bytes that each rank submits, or those of the result for an allgather.
    pub bytes: usize,
    /// The number of ranks.
    pub ranks: usize,
    /// The number of hosts.
    pub hosts: usize,
}

/// A chosen algorithm and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// What to run.
    pub algorithm: Algorithm,
    why: &'static str,
    what: &'static str,
    case: ChoiceInput,
}

/// One row of [`CHOICES`].
#[derive(Clone, Copy, Debug)]
pub struct ChoiceRow {
    /// The collective.
    pub collective: Collective,
    /// How its ranks are connected.
    pub connectivity: Connectivity,
    /// The row is for this many ranks.
    pub ranks: RankCount,
    /// The row is for so many bytes at most; `None` for any size.
    pub upto: Option<Knob>,
    /// What then runs.
    pub algorithm: Algorithm,
    /// The reason.
    pub why: &'static str,
}

/// Which numbers of ranks a row is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankCount {
    /// Any number.
    Any,
    /// A rank on its own.
    One,
    /// Three or more.
    Several,
}

const LEVELS: &str = "shared memory within a host is faster than the network between hosts";
const ONLY: &str = "it is the only algorithm in shared memory";
const MESSAGES: &str = "the number of messages dominates the cost";
const ONCE: &str = "each byte is sent once";

/// The first row that fits applies; the last row of each collective and connectivity always fits.
pub const CHOICES: &[ChoiceRow] = {
    use {Algorithm as A, Collective as C, Connectivity as W, RankCount as R};
    const fn row(
        (collective, connectivity): (Collective, Connectivity),
        ranks: RankCount,
        upto: Option<Knob>,
        algorithm: Algorithm,
        why: &'static str,
    ) -> ChoiceRow {
        ChoiceRow { collective, connectivity, ranks, upto, algorithm, why }
    }
    let one_shot = Some(Tuning::ONE_SHOT);
    let (few_messages, halving) = (Some(Tuning::FEW_MESSAGES), Some(Tuning::HALVING));
    &[
        row(
            (C::Allreduce, W::Shared),
            R::Any,
            one_shot,
            A::OneShot,
            "one exchange of cache lines is cheaper than two",
        ),
        row(
            (C::Allreduce, W::Shared),
            R::Any,
            None,
            A::Sliced,
            "each rank reduces a slice in its cache",
        ),
        row((C::Allreduce, W::Linked), R::One, None, A::Doubling, "there is nothing to send"),
        row((C::Allreduce, W::Linked), R::Any, few_messages, A::Doubling, MESSAGES),
        row(
            (C::Allreduce, W::Linked),
            R::Several,
            halving,
            A::Halving,
            "few messages, and each byte is sent at most twice",
        ),
        row(
            (C::Allreduce, W::Linked),
            R::Any,
            None,
            A::Ring,
            "each byte is sent at most twice, and both directions are in use",
        ),
        row((C::Allreduce, W::Both), R::Any, None, A::Levels, LEVELS),
        row((C::Allgather, W::Shared), R::Any, None, A::Pieces, ONLY),
        row((C::Allgather, W::Linked), R::Any, None, A::Ring, ONCE),
        row((C::Allgather, W::Both), R::Any, None, A::Levels, LEVELS),
        row((C::Broadcast, W::Shared), R::Any, None, A::Pieces, ONLY),
        row((C::Broadcast, W::Linked), R::Any, few_messages, A::Tree, MESSAGES),
        row((C::Broadcast, W::Linked), R::Any, None, A::Chain, "pieces keep the whole chain busy"),
        row((C::Broadcast, W::Both), R::Any, None, A::Levels, LEVELS),
        row(
            (C::Reducescatter, W::Shared),
            R::Any,
            None,
            A::Sliced,
            "each rank reduces its part in its cache",
        ),
        row((C::Reducescatter, W::Linked), R::Any, None, A::Ring, ONCE),
        row((C::Reducescatter, W::Both), R::Any, None, A::Levels, LEVELS),
        row((C::Alltoall, W::Shared), R::Any, None, A::Pieces, ONLY),
        row(
            (C::Alltoall, W::Linked),
            R::Any,
            None,
            A::Pairs,
            "each byte is sent once, straight to its destination",
        ),
        row((C::Alltoall, W::Both), R::Any, None, A::Levels, LEVELS),
        row((C::Barrier, W::Shared), R::Any, None, A::Step, ONLY),
        row((C::Barrier, W::Linked), R::Any, None, A::Dissemination, MESSAGES),
        row((C::Barrier, W::Both), R::Any, None, A::Levels, LEVELS),
    ]
};

impl ChoiceRow {
    fn fits(&self, case: &ChoiceInput, tuning: &Tuning) -> bool {
        let ranks = match self.ranks {
            RankCount::Any => true,
            RankCount::One => case.ranks == 1,
            RankCount::Several => case.ranks > 2,
        };
        let bytes = self.upto.as_ref().is_none_or(|knob| case.bytes as u64 <= tuning.value(knob));
        (self.collective, self.connectivity) == (case.collective, case.connectivity)
            && ranks
            && bytes
    }
}

impl ChoiceInput {
    /// The algorithm for this case.
    pub fn choose(self, tuning: &Tuning) -> Choice {
        let row = CHOICES.iter().find(|row| row.fits(&self, tuning));
        let row = row.expect("the last row of each collective always fits");
        let what = self.collective.into();
        Choice { algorithm: row.algorithm, why: row.why, what, case: self }
    }

    /// The same for Adasum, which has one algorithm, whatever connects the ranks.
    pub fn choose_adasum(self) -> Choice {
        let why = "each pair shares the work, and every byte goes twice at most";
        Choice { algorithm: Algorithm::Halving, why, what: "adasum", case: self }
    }
}

/// The size is rounded up to a power of two, so that one choice is logged once, not for every size.
impl fmt::Display for Choice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ChoiceInput { connectivity, bytes, ranks, hosts, .. } = self.case;
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
        for &collective in Collective::ALL {
            for &connectivity in Connectivity::VARIANTS {
                let last = CHOICES
                    .iter()
                    .rfind(|row| (row.collective, row.connectivity) == (collective, connectivity));
                let last = last.map(|row| (row.ranks, row.upto.is_none()));
                assert_eq!(last, Some((RankCount::Any, true)), "{collective} {connectivity}");
            }
        }
    }

    #[test]
    fn no_row_follows_one_that_always_fits() {
        for (index, row) in CHOICES.iter().enumerate() {
            let is_same = |other: &ChoiceRow| {
                (row.collective, row.connectivity) == (other.collective, other.connectivity)
            };
            let is_last = !CHOICES[index + 1..].iter().any(is_same);
            assert_eq!(row.ranks == RankCount::Any && row.upto.is_none(), is_last, "{row:?}");
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

    #[test]
    fn two_ranks_leave_halving_out_and_one_rank_needs_no_message() {
        let case = |ranks| ChoiceInput {
            collective: Collective::Allreduce,
            connectivity: Connectivity::Linked,
            bytes: 100_000,
            ranks,
            hosts: ranks,
        };
        let chosen = |ranks| case(ranks).choose(&Tuning::default()).algorithm;
        assert_eq!(
            [1, 2, 3].map(chosen),
            [Algorithm::Doubling, Algorithm::Ring, Algorithm::Halving]
        );
    }
}
