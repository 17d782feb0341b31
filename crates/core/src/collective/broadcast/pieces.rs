//! Broadcast in shared memory.

use super::super::pieces as cut_pieces;
use crate::buffer::Operands;
use crate::error::Error;
use crate::group::SharedGroup;

/// One step per piece: the root publishes it, the others copy it out. The root is at most two
/// pieces ahead of the slowest rank.
pub(in super::super) fn pieces(
    shared: &mut SharedGroup<'_>,
    operands: &mut Operands<'_>,
    root: usize,
) -> Result<(), Error> {
    let is_root = shared.me() == root;
    for range in cut_pieces(operands.length(), shared.piece()) {
        if is_root {
            let staging = &mut shared.enter()?[..range.len()];
            operands.gather(range, staging);
            shared.publish();
        } else {
            let staged = shared.published(root, 0..range.len())?;
            operands.target_mut().scatter(range, staged);
        }
        shared.finish();
    }
    if is_root {
        operands.copy();
    }
    Ok(())
}
