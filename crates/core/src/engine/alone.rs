//! A world of one: every collective is at most a copy.

use ronde_control::Rank;
use ronde_control::negotiate::{CollectiveKind, JournalEntry, ReleasedTensor, Request};

use super::alone_on_gpu;
use super::results::Results;
use super::ticket::{Outcome, Tensors};
use crate::error::Error;
use crate::reduce::{Reduction, Term, combine};
use crate::watch::{Transfer, Watch};

/// Runs a request and records it for the timeline, metrics and flight recorder.
pub(super) fn run_watched(
    watch: &Watch,
    request: Request,
    tensors: &mut Tensors,
) -> Result<Outcome, Error> {
    let at = watch.now();
    if watch.shows() {
        let (name, kind, set) = (request.name.clone(), request.kind.name(), request.set);
        let announced = JournalEntry::Announced { name: name.clone(), kind, rank: Rank(0), at };
        watch.noticed(vec![announced, JournalEntry::Ready { name, set, at }], |_| true);
    }
    let bucket = [ReleasedTensor { request, shares: Vec::new(), is_absent: false }];
    let record = watch.watch_state().queue(&bucket[0].request, at);
    let transfer = Transfer { ranks: 1, transport: "LOCAL", released: at, started: at };
    let records = [Some(record)];
    let bucket_trace = watch.bucket_starts(&bucket, &records, &transfer);
    let outcome = run(&bucket[0].request, tensors);
    watch.bucket_ends((&bucket, &records), &bucket_trace, outcome.as_ref().err(), watch.now());
    outcome
}

fn run(request: &Request, tensors: &mut Tensors) -> Result<Outcome, Error> {
    if let Tensors::OnGpu(tensors) = tensors {
        return alone_on_gpu::run(request, tensors);
    }
    match request.kind {
        CollectiveKind::Allreduce { op, prescale, postscale } => {
            let reduction = Reduction { dtype: request.dtype, op, prescale, postscale };
            for operand in tensors.operands() {
                let (source, target) = operand.pair();
                combine(target, [source.into()], &reduction);
            }
        }
        CollectiveKind::Broadcast { .. } => {
            for operand in tensors.operands() {
                if let (Some(source), target) = operand.pair() {
                    target.copy_from_slice(source);
                }
            }
        }
        CollectiveKind::Barrier => {}
        CollectiveKind::Allgather
        | CollectiveKind::Alltoall { .. }
        | CollectiveKind::Reducescatter { .. } => {
            if let Some(error) = request.impossible() {
                return Err(Error::Mismatch(error.into()));
            }
            let mut results = Results::new(tensors.allocator());
            for (input, shape) in tensors.inputs().iter().zip(&request.shapes) {
                make(request, input.bytes(), shape, &mut results);
            }
            return results.outcome();
        }
        CollectiveKind::AddSet { .. } | CollectiveKind::RemoveSet { .. } => {}
    }
    Ok(Outcome::Done)
}

fn make(request: &Request, source: &[u8], shape: &[u64], results: &mut Results<'_>) {
    let unit = shape[1..].iter().product::<u64>() as usize * request.dtype.size();
    let rows = match &request.kind {
        // Rows that no split covers are dropped.
        CollectiveKind::Alltoall { splits } => splits.iter().sum(),
        _ => shape[0],
    };
    let target = results.place(vec![rows], rows as usize * unit);
    let source = &source[..target.len()];
    match request.kind {
        CollectiveKind::Reducescatter { op, prescale, postscale } => {
            let reduction = Reduction { dtype: request.dtype, op, prescale, postscale };
            combine(target, [Term::Of(source)], &reduction);
        }
        _ => target.copy_from_slice(source),
    }
}
