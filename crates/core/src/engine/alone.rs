//! A world of one: every collective is at most a copy.

use ronde_control::negotiate::{Kind, Request};

use super::ticket::Outcome;
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
        Kind::Allgather => {
            let [source] = sources else { return Ok(Outcome::Done) };
            let Some(rows) = request.shapes[0].first() else {
                return Err(Error::Mismatch(Request::SCALAR_GATHER.into()));
            };
            let buffer = Buffer::new(source.length());
            source.copy_to(buffer.region());
            return Ok(Outcome::Gathered { buffer, rows: vec![*rows] });
        }
    }
    Ok(Outcome::Done)
}
