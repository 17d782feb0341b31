//! A world of one: every collective is at most a copy.

use ronde_control::negotiate::{Kind, Request};

use super::ticket::{Made, Outcome};
use crate::buffer::{Buffer, Region};
use crate::error::Error;
use crate::reduce::{Reduction, fold_regions};

pub(super) fn run(
    request: &Request,
    sources: &[Region],
    targets: &[Region],
) -> Result<Outcome, Error> {
    match request.kind {
        Kind::Allreduce { op, prescale, postscale } => {
            let reduction = Reduction { dtype: request.dtype, op, prescale, postscale };
            for (source, target) in sources.iter().zip(targets) {
                fold_regions(*target, &[*source], &reduction);
            }
        }
        Kind::Broadcast { .. } => {
            sources.iter().zip(targets).for_each(|(source, target)| source.copy_to(*target));
        }
        Kind::Barrier => {}
        Kind::Allgather | Kind::Alltoall { .. } | Kind::Reducescatter { .. } => {
            if let Some(error) = request.impossible() {
                return Err(Error::Mismatch(error.into()));
            }
            let made = sources.iter().zip(&request.shapes);
            return Ok(Outcome::Made(
                made.map(|(source, shape)| make(request, *source, shape)).collect(),
            ));
        }
        Kind::AddSet { .. } | Kind::RemoveSet { .. } => {}
    }
    Ok(Outcome::Done)
}

fn make(request: &Request, source: Region, shape: &[u64]) -> Made {
    let unit = shape[1..].iter().product::<u64>() as usize * request.dtype.size();
    let rows = match &request.kind {
        // What no split covers is dropped.
        Kind::Alltoall { splits } => splits.iter().sum(),
        _ => shape[0],
    };
    let buffer = Buffer::new(rows as usize * unit);
    let source = source.part(0..buffer.length());
    match request.kind {
        Kind::Reducescatter { op, prescale, postscale } => {
            let reduction = Reduction { dtype: request.dtype, op, prescale, postscale };
            fold_regions(buffer.region(), &[source], &reduction);
        }
        _ => source.copy_to(buffer.region()),
    }
    Made { buffer, rows: vec![rows] }
}
