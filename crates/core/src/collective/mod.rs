//! The collectives: one folder each, one file per algorithm, and here the table that chooses.

mod allgather;
mod allreduce;
mod alltoall;
mod barrier;
mod broadcast;
mod reducescatter;

use std::ops::Range;

use crate::buffer::Segments;
use crate::error::Error;
use crate::group::Group;
use crate::reduce::Reduction;

/// Up to here shared memory takes the way with one exchange instead of two.
const ONE_SHOT: usize = 16 << 10;
/// Up to here sockets take the way with the fewest messages.
const FEW_MESSAGES: usize = 32 << 10;

/// Where a bucket comes from and where its result goes; the two may be the same memory.
pub(crate) struct Operands {
    pub(crate) source: Segments,
    pub(crate) target: Segments,
}

pub(crate) fn allreduce(
    group: &mut Group<'_>,
    operands: &Operands,
    reduction: &Reduction,
) -> Result<(), Error> {
    let bytes = operands.source.length();
    match group {
        Group::Shared(shared) if bytes <= ONE_SHOT => {
            allreduce::one_shot(shared, operands, reduction)
        }
        Group::Shared(shared) => allreduce::sliced(shared, operands, reduction),
        // A ring needs two.
        Group::Linked(links) if bytes <= FEW_MESSAGES || links.size() == 1 => {
            allreduce::doubling(links, operands, reduction)
        }
        Group::Linked(links) => allreduce::ring(links, operands, reduction),
    }
}

/// Gathers `source` of every rank into `target`; `cuts` says which part of it is whose.
pub(crate) fn allgather(
    group: &mut Group<'_>,
    operands: &Operands,
    cuts: &[Range<usize>],
) -> Result<(), Error> {
    match group {
        Group::Shared(shared) => allgather::pieces(shared, operands, cuts),
        Group::Linked(links) => allgather::ring(links, operands, cuts),
    }
}

pub(crate) fn broadcast(
    group: &mut Group<'_>,
    operands: &Operands,
    root: usize,
) -> Result<(), Error> {
    match group {
        Group::Shared(shared) => broadcast::pieces(shared, operands, root),
        Group::Linked(links) if operands.source.length() <= FEW_MESSAGES => {
            broadcast::tree(links, operands, root)
        }
        Group::Linked(links) => broadcast::chain(links, operands, root),
    }
}

/// Reduces everybody's `source` and gives each its part of it; `cuts` says which part is whose.
pub(crate) fn reducescatter(
    group: &mut Group<'_>,
    operands: &Operands,
    reduction: &Reduction,
    cuts: &[Range<usize>],
) -> Result<(), Error> {
    match group {
        Group::Shared(shared) => reducescatter::sliced(shared, operands, reduction, cuts),
        Group::Linked(links) => reducescatter::ring(links, operands, reduction, cuts),
    }
}

/// Gives everybody the part that everybody has for it.
pub(crate) fn alltoall(
    group: &mut Group<'_>,
    operands: &Operands,
    parts: &Parts,
) -> Result<(), Error> {
    match group {
        Group::Shared(shared) => alltoall::pieces(shared, operands, parts),
        Group::Linked(links) => alltoall::pairs(links, operands, parts),
    }
}

/// How many bytes each rank has for each: `all[from][to]`.
pub(crate) struct Parts {
    pub(crate) all: Vec<Vec<usize>>,
}

impl Parts {
    /// Where in its source a rank's part for each rank lies.
    fn outgoing(&self, me: usize) -> Vec<Range<usize>> {
        row(self.all[me].iter().copied())
    }

    /// Where in its target the part of each rank for this one goes.
    fn incoming(&self, me: usize) -> Vec<Range<usize>> {
        row(self.all.iter().map(|from| from[me]))
    }
}

/// The places of parts of these lengths one behind the other.
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

pub(crate) fn barrier(group: &mut Group<'_>) -> Result<(), Error> {
    match group {
        Group::Shared(shared) => barrier::step(shared),
        Group::Linked(links) => barrier::dissemination(links),
    }
}

/// Cuts `length` bytes into `parts` parts that differ by at most one grain, on element boundaries.
fn cut(length: usize, parts: usize, part: usize, element: usize) -> Range<usize> {
    /// Slices of whole cache lines keep two ranks from writing the same line.
    const GRAIN: usize = 64;
    let grain = GRAIN.max(element);
    let grains = length.div_ceil(grain);
    let at = |part: usize| (grains * part / parts * grain).min(length);
    at(part)..at(part + 1)
}

/// The ranges of a row in pieces of at most `piece` bytes.
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
