//! Runs a released bucket: turns requests and memory into a collective and its outcome.

use std::ops::Range;

use ronde_control::choice::Choice;
use ronde_control::negotiate::{CollectiveKind, ReleasedTensor, Request};
use ronde_control::{Rank, SetId};

use super::progress::InFlight;
use super::results::Results;
use super::ticket::{Outcome, Tensors};
use crate::buffer::{Buffer, Operand, Operands, Row, RowMut};
use crate::collective::{self, Parts, row};
use crate::error::Error;
use crate::group::{Group, Groups};
use crate::reduce::Reduction;

/// Largest tensor we accept, in bytes.
const MAX_TENSOR_BYTES: u64 = 1 << 48;

/// The outcome of a bucket and the algorithm that produced it; none if no data moved. A bucket that
/// ran may still have failed for this rank alone.
pub(super) struct BucketOutcome {
    pub(super) outcome: Result<Outcome, Error>,
    pub(super) algorithm: Option<&'static str>,
}

/// Runs one bucket, whose tensors all have the same kind and set. A rank that has joined has
/// nothing in flight and takes part with zeros.
pub(super) fn run(
    groups: &mut Groups,
    bucket: &[ReleasedTensor],
    flights: &mut [Option<InFlight>],
) -> Result<BucketOutcome, Error> {
    let Request { kind, dtype, set, .. } = &bucket[0].request;
    tracing::trace!(kind = kind.name(), tensors = bucket.len(), "running a bucket");
    let (me, size) = place(groups, *set)?;
    let root = root(groups, &bucket[0].request)?;
    let mut group = group(groups, *set)?;
    let reduction = |op, prescale, postscale| Reduction { dtype: *dtype, op, prescale, postscale };
    let mut choice = None;
    let outcome = match kind {
        CollectiveKind::Allreduce { op, prescale, postscale } => {
            let mut zeros = zeros(bucket, flights);
            let mut operands = operands(bucket, flights, &mut zeros);
            let reduction = reduction(*op, *prescale, *postscale);
            choice = Some(collective::allreduce(&mut group, &mut operands, &reduction)?);
            Ok(Outcome::Done)
        }
        CollectiveKind::Broadcast { .. } => {
            let mut zeros = zeros(bucket, flights);
            let mut operands = operands(bucket, flights, &mut zeros);
            let root = root.unwrap_or_default();
            choice = Some(collective::broadcast(&mut group, &mut operands, root)?);
            Ok(Outcome::Done)
        }
        CollectiveKind::Barrier => {
            choice = Some(collective::barrier(&mut group)?);
            Ok(Outcome::Done)
        }
        CollectiveKind::Allgather
        | CollectiveKind::Alltoall { .. }
        | CollectiveKind::Reducescatter { .. } => {
            let tensors = flights[0].as_ref().map(|flight| &flight.pending.tensors);
            let mut results = Results::new(tensors.and_then(Tensors::allocator));
            let inputs = tensors.map_or(&[][..], Tensors::inputs);
            for (index, input) in inputs.iter().enumerate() {
                let place = (&mut results, me, size);
                choice = Some(make(&mut group, &bucket[0], index, input.bytes(), place)?);
            }
            results.outcome()
        }
        CollectiveKind::AddSet { .. } | CollectiveKind::RemoveSet { .. } => Ok(Outcome::Done),
    };
    if let Some(choice) = choice
        && tracing::enabled!(tracing::Level::DEBUG)
    {
        groups.log_once(&choice.to_string());
    }
    Ok(BucketOutcome { outcome, algorithm: choice.map(|choice| choice.algorithm.into()) })
}

/// This rank's place in a set, and the number of its members.
pub(super) fn place(groups: &Groups, set: SetId) -> Result<(usize, usize), Error> {
    let process_set = groups.process_set(set);
    process_set
        .map(|process_set| (process_set.me(), process_set.size()))
        .ok_or_else(|| Error::Invalid(format!("process set {} does not exist", set.0)))
}

/// The place of the root, if the request has one.
pub(super) fn root(groups: &Groups, request: &Request) -> Result<Option<usize>, Error> {
    let CollectiveKind::Broadcast { root } = request.kind else { return Ok(None) };
    let place = groups.process_set(request.set).and_then(|process_set| process_set.place(root));
    let missing = || Error::Invalid("the root rank is not a member of the process set".into());
    place.ok_or_else(missing).map(Some)
}

/// What connects the members of a set.
pub(super) fn group(groups: &mut Groups, set: SetId) -> Result<Group<'_>, Error> {
    groups.group(set).ok_or_else(|| {
        Error::Invalid(format!("the ranks of process set {} are not connected", set.0))
    })
}

