//! A world of one: every collective is at most a copy.

use ronde_control::Rank;
use ronde_control::negotiate::{Kind, Notice, Request, Work};

use super::results::Results;
use super::ticket::{Outcome, Tensors};
use crate::error::Error;
use crate::reduce::{Reduction, Term, combine};
use crate::watch::{Leg, Watch};

/// Runs it and tells whoever watches.
pub(super) fn run_watched(
    watch: &Watch,
    request: Request,
    tensors: &mut Tensors,
) -> Result<Outcome, Error> {
    let at = watch.now();
    if watch.shows() {
        let (name, kind, set) = (request.name.clone(), request.kind.name(), request.set);
        let announced = Notice::Announced { name: name.clone(), kind, rank: Rank(0), at };
        watch.noticed(vec![announced, Notice::Ready { name, set, at }], |_| true);
    }
    let bucket = [Work { request, shares: Vec::new(), is_absent: false }];
    let record = watch.ledger().queue(&bucket[0].request, at);
    let leg = Leg { ranks: 1, way: "LOCAL", released: at, started: at };
    let records = || std::iter::once(Some(record));
    let passage = watch.bucket_starts(&bucket, records(), &leg);
    let outcome = run(&bucket[0].request, tensors);
    watch.bucket_ends((&bucket, records()), &passage, outcome.as_ref().err(), watch.now());
    outcome
}

fn run(request: &Request, tensors: &mut Tensors) -> Result<Outcome, Error> {
    match request.kind {
        Kind::Allreduce { op, prescale, postscale } => {
            let reduction = Reduction { dtype: request.dtype, op, prescale, postscale };
            for operand in tensors.operands() {
                let (source, target) = operand.pair();
                combine(target, [source.into()], &reduction);
            }
        }
        Kind::Broadcast { .. } => {
            for operand in tensors.operands() {
                if let (Some(source), target) = operand.pair() {
                    target.copy_from_slice(source);
                }
            }
        }
        Kind::Barrier => {}
        Kind::Allgather | Kind::Alltoall { .. } | Kind::Reducescatter { .. } => {
            if let Some(error) = request.impossible() {
                return Err(Error::Mismatch(error.into()));
            }
            let mut results = Results::new(tensors.room());
            for (input, shape) in tensors.inputs().iter().zip(&request.shapes) {
                make(request, input.bytes(), shape, &mut results);
            }
            return results.outcome();
        }
        Kind::AddSet { .. } | Kind::RemoveSet { .. } => {}
    }
    Ok(Outcome::Done)
}

fn make(request: &Request, source: &[u8], shape: &[u64], results: &mut Results<'_>) {
    let unit = shape[1..].iter().product::<u64>() as usize * request.dtype.size();
    let rows = match &request.kind {
        // What no split covers is dropped.
        Kind::Alltoall { splits } => splits.iter().sum(),
        _ => shape[0],
    };
    let target = results.place(vec![rows], rows as usize * unit);
    let source = &source[..target.len()];
    match request.kind {
        Kind::Reducescatter { op, prescale, postscale } => {
            let reduction = Reduction { dtype: request.dtype, op, prescale, postscale };
            combine(target, [Term::Of(source)], &reduction);
        }
        _ => target.copy_from_slice(source),
    }
}
