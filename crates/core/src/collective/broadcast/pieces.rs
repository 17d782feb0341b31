//! Broadcast in shared memory.

use super::super::{Operands, pieces as cut_pieces};
use crate::error::Error;
use crate::group::Shared;

/// One step per piece: the root publishes it, the others copy it out. The root is at most two pieces
/// ahead of the slowest.
pub(in super::super) fn pieces(
    shared: &mut Shared<'_>,
    operands: &Operands,
    root: usize,
) -> Result<(), Error> {
    let is_root = shared.me() == root;
    for range in cut_pieces(operands.source.length(), shared.piece()) {
        let staged = shared.staging(root).part(0..range.len());
        if is_root {
            shared.enter()?;
            operands.source.gather(range, staged);
            shared.publish();
        } else {
            shared.await_published(root)?;
            operands.target.scatter(range, staged);
        }
        shared.finish();
    }
    if is_root {
        operands.source.copy_to(&operands.target);
    }
    Ok(())
}
