//! Runs a released bucket: from requests and memory to a collective and its outcome.

use std::ops::Range;

use ronde_control::Rank;
use ronde_control::negotiate::{Kind, Request, Work};

use super::progress::Flight;
use super::results::Results;
use super::ticket::{Outcome, Tensors};
use crate::buffer::{Buffer, Operand, Operands, Row, RowMut};
use crate::collective::{self, Choice, Parts, row};
use crate::error::Error;
use crate::group::{Group, Groups};
use crate::reduce::Reduction;

/// More bytes than this no tensor has.
const MOST: u64 = 1 << 48;

/// What came of a bucket, and by which algorithm; none where nothing travelled. A bucket that ran may
/// still have failed for this rank alone.
pub(super) struct Ran {
    pub(super) outcome: Result<Outcome, Error>,
    pub(super) algorithm: Option<&'static str>,
}

/// Runs one bucket, all of whose tensors are of one kind and one set. A rank that has joined has no
/// flight and takes part with zeros.
pub(super) fn run(
    groups: &mut Groups,
    bucket: &[Work],
    flights: &mut [Option<Flight>],
) -> Result<Ran, Error> {
    let Request { kind, dtype, set, .. } = &bucket[0].request;
    tracing::trace!(kind = kind.name(), tensors = bucket.len(), "running a bucket");
    let Some(circle) = groups.circle(*set) else {
        return Err(Error::Invalid(format!("process set {} does not exist", set.0)));
    };
    let (me, size) = (circle.me(), circle.size());
    let root = match kind {
        Kind::Broadcast { root } => circle.place(*root),
        _ => None,
    };
    let Some(mut group) = groups.group(*set) else {
        return Err(Error::Invalid(format!("nothing connects process set {}", set.0)));
    };
    let reduction = |op, prescale, postscale| Reduction { dtype: *dtype, op, prescale, postscale };
    let mut choice = None;
    let outcome = match kind {
        Kind::Allreduce { op, prescale, postscale } => {
            let mut zeros = zeros(bucket, flights);
            let mut operands = operands(bucket, flights, &mut zeros);
            let reduction = reduction(*op, *prescale, *postscale);
            choice = Some(collective::allreduce(&mut group, &mut operands, &reduction)?);
            Ok(Outcome::Done)
        }
        Kind::Broadcast { .. } => {
            let mut zeros = zeros(bucket, flights);
            let mut operands = operands(bucket, flights, &mut zeros);
            let root = root.ok_or_else(|| Error::Invalid("the root is no member".into()))?;
            choice = Some(collective::broadcast(&mut group, &mut operands, root)?);
            Ok(Outcome::Done)
        }
        Kind::Barrier => {
            choice = Some(collective::barrier(&mut group)?);
            Ok(Outcome::Done)
        }
        Kind::Allgather | Kind::Alltoall { .. } | Kind::Reducescatter { .. } => {
            let tensors = flights[0].as_ref().map(|flight| &flight.pending.tensors);
            let mut results = Results::new(tensors.and_then(Tensors::room));
            let inputs = tensors.map_or(&[][..], Tensors::inputs);
            for (index, input) in inputs.iter().enumerate() {
                let place = (&mut results, me, size);
                choice = Some(make(&mut group, &bucket[0], index, input.bytes(), place)?);
            }
            results.outcome()
        }
        Kind::AddSet { .. } | Kind::RemoveSet { .. } => Ok(Outcome::Done),
    };
    if let Some(choice) = choice
        && tracing::enabled!(tracing::Level::DEBUG)
    {
        groups.tell(&choice.to_string());
    }
    Ok(Ran { outcome, algorithm: choice.map(|choice| choice.algorithm.name()) })
}