/// Runs a collective whose result size has just become known, for one tensor of a group.
fn make(
    group: &mut Group<'_>,
    work: &ReleasedTensor,
    index: usize,
    source: &[u8],
    (results, me, size): (&mut Results<'_>, usize, usize),
) -> Result<Choice, Error> {
    let Request { kind, dtype, shapes, .. } = &work.request;
    let shape = &shapes[index];
    let unit = (shape[1..].iter().product::<u64>() as usize) * dtype.size();
    check_shares(work, unit, (me, size))?;
    let bytes = |rows: &u64| *rows as usize * unit;
    let source = Row::new(vec![source]);
    let place = move |rows, length| {
        let results = results;
        RowMut::new(vec![results.place(rows, length)])
    };
    match kind {
        CollectiveKind::Allgather => {
            let rows: Vec<u64> = work.shares.iter().map(|share| share[index]).collect();
            let cuts = row(rows.iter().map(bytes));
            let mut target = place(rows, cuts.last().map_or(0, |cut| cut.end));
            collective::allgather(group, (&source, &mut target), &cuts)
        }
        CollectiveKind::Alltoall { .. } => {
            let all = work.shares.iter().map(|share| share.iter().map(bytes).collect()).collect();
            let rows: Vec<u64> = work.shares.iter().map(|share| share[me]).collect();
            let length = rows.iter().map(bytes).sum();
            let mut target = place(rows, length);
            collective::alltoall(group, (&source, &mut target), &Parts { all })
        }
        CollectiveKind::Reducescatter { op, prescale, postscale } => {
            let cuts = even_cuts(shape[0], size, unit);
            let mut target = place(vec![rows_of(shape[0], size, me)], cuts[me].len());
            let (prescale, postscale) = (*prescale, *postscale);
            let reduction = Reduction { dtype: *dtype, op: *op, prescale, postscale };
            collective::reducescatter(group, (&source, &mut target), &reduction, &cuts)
        }
        _ => Err(Error::Invalid(format!("{} does not allocate its results", kind.name()))),
    }
}

/// The shares come from other ranks. Each must have the right number of entries, none of them too
/// large, and this rank's share must be the one it submitted.
pub(super) fn check_shares(
    work: &ReleasedTensor,
    unit: usize,
    (me, size): (usize, usize),
) -> Result<(), Error> {
    let needed = match &work.request.kind {
        CollectiveKind::Allgather => work.request.shapes.len(),
        CollectiveKind::Alltoall { .. } => size,
        _ => return Ok(()),
    };
    let fits = |rows: &u64| {
        rows.checked_mul(unit.max(1) as u64).is_some_and(|bytes| bytes < MAX_TENSOR_BYTES)
    };
    let is_valid = |share: &Vec<u64>| share.len() == needed && share.iter().all(fits);
    let is_own = work.shares.get(me) == Some(&work.request.share());
    match is_own && work.shares.len() == size && work.shares.iter().all(is_valid) {
        true => Ok(()),
        false => {
            let what = format!("the shares of `{}` are inconsistent", work.request.name);
            Err(Error::malformed(Rank(0), what))
        }
    }
}

/// The number of rows of one member if `rows` are split as evenly as possible; the first members
/// get the remainder, one row each.
pub(super) fn rows_of(rows: u64, size: usize, place: usize) -> u64 {
    rows / size as u64 + u64::from((place as u64) < rows % size as u64)
}

pub(super) fn even_cuts(rows: u64, size: usize, unit: usize) -> Vec<Range<usize>> {
    row((0..size).map(|place| rows_of(rows, size, place) as usize * unit))
}

/// Zeros in place of tensors that this rank never submitted.
fn zeros(bucket: &[ReleasedTensor], flights: &[Option<InFlight>]) -> Vec<Buffer> {
    let absent = bucket.iter().zip(flights).filter(|(_, flight)| flight.is_none());
    absent.map(|(work, _)| Buffer::zeros(work.request.bytes() as usize)).collect()
}

/// The inputs and outputs of a bucket.
fn operands<'a>(
    bucket: &[ReleasedTensor],
    flights: &'a mut [Option<InFlight>],
    zeros: &'a mut [Buffer],
) -> Operands<'a> {
    let (mut pairs, mut zeros) = (Vec::with_capacity(bucket.len()), zeros.iter_mut());
    for (work, flight) in bucket.iter().zip(flights) {
        if let Some(flight) = flight {
            pairs.extend(flight.pending.tensors.operands().iter_mut().map(Operand::pair));
            continue;
        }
        let Request { dtype, shapes, .. } = &work.request;
        let mut rest = zeros.next().map_or(&mut [][..], Buffer::bytes_mut);
        // Adasum depends on the boundaries between tensors, so they must be kept.
        for shape in shapes {
            let bytes = shape.iter().product::<u64>() as usize * dtype.size();
            let (tensor, remaining) = rest.split_at_mut(bytes);
            pairs.push((None, tensor));
            rest = remaining;
        }
    }
    Operands::new(pairs)
}

#[cfg(test)]
mod tests {
    use ronde_control::{DType, DeviceKind, SetId};

    use super::*;

    #[test]
    fn shares_that_do_not_fit_what_this_rank_has_are_refused() {
        let work = |shares: &[&[u64]]| ReleasedTensor {
            request: Request {
                name: "x".into(),
                set: SetId::WORLD,
                kind: CollectiveKind::Alltoall { splits: vec![1, 2] },
                dtype: DType::F32,
                shapes: vec![vec![3, 5]],
                device: DeviceKind::Cpu,
            },
            shares: shares.iter().map(|share| share.to_vec()).collect(),
            is_absent: false,
        };
        let check = |shares: &[&[u64]]| check_shares(&work(shares), 20, (1, 2));
        assert_eq!(check(&[&[7, 0], &[1, 2]]), Ok(()));
        let wrong: [&[&[u64]]; 5] = [
            &[&[7, 0], &[1, 9]],
            &[&[7, 0], &[1]],
            &[&[7, 0]],
            &[&[7], &[1, 2]],
            &[&[1 << 50, 0], &[1, 2]],
        ];
        for shares in wrong {
            assert!(matches!(check(shares), Err(Error::Malformed { .. })), "{shares:?}");
        }
    }
}
