//! Reducescatter in shared memory.

use crate::buffer::{Operands, Row};
use crate::error::Error;
use crate::group::SharedGroup;
use crate::reduce::{Reduction, Term, combine};

/// The staging memory of each rank is cut into one slot per receiver. In step `s`, each rank puts
/// the `s`-th piece of every other rank's part into that rank's slot, and reduces the `s`-th piece
/// of its own part from all ranks' slots, in rank order, straight into the target. `parts` holds
/// the parts of all ranks; this rank's own entry is ignored in favor of `own`, which is that part
/// with its target.
pub(in super::super) fn sliced(
    shared: &mut SharedGroup<'_>,
    parts: &[Row<'_>],
    own: &mut Operands<'_>,
    reduction: &Reduction,
) -> Result<(), Error> {
    let (me, ranks) = (shared.me(), shared.ranks());
    let element = reduction.dtype.size();
    let slot = shared.piece() / ranks / element * element;
    let others = (0..ranks).filter(|place| *place != me);
    let longest = others.clone().map(|place| parts[place].length()).chain([own.length()]).max();
    for step in 0..longest.unwrap_or(0).div_ceil(slot) {
        let piece = |length: usize| (step * slot).min(length)..((step + 1) * slot).min(length);
        let staging = shared.enter()?;
        for place in others.clone() {
            let piece = piece(parts[place].length());
            let start = place * slot;
            let staged = &mut staging[start..start + piece.len()];
            parts[place].gather(piece, staged);
        }
        shared.publish();
        let mine = piece(own.length());
        let staged = |place: usize| shared.published(place, me * slot..me * slot + mine.len());
        let staged: Vec<&[u8]> = (0..ranks).map(staged).collect::<Result<_, _>>()?;
        for (at, source, target) in own.pairs_mut(mine.clone()) {
            let range = at - mine.start..at - mine.start + target.len();
            let terms = staged.iter().enumerate().map(|(place, staged)| match place == me {
                true => Term::from(source),
                false => Term::Of(&staged[range.clone()]),
            });
            combine(target, terms, reduction);
        }
        shared.finish();
    }
    Ok(())
}
