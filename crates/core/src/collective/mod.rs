//! The collectives: one folder each, one file per algorithm; the table in `control::choice` decides
//! which one runs.

mod adasum;
mod allgather;
mod allreduce;
mod alltoall;
mod barrier;
mod broadcast;
mod reducescatter;

use std::ops::Range;

use ronde_control::choice::{Algorithm, Choice, ChoiceInput, Connectivity};
use ronde_control::{Collective, ReduceOp, Tuning};

use crate::buffer::{Operands, Row, RowMut};
use crate::error::Error;
use crate::group::{Group, Linked};
use crate::reduce::Reduction;

pub(crate) fn allreduce(
    group: &mut Group<'_>,
    operands: &mut Operands<'_>,
    reduction: &Reduction,
) -> Result<Choice, Error> {
    if reduction.op == ReduceOp::Adasum {
        let choice = case(group, Collective::Allreduce, operands.length()).0.choose_adasum();
        return adasum::halving(group, operands, reduction).map(|()| choice);
    }
    let choice = choose(group, Collective::Allreduce, operands.length());
    match (group, choice.algorithm) {
        (Group::Shared(shared), Algorithm::OneShot) => {
            allreduce::one_shot(shared, operands, reduction)
        }
        (Group::Shared(shared), Algorithm::Sliced) => {
            match allreduce::in_place(shared, operands, reduction)? {
                Some(done) => allreduce::sliced(shared, &mut operands.without(&done), reduction),
                None => allreduce::sliced(shared, operands, reduction),
            }
        }
        (Group::Linked(links), algorithm) => {
            linked_allreduce(links, algorithm, operands, reduction)
        }
        (Group::Islands(islands), Algorithm::Levels) => {
            allreduce::levels(islands, operands, reduction)
        }
        (_, algorithm) => not_here(algorithm),
    }?;
    Ok(choice)
}

fn linked_allreduce(
    links: &mut Linked<'_>,
    algorithm: Algorithm,
    operands: &mut Operands<'_>,
    reduction: &Reduction,
) -> Result<(), Error> {
    match algorithm {
        Algorithm::Doubling => allreduce::doubling(links, operands, reduction),
        Algorithm::Halving => allreduce::halving(links, operands, reduction),
        Algorithm::Ring => allreduce::ring(links, operands, reduction),
        _ => not_here(algorithm),
    }
}

/// Gathers the `source` of every rank into `target`; `cuts` are the ranges that the ranks fill.
pub(crate) fn allgather(
    group: &mut Group<'_>,
    (source, target): (&Row<'_>, &mut RowMut<'_>),
    cuts: &[Range<usize>],
) -> Result<Choice, Error> {
    let choice = choose(group, Collective::Allgather, target.length());
    match (group, choice.algorithm) {
        (Group::Shared(shared), Algorithm::Pieces) => {
            allgather::pieces(shared, Some(source), target, cuts)
        }
        (Group::Linked(links), Algorithm::Ring) => {
            allgather::ring(links, Some(source), target, cuts)
        }
        (Group::Islands(islands), Algorithm::Levels) => {
            allgather::levels(islands, source, target, cuts)
        }
        (_, algorithm) => not_here(algorithm),
    }?;
    Ok(choice)
}

pub(crate) fn broadcast(
    group: &mut Group<'_>,
    operands: &mut Operands<'_>,
    root: usize,
) -> Result<Choice, Error> {
    let choice = choose(group, Collective::Broadcast, operands.length());
    match (group, choice.algorithm) {
        (Group::Shared(shared), Algorithm::Pieces) => broadcast::pieces(shared, operands, root),
        (Group::Linked(links), algorithm) => linked_broadcast(links, algorithm, operands, root),
        (Group::Islands(islands), Algorithm::Levels) => broadcast::levels(islands, operands, root),
        (_, algorithm) => not_here(algorithm),
    }?;
    Ok(choice)
}

fn linked_broadcast(
    links: &mut Linked<'_>,
    algorithm: Algorithm,
    operands: &mut Operands<'_>,
    root: usize,
) -> Result<(), Error> {
    match algorithm {
        Algorithm::Tree => broadcast::tree(links, operands, root),
        Algorithm::Chain => broadcast::chain(links, operands, root),
        _ => not_here(algorithm),
    }
}

/// Reduces the `source` of all ranks and leaves each rank with its part of the result; `cuts` are
/// the parts of the ranks.
pub(crate) fn reducescatter(
    group: &mut Group<'_>,
    (source, target): (&Row<'_>, &mut RowMut<'_>),
    reduction: &Reduction,
    cuts: &[Range<usize>],
) -> Result<Choice, Error> {
    let choice = choose(group, Collective::Reducescatter, source.length());
    match (group, choice.algorithm) {
        (Group::Shared(shared), Algorithm::Sliced) => {
            let parts: Vec<Row<'_>> = cuts.iter().map(|cut| source.slice(cut.clone())).collect();
            let mut own = Operands::apart(&parts[shared.me()], target.reborrow());
            reducescatter::sliced(shared, &parts, &mut own, reduction)
        }
        (Group::Linked(links), Algorithm::Ring) => {
            reducescatter::ring(links, source, target, reduction, cuts)
        }
        (Group::Islands(islands), Algorithm::Levels) => {
            reducescatter::levels(islands, source, target, reduction, cuts)
        }
        (_, algorithm) => not_here(algorithm),
    }?;
    Ok(choice)
}