/// Runs a collective whose result's size is known only now, for one tensor of a group.
fn make(
    group: &mut Group<'_>,
    work: &Work,
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
        Kind::Allgather => {
            let rows: Vec<u64> = work.shares.iter().map(|share| share[index]).collect();
            let cuts = row(rows.iter().map(bytes));
            let mut target = place(rows, cuts.last().map_or(0, |cut| cut.end));
            collective::allgather(group, (&source, &mut target), &cuts)
        }
        Kind::Alltoall { .. } => {
            let all = work.shares.iter().map(|share| share.iter().map(bytes).collect()).collect();
            let rows: Vec<u64> = work.shares.iter().map(|share| share[me]).collect();
            let length = rows.iter().map(bytes).sum();
            let mut target = place(rows, length);
            collective::alltoall(group, (&source, &mut target), &Parts { all })
        }
        Kind::Reducescatter { op, prescale, postscale } => {
            let cuts = even_cuts(shape[0], size, unit);
            let mut target = place(vec![rows_of(shape[0], size, me)], cuts[me].len());
            let (prescale, postscale) = (*prescale, *postscale);
            let reduction = Reduction { dtype: *dtype, op: *op, prescale, postscale };
            collective::reducescatter(group, (&source, &mut target), &reduction, &cuts)
        }
        _ => Err(Error::Invalid(format!("{} makes nothing", kind.name()))),
    }
}

/// The shares come from other ranks: each must say as much as is needed, and no more than fits, and
/// this rank's what it has said itself.
fn check_shares(work: &Work, unit: usize, (me, size): (usize, usize)) -> Result<(), Error> {
    let needed = match &work.request.kind {
        Kind::Allgather => work.request.shapes.len(),
        Kind::Alltoall { .. } => size,
        _ => return Ok(()),
    };
    let fits = |rows: &u64| rows.checked_mul(unit.max(1) as u64).is_some_and(|bytes| bytes < MOST);
    let right = |share: &Vec<u64>| share.len() == needed && share.iter().all(fits);
    let is_own = work.shares.get(me) == Some(&work.request.share());
    match is_own && work.shares.len() == size && work.shares.iter().all(right) {
        true => Ok(()),
        false => {
            let what = format!("the shares of `{}` make no sense", work.request.name);
            Err(Error::nonsense(Rank(0), what))
        }
    }
}

/// The rows of a member when as many as possible have the same number, the first ones one more.
pub(super) fn rows_of(rows: u64, size: usize, place: usize) -> u64 {
    rows / size as u64 + u64::from((place as u64) < rows % size as u64)
}

fn even_cuts(rows: u64, size: usize, unit: usize) -> Vec<Range<usize>> {
    row((0..size).map(|place| rows_of(rows, size, place) as usize * unit))
}

/// Zeros that stand in for what was never submitted.
fn zeros(bucket: &[Work], flights: &[Option<Flight>]) -> Vec<Buffer> {
    let absent = bucket.iter().zip(flights).filter(|(_, flight)| flight.is_none());
    absent.map(|(work, _)| Buffer::zeros(work.request.bytes() as usize)).collect()
}

/// What a bucket comes from and goes to.
fn operands<'a>(
    bucket: &[Work],
    flights: &'a mut [Option<Flight>],
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
        // Where one tensor ends and the next begins matters to Adasum, so it must not get lost.
        for shape in shapes {
            let bytes = shape.iter().product::<u64>() as usize * dtype.size();
            let (tensor, behind) = rest.split_at_mut(bytes);
            pairs.push((None, tensor));
            rest = behind;
        }
    }
    Operands::new(pairs)
}

#[cfg(test)]
mod tests {
    use ronde_control::{DType, SetId};

    use super::*;

    #[test]
    fn shares_that_do_not_fit_what_this_rank_has_are_refused() {
        let work = |shares: &[&[u64]]| Work {
            request: Request {
                name: "x".into(),
                set: SetId::WORLD,
                kind: Kind::Alltoall { splits: vec![1, 2] },
                dtype: DType::F32,
                shapes: vec![vec![3, 5]],
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
            assert!(matches!(check(shares), Err(Error::Nonsense { .. })), "{shares:?}");
        }
    }
}
