//! A world of one: every collective is at most a copy.

use ronde_control::Rank;
use ronde_control::negotiate::{Kind, Notice, Request, Work};

use super::results::Results;
use super::ticket::{Outcome, Targets};
use crate::buffer::Region;
use crate::error::Error;
use crate::reduce::{Reduction, fold_regions};
use crate::watch::{Leg, Watch};

/// Runs it and tells whoever watches.
pub(super) fn run_watched(
    watch: &Watch,
    request: Request,
    sources: &[Region],
    targets: &Targets,
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
    let outcome = run(&bucket[0].request, sources, targets);
    watch.bucket_ends((&bucket, records()), &passage, outcome.as_ref().err(), watch.now());
    outcome
}

fn run(request: &Request, sources: &[Region], targets: &Targets) -> Result<Outcome, Error> {
    match request.kind {
        Kind::Allreduce { op, prescale, postscale } => {
            let reduction = Reduction { dtype: request.dtype, op, prescale, postscale };
            for (source, target) in sources.iter().zip(targets.regions()) {
                fold_regions(*target, &[*source], &reduction);
            }
        }
        Kind::Broadcast { .. } => {
            sources
                .iter()
                .zip(targets.regions())
                .for_each(|(source, target)| source.copy_to(*target));
        }
        Kind::Barrier => {}
        Kind::Allgather | Kind::Alltoall { .. } | Kind::Reducescatter { .. } => {
            if let Some(error) = request.impossible() {
                return Err(Error::Mismatch(error.into()));
            }
            let mut results = Results::new(targets);
            for (source, shape) in sources.iter().zip(&request.shapes) {
                make(request, *source, shape, &mut results);
            }
            return results.outcome();
        }
        Kind::AddSet { .. } | Kind::RemoveSet { .. } => {}
    }
    Ok(Outcome::Done)
}

fn make(request: &Request, source: Region, shape: &[u64], results: &mut Results<'_>) {
    let unit = shape[1..].iter().product::<u64>() as usize * request.dtype.size();
    let rows = match &request.kind {
        // What no split covers is dropped.
        Kind::Alltoall { splits } => splits.iter().sum(),
        _ => shape[0],
    };
    let target = results.place(vec![rows], rows as usize * unit);
    let source = source.part(0..target.length());
    match request.kind {
        Kind::Reducescatter { op, prescale, postscale } => {
            let reduction = Reduction { dtype: request.dtype, op, prescale, postscale };
            fold_regions(target, &[source], &reduction);
        }
        _ => source.copy_to(target),
    }
}