/// Sends each rank the part of every `source` that is meant for it.
pub(crate) fn alltoall(
    group: &mut Group<'_>,
    (source, target): (&Row<'_>, &mut RowMut<'_>),
    parts: &Parts,
) -> Result<Choice, Error> {
    let choice = choose(group, Collective::Alltoall, source.length());
    match (group, choice.algorithm) {
        (Group::Shared(shared), Algorithm::Pieces) => {
            alltoall::pieces(shared, source, target, parts)
        }
        (Group::Linked(links), Algorithm::Pairs) => alltoall::pairs(links, source, target, parts),
        (Group::Islands(islands), Algorithm::Levels) => {
            alltoall::levels(islands, source, target, parts)
        }
        (_, algorithm) => not_here(algorithm),
    }?;
    Ok(choice)
}

pub(crate) fn barrier(group: &mut Group<'_>) -> Result<Choice, Error> {
    let choice = choose(group, Collective::Barrier, 0);
    match (group, choice.algorithm) {
        (Group::Shared(shared), Algorithm::Step) => barrier::step(shared),
        (Group::Linked(links), Algorithm::Dissemination) => barrier::dissemination(links),
        (Group::Islands(islands), Algorithm::Levels) => barrier::levels(islands),
        (_, algorithm) => not_here(algorithm),
    }?;
    Ok(choice)
}

/// The table is wrong: tests run every row of it.
fn not_here(algorithm: Algorithm) -> ! {
    unreachable!("the table of choices has {algorithm} where it cannot run")
}

fn choose(group: &Group<'_>, collective: Collective, bytes: usize) -> Choice {
    let (case, tuning) = case(group, collective, bytes);
    case.choose(&tuning)
}

fn case(group: &Group<'_>, collective: Collective, bytes: usize) -> (ChoiceInput, Tuning) {
    let (connectivity, ranks, hosts, tuning) = match group {
        Group::Shared(shared) => (Connectivity::Shared, shared.ranks(), 1, shared.tuning()),
        Group::Linked(links) => (Connectivity::Linked, links.size(), links.size(), links.tuning()),
        Group::Islands(islands) => {
            (Connectivity::Both, islands.size(), islands.islands().len(), islands.tuning())
        }
    };
    (ChoiceInput { collective, connectivity, bytes, ranks, hosts }, tuning)
}

/// The algorithm for one carrier per island, connected by sockets.
fn choose_between(links: &Linked<'_>, collective: Collective, bytes: usize) -> Algorithm {
    let (connectivity, size) = (Connectivity::Linked, links.size());
    ChoiceInput { collective, connectivity, bytes, ranks: size, hosts: size }
        .choose(&links.tuning())
        .algorithm
}

/// How many bytes each rank sends to each other rank: `all[from][to]`.
pub(crate) struct Parts {
    pub(crate) all: Vec<Vec<usize>>,
}

impl Parts {
    /// The ranges of a rank's source that go to each rank.
    fn outgoing(&self, me: usize) -> Vec<Range<usize>> {
        row(self.all[me].iter().copied())
    }

    /// The ranges of a rank's target that come from each rank.
    fn incoming(&self, me: usize) -> Vec<Range<usize>> {
        row(self.all.iter().map(|from| from[me]))
    }
}

/// The ranges of parts of these lengths, one after another.
pub(crate) fn row(lengths: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    let mut end = 0;
    lengths
        .map(|length| {
            let start = end;
            end += length;
            start..end
        })
        .collect()
}

/// Range number `part` when `length` bytes are cut into `parts` ranges on element boundaries, as
/// equal as whole cache lines allow.
fn cut(length: usize, parts: usize, part: usize, element: usize) -> Range<usize> {
    /// Slices are whole cache lines, so that two ranks never write to the same line.
    const GRAIN: usize = 64;
    let grain = GRAIN.max(element);
    let grains = length.div_ceil(grain);
    let at = |part: usize| (grains * part / parts * grain).min(length);
    at(part)..at(part + 1)
}

/// Splits `length` bytes into ranges of at most `piece` bytes.
fn pieces(length: usize, piece: usize) -> impl Iterator<Item = Range<usize>> {
    (0..length).step_by(piece).map(move |start| start..(start + piece).min(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_cover_everything_once_on_element_boundaries() {
        for length in [0, 8, 64, 72, 1000 * 8, 12345 * 8] {
            for parts in 1..10 {
                let mut end = 0;
                for part in 0..parts {
                    let range = cut(length, parts, part, 8);
                    assert_eq!(range.start, end);
                    assert_eq!(range.start % 8, 0);
                    end = range.end;
                }
                assert_eq!(end, length);
            }
        }
    }
}
