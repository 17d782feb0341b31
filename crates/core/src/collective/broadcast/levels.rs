//! Broadcast on several hosts, some with more than one rank.

use ronde_control::Collective;

use super::super::{choose_between, linked_broadcast};
use super::pieces;
use crate::buffer::Operands;
use crate::error::Error;
use crate::group::Islands;

/// One rank represents each island: the root its own, the first rank any other. The representatives
/// pass the tensor on through sockets, then each hands it to its island in shared memory.
pub(in super::super) fn levels(
    islands: &mut Islands<'_>,
    operands: &mut Operands<'_>,
    root: usize,
) -> Result<(), Error> {
    let representative = |island: &[usize]| if island.contains(&root) { root } else { island[0] };
    let root_island = islands.islands().iter().position(|island| island.contains(&root));
    let root_island = root_island.expect("the root is on an island");
    if let Some(mut links) = islands.bridge(representative) {
        let bytes = operands.length();
        let algorithm = choose_between(&links, Collective::Broadcast, bytes);
        linked_broadcast(&mut links, algorithm, operands, root_island)?;
    }
    let here = representative(islands.neighbors());
    let local_index = islands.neighbors().iter().position(|place| *place == here);
    let local_index = local_index.expect("the representative is on its island");
    // By now the representative has the tensor in its target.
    operands.settle();
    pieces(&mut islands.local_group(), operands, local_index)
}
