//! What a rank sends along in a round without negotiation, and the result that each computes from
//! all ranks' data.
//!
//! Elements are combined in the order of the ranks, as everywhere in shared memory. Where ranks may
//! have different numbers of rows, these come first, eight bytes each.

use std::ops::Range;

use ronde_control::Rank;
use ronde_control::negotiate::{CollectiveKind, ReleasedTensor, Request};

use super::super::results::Results;
use super::super::run::{BucketOutcome, check_shares, even_cuts, rows_of};
use super::super::ticket::{Outcome, Tensors};
use crate::error::Error;
use crate::reduce::{Reduction, Term, combine};

const WORD: usize = size_of::<u64>();

/// The number of bytes that this rank sends along.
pub(super) fn contribution_length(request: &Request, tensors: &mut Tensors, me: Rank) -> usize {
    match request.kind {
        CollectiveKind::Broadcast { root } if root != me => 0,
        _ => {
            let inputs = tensors.inputs().iter().map(|input| covered(request, input.bytes()).len());
            let inputs: usize = inputs.sum();
            let given: usize = tensors.operands().iter().map(|given| given.lengths().0).sum();
            WORD * request.share().len() + inputs + given
        }
    }
}

/// Copies it to its place, which has that length.
pub(super) fn contribute(request: &Request, tensors: &mut Tensors, mut room: &mut [u8]) {
    if room.is_empty() {
        return;
    }
    let mut put = |bytes: &[u8]| {
        let (near, far) = std::mem::take(&mut room).split_at_mut(bytes.len());
        near.copy_from_slice(bytes);
        room = far;
    };
    request.share().iter().for_each(|rows| put(&rows.to_ne_bytes()));
    tensors.inputs().iter().for_each(|input| put(covered(request, input.bytes())));
    for operand in tensors.operands() {
        let (source, target) = operand.pair();
        put(source.unwrap_or(target));
    }
}

/// The part of an input that goes to some rank: the rows of an alltoall may exceed its splits.
fn covered<'a>(request: &Request, input: &'a [u8]) -> &'a [u8] {
    match (&request.kind, request.shapes.first()) {
        (CollectiveKind::Alltoall { splits }, Some(shape)) => {
            let unit = shape[1..].iter().product::<u64>() as usize * request.dtype.size();
            &input[..splits.iter().sum::<u64>() as usize * unit]
        }
        _ => input,
    }
}

/// Computes this rank's results from what all ranks have sent along.
pub(super) fn results(
    request: &Request,
    tensors: &mut Tensors,
    contributions: &[&[u8]],
    me: Rank,
) -> Result<BucketOutcome, Error> {
    check_lengths(request, contributions)?;
    let outcome = match &request.kind {
        CollectiveKind::Allreduce { op, prescale, postscale } => {
            let (prescale, postscale) = (*prescale, *postscale);
            let reduction = Reduction { dtype: request.dtype, op: *op, prescale, postscale };
            let mut start = 0;
            for operand in tensors.operands() {
                let (_, target) = operand.pair();
                let range = start..start + target.len();
                start = range.end;
                let terms = contributions.iter().map(|all| Term::Of(&all[range.clone()]));
                combine(target, terms, &reduction);
            }
            Ok(Outcome::Done)
        }
        CollectiveKind::Broadcast { root } => {
            let mut rest = contributions[root.index()];
            for operand in tensors.operands() {
                let (_, target) = operand.pair();
                let (near, far) = rest.split_at(target.len());
                target.copy_from_slice(near);
                rest = far;
            }
            Ok(Outcome::Done)
        }
        CollectiveKind::Allgather
        | CollectiveKind::Alltoall { .. }
        | CollectiveKind::Reducescatter { .. } => {
            let shares = shares(request, contributions);
            let work = ReleasedTensor { request: request.clone(), shares, is_absent: false };
            let mut results = Results::new(tensors.allocator());
            let mut starts: Vec<usize> =
                contributions.iter().map(|_| WORD * request.share().len()).collect();
            for index in 0..request.shapes.len() {
                place(&work, index, (contributions, &mut starts), (&mut results, me))?;
            }
            results.outcome()
        }
        CollectiveKind::Barrier
        | CollectiveKind::AddSet { .. }
        | CollectiveKind::RemoveSet { .. } => Ok(Outcome::Done),
    };
    Ok(BucketOutcome { outcome, algorithm: Some("express") })
}

