//! Alltoall on several hosts, some with more than one rank.

use super::super::Parts;
use super::pieces;
use crate::buffer::{Row, RowMut};
use crate::error::Error;
use crate::group::{Flow, Islands};

/// Ranks of one island exchange their parts in shared memory. Then, in turn `t`, each rank sends
/// its part for the rank `t` to its right and receives from the rank `t` to its left, unless they
/// are on its island.
pub(in super::super) fn levels(
    islands: &mut Islands<'_>,
    source: &Row<'_>,
    target: &mut RowMut<'_>,
    parts: &Parts,
) -> Result<(), Error> {
    let (me, size, neighbors) = (islands.me(), islands.size(), islands.neighbors().to_vec());
    let (outgoing, incoming) = (parts.outgoing(me), parts.incoming(me));
    let mut into = target.split(&incoming);
    let inside = Row::join(neighbors.iter().map(|place| source.slice(outgoing[*place].clone())));
    let local_targets = neighbors.iter().map(|place| std::mem::take(&mut into[*place]));
    let row = |from: &usize| neighbors.iter().map(|to| parts.all[*from][*to]).collect();
    let all = neighbors.iter().map(row).collect();
    pieces(&mut islands.local_group(), &inside, &mut RowMut::join(local_targets), &Parts { all })?;

    let mut links = islands.all_by_socket();
    for turn in 1..size {
        let (right, left) = ((me + turn) % size, (me + size - turn) % size);
        let outgoing = (!neighbors.contains(&right))
            .then(|| Flow { peer: right, row: source.slice(outgoing[right].clone()) });
        let incoming =
            (!neighbors.contains(&left)).then(|| Flow { peer: left, row: into[left].reborrow() });
        links.exchange(outgoing, incoming)?;
    }
    Ok(())
}
