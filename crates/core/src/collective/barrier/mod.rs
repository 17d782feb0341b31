//! Barrier: no rank continues before all ranks have arrived.

use crate::buffer::{Row, RowMut};
use crate::error::Error;
use crate::group::{Flow, Islands, Linked, SharedGroup};

/// In shared memory: one step without data.
pub(super) fn step(shared: &mut SharedGroup<'_>) -> Result<(), Error> {
    shared.enter()?;
    shared.publish();
    (0..shared.ranks()).try_for_each(|rank| shared.await_published(rank))?;
    shared.finish();
    Ok(())
}

/// Over sockets: in the turn of distance `d`, every rank sends a byte `d` to the right and receives
/// one from `d` to the left. After the last turn, each rank knows, directly or through others, that
/// all have arrived.
pub(super) fn dissemination(links: &mut Linked<'_>) -> Result<(), Error> {
    let (me, size) = (links.me(), links.size());
    let mut distance = 1;
    while distance < size {
        let (out, into) = (Row::new(vec![&[1]]), &mut [0]);
        links.exchange(
            Some(Flow { peer: (me + distance) % size, row: out }),
            Some(Flow { peer: (me + size - distance) % size, row: RowMut::new(vec![into]) }),
        )?;
        distance *= 2;
    }
    Ok(())
}

/// On several hosts: the ranks of each island wait for each other, the first ranks of the islands
/// wait for one another, and then each island waits for its first rank.
pub(super) fn levels(islands: &mut Islands<'_>) -> Result<(), Error> {
    step(&mut islands.local_group())?;
    if let Some(mut links) = islands.bridge(|island| island[0]) {
        dissemination(&mut links)?;
    }
    step(&mut islands.local_group())
}
