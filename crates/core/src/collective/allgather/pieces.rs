//! Allgather in shared memory.

use std::ops::Range;

use crate::buffer::{Row, RowMut};
use crate::error::Error;
use crate::group::SharedGroup;

/// In step `s`, each rank publishes the `s`-th piece of its tensor and copies the `s`-th pieces of
/// the others to their places; a rank whose tensor is shorter publishes nothing in the last steps.
/// A rank also copies its own tensor to its place, unless there is no source because the tensor is
/// there already.
pub(in super::super) fn pieces(
    shared: &mut SharedGroup<'_>,
    source: Option<&Row<'_>>,
    target: &mut RowMut<'_>,
    cuts: &[Range<usize>],
) -> Result<(), Error> {
    let (me, size) = (shared.me(), shared.piece());
    let steps = cuts.iter().map(|cut| cut.len().div_ceil(size)).max().unwrap_or(0);
    for step in 0..steps {
        let piece = |rank: usize| {
            let length = cuts[rank].len();
            (step * size).min(length)..((step + 1) * size).min(length)
        };
        let place = |rank: usize| {
            let start = cuts[rank].start;
            start + piece(rank).start..start + piece(rank).end
        };
        let staging = &mut shared.enter()?[..piece(me).len()];
        match source {
            Some(source) => source.gather(piece(me), staging),
            None => target.gather(place(me), staging),
        }
        shared.publish();
        for rank in (0..cuts.len()).filter(|rank| *rank != me || source.is_some()) {
            let staged = shared.published(rank, 0..piece(rank).len())?;
            target.scatter(place(rank), staged);
        }
        shared.finish();
    }
    Ok(())
}
