//! Broadcast among ranks on several hosts, some of them on the same.

use super::super::{Collective, choose_between, linked_broadcast};
use super::pieces;
use crate::buffer::Operands;
use crate::error::Error;
use crate::group::Islands;

/// One rank of each island speaks for it: the root for its own, the first one for the others. The
/// speakers pass the tensor on through sockets, then each gives it to its island in shared memory.
pub(in super::super) fn levels(
    islands: &mut Islands<'_>,
    operands: &mut Operands<'_>,
    root: usize,
) -> Result<(), Error> {
    let speaker = |island: &[usize]| if island.contains(&root) { root } else { island[0] };
    let root_island = islands.islands().iter().position(|island| island.contains(&root));
    let root_island = root_island.expect("the root lives somewhere");
    if let Some(mut links) = islands.bridge(speaker) {
        let bytes = operands.length();
        let algorithm = choose_between(&links, Collective::Broadcast, bytes);
        linked_broadcast(&mut links, algorithm, operands, root_island)?;
    }
    let here = speaker(islands.neighbours());
    let seat = islands.neighbours().iter().position(|place| *place == here);
    let seat = seat.expect("the speaker lives on its island");
    // By now the speaker has the tensor in its target.
    operands.settle();
    pieces(&mut islands.home(), operands, seat)
}
