//! Exchange of parts among ranks on several hosts, some of them on the same.

use super::super::{Operands, Parts};
use super::pieces;
use crate::buffer::{Region, Segments};
use crate::error::Error;
use crate::group::{Flow, Islands};

/// Neighbours exchange their parts in shared memory; then in turn `t` each rank sends its part for
/// the one `t` to its right and receives from the one `t` to its left, unless they are neighbours.
pub(in super::super) fn levels(
    islands: &mut Islands<'_>,
    operands: &Operands,
    parts: &Parts,
) -> Result<(), Error> {
    let (me, size, home) = (islands.me(), islands.size(), islands.neighbours().to_vec());
    let (outgoing, incoming) = (parts.outgoing(me), parts.incoming(me));
    let join = |row: &Segments, ranges: &[std::ops::Range<usize>]| {
        Segments::join(home.iter().map(|place| row.slice(ranges[*place].clone())))
    };
    let inside = Operands {
        source: join(&operands.source, &outgoing),
        target: join(&operands.target, &incoming),
    };
    let row = |from: &usize| home.iter().map(|to| parts.all[*from][*to]).collect();
    let all = home.iter().map(row).collect();
    pieces(&mut islands.home(), &inside, &Parts { all })?;

    let mut links = islands.everybody();
    for turn in 1..size {
        let (right, left) = ((me + turn) % size, (me + size - turn) % size);
        let regions = |row: &Segments, range: &std::ops::Range<usize>| -> Vec<Region> {
            row.parts(range.clone()).map(|(_, part)| part).collect()
        };
        let out = regions(&operands.source, &outgoing[right]);
        let into = regions(&operands.target, &incoming[left]);
        let outgoing = Some(Flow { peer: right, regions: &out });
        let incoming = Some(Flow { peer: left, regions: &into });
        links.exchange(
            outgoing.filter(|_| !home.contains(&right)),
            incoming.filter(|_| !home.contains(&left)),
        )?;
    }
    Ok(())
}
