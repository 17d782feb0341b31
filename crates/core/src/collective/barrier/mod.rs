//! Barrier: nobody goes on before everybody has come.

use crate::buffer::{Row, RowMut};
use crate::error::Error;
use crate::group::{Flow, Islands, Linked, Shared};

/// In shared memory: one step without data.
pub(super) fn step(shared: &mut Shared<'_>) -> Result<(), Error> {
    shared.enter()?;
    shared.publish();
    (0..shared.ranks()).try_for_each(|rank| shared.await_published(rank))?;
    shared.finish();
    Ok(())
}

/// Over sockets: in the turn of distance `d` every rank sends a byte `d` to the right and receives
/// one from `d` to the left; after the last turn each has heard, through others, of all.
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

/// On several hosts: neighbours wait for each other, the first of each island for those of the
/// others, and its neighbours for it.
pub(super) fn levels(islands: &mut Islands<'_>) -> Result<(), Error> {
    step(&mut islands.home())?;
    if let Some(mut links) = islands.bridge(|island| island[0]) {
        dissemination(&mut links)?;
    }
    step(&mut islands.home())
}
