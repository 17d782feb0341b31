//! Exchange of parts among ranks on several hosts, some of them on the same.

use super::super::Parts;
use super::pieces;
use crate::buffer::{Row, RowMut};
use crate::error::Error;
use crate::group::{Flow, Islands};

/// Neighbours exchange their parts in shared memory; then in turn `t` each rank sends its part for
/// the one `t` to its right and receives from the one `t` to its left, unless they are neighbours.
pub(in super::super) fn levels(
    islands: &mut Islands<'_>,
    source: &Row<'_>,
    target: &mut RowMut<'_>,
    parts: &Parts,
) -> Result<(), Error> {
    let (me, size, home) = (islands.me(), islands.size(), islands.neighbours().to_vec());
    let (outgoing, incoming) = (parts.outgoing(me), parts.incoming(me));
    let mut into = target.split(&incoming);
    let inside = Row::join(home.iter().map(|place| source.slice(outgoing[*place].clone())));
    let at_home = home.iter().map(|place| std::mem::take(&mut into[*place]));
    let row = |from: &usize| home.iter().map(|to| parts.all[*from][*to]).collect();
    let all = home.iter().map(row).collect();
    pieces(&mut islands.home(), &inside, &mut RowMut::join(at_home), &Parts { all })?;

    let mut links = islands.everybody();
    for turn in 1..size {
        let (right, left) = ((me + turn) % size, (me + size - turn) % size);
        let outgoing = (!home.contains(&right))
            .then(|| Flow { peer: right, row: source.slice(outgoing[right].clone()) });
        let incoming =
            (!home.contains(&left)).then(|| Flow { peer: left, row: into[left].reborrow() });
        links.exchange(outgoing, incoming)?;
    }
    Ok(())
}
