//! Gathering in shared memory.

use std::ops::Range;

use super::super::Operands;
use crate::error::Error;
use crate::group::Shared;

/// In step `s` each rank publishes the `s`-th piece of its tensor and copies the `s`-th pieces of
/// the others to their places; a rank whose tensor is shorter publishes nothing in the last steps.
/// Its own tensor a rank copies straight to its place.
pub(in super::super) fn pieces(
    shared: &mut Shared<'_>,
    operands: &Operands,
    cuts: &[Range<usize>],
) -> Result<(), Error> {
    let (me, size) = (shared.me(), shared.piece());
    let steps = cuts.iter().map(|cut| cut.len().div_ceil(size)).max().unwrap_or(0);
    for step in 0..steps {
        let piece = |rank: usize| {
            let length = cuts[rank].len();
            (step * size).min(length)..((step + 1) * size).min(length)
        };
        shared.enter()?;
        let staged = |rank: usize| shared.staging(rank).part(0..piece(rank).len());
        operands.source.gather(piece(me), staged(me));
        shared.publish();
        for (rank, cut) in cuts.iter().enumerate() {
            let range = cut.start + piece(rank).start..cut.start + piece(rank).end;
            if rank == me {
                operands.target.scatter(range, staged(me));
            } else {
                shared.await_published(rank)?;
                operands.target.scatter(range, staged(rank));
            }
        }
        shared.finish();
    }
    Ok(())
}