/// Computes the result of one tensor of a group; `starts` is where its data begins in each
/// contribution, and afterwards where it ends.
fn place(
    work: &ReleasedTensor,
    index: usize,
    (contributions, starts): (&[&[u8]], &mut [usize]),
    (results, me): (&mut Results<'_>, Rank),
) -> Result<(), Error> {
    let (size, me) = (contributions.len(), me.index());
    let Request { kind, dtype, shapes, .. } = &work.request;
    let shape = &shapes[index];
    let unit = shape[1..].iter().product::<u64>() as usize * dtype.size();
    check_shares(work, unit, (me, size))?;
    let bytes = |rows: u64| rows as usize * unit;
    let mut parts: Vec<Range<usize>> = Vec::with_capacity(size);
    let mut rows: Vec<u64> = Vec::with_capacity(size);
    for (rank, start) in starts.iter_mut().enumerate() {
        let (skipped, own, all) = match kind {
            CollectiveKind::Allgather => {
                let rows = work.shares[rank][index];
                (0, rows, rows)
            }
            CollectiveKind::Alltoall { .. } => {
                let splits = &work.shares[rank];
                (splits[..me].iter().sum(), splits[me], splits.iter().sum())
            }
            _ => {
                let cut = &even_cuts(shape[0], size, 1)[me];
                (cut.start as u64, rows_of(shape[0], size, me), shape[0])
            }
        };
        parts.push(*start + bytes(skipped)..*start + bytes(skipped + own));
        rows.push(own);
        *start += bytes(all);
    }
    match kind {
        CollectiveKind::Reducescatter { op, prescale, postscale } => {
            let (prescale, postscale) = (*prescale, *postscale);
            let reduction = Reduction { dtype: *dtype, op: *op, prescale, postscale };
            let target = results.place(vec![rows[me]], parts[me].len());
            let terms = contributions.iter().zip(&parts);
            combine(target, terms.map(|(all, part)| Term::Of(&all[part.clone()])), &reduction);
        }
        _ => {
            let mut rest = results.place(rows, parts.iter().map(Range::len).sum());
            for (all, part) in contributions.iter().zip(parts) {
                let (near, far) = rest.split_at_mut(part.len());
                near.copy_from_slice(&all[part]);
                rest = far;
            }
        }
    }
    Ok(())
}

/// The shares that come before the data, if the collective has any.
fn shares(request: &Request, contributions: &[&[u8]]) -> Vec<Vec<u64>> {
    let count = request.share().len();
    let share = |all: &&[u8]| {
        let (words, _) = all.as_chunks::<WORD>();
        words.iter().take(count).map(|word| u64::from_ne_bytes(*word)).collect()
    };
    contributions.iter().map(share).collect()
}

/// Contributions come from other ranks; each must be as long as its rank says.
fn check_lengths(request: &Request, contributions: &[&[u8]]) -> Result<(), Error> {
    let shares = shares(request, contributions);
    for (rank, (all, share)) in contributions.iter().zip(&shares).enumerate() {
        let needed = match &request.kind {
            CollectiveKind::Broadcast { root } if root.index() != rank => Some(0),
            _ => needed(request, share),
        };
        if needed != Some(all.len() as u64) {
            let what = format!("the data for `{}` has {} bytes", request.name, all.len());
            return Err(Error::malformed(Rank(rank as u32), what));
        }
    }
    Ok(())
}

/// The bytes of a contribution with this share; `None` if there are too many.
fn needed(request: &Request, share: &[u64]) -> Option<u64> {
    let size = request.dtype.size() as u64;
    let bytes = |rows: u64, shape: &[u64]| {
        shape[1..].iter().try_fold(rows.checked_mul(size)?, |all, n| all.checked_mul(*n))
    };
    let add = |all: u64, more: Option<u64>| all.checked_add(more?);
    let data = match &request.kind {
        CollectiveKind::Allgather => {
            let mut pairs = request.shapes.iter().zip(share);
            pairs.try_fold(0, |all, (shape, rows)| add(all, bytes(*rows, shape)))
        }
        CollectiveKind::Alltoall { .. } => {
            let shape = request.shapes.first()?;
            share.iter().try_fold(0, |all, rows| add(all, bytes(*rows, shape)))
        }
        _ => Some(request.bytes()),
    };
    add((WORD * share.len()) as u64, data)
}
