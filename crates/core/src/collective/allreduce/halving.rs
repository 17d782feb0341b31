//! Middling buckets over sockets: few messages, and still no byte more than twice.

use std::ops::Range;

use super::super::{Operands, cut};
use super::prescaled;
use crate::buffer::{Buffer, Region};
use crate::error::Error;
use crate::group::{Flow, Linked};
use crate::reduce::{Reduction, fold_regions};

/// The ranks below the largest power of two do the work; each of the others hands its elements to a
/// partner first and gets the result from it last. With `core` ranks at work, the bucket is cut into
/// `core` parts.
///
/// 1. Halving: in turn `t` each rank and the one whose number differs in the highest bit not yet
///    used split the parts they both hold; each sends the half that is the other's, and adds what it
///    gets to its own half, the lower rank's elements first. At the end each holds one part complete.
/// 2. Doubling: the same turns backwards; the two exchange all they hold complete.
///
/// Which of the ranks' elements are added in which order depends on their numbers alone, and each
/// part is completed by one rank.
pub(in super::super) fn halving(
    links: &mut Linked<'_>,
    operands: &Operands,
    reduction: &Reduction,
) -> Result<(), Error> {
    let (operands, reduction) = prescaled(operands, reduction);
    let (me, size, length) = (links.me(), links.size(), operands.source.length());
    let core = 1 << size.ilog2();
    let (mine, theirs) = (Buffer::new(length), Buffer::new(length));
    let (mine, theirs) = (mine.region(), theirs.region());
    operands.source.gather(0..length, mine);
    let plain = Reduction { postscale: 1.0, ..reduction };
    let partner = if me < core { me + core } else { me - core };

    if me >= core {
        links.exchange(Some(Flow { peer: partner, regions: &[mine] }), None)?;
        links.exchange(None, Some(Flow { peer: partner, regions: &[mine] }))?;
        operands.target.scatter(0..length, mine);
        return Ok(());
    }
    if partner < size {
        links.exchange(None, Some(Flow { peer: partner, regions: &[theirs] }))?;
        fold_regions(mine, &[mine, theirs], &plain);
    }
    let part = |index: usize| cut(length, core, index, reduction.dtype.size());
    let bytes = |parts: &Range<usize>| part(parts.start).start..part(parts.end - 1).end;
    let turns = splits(me, core);
    for (peer, keep, give) in &turns {
        let (outgoing, incoming) = (mine.part(bytes(give)), theirs.part(bytes(keep)));
        swap(links, *peer, outgoing, incoming)?;
        let own = mine.part(bytes(keep));
        let pair = if me < *peer { [own, incoming] } else { [incoming, own] };
        fold_regions(own, &pair, &plain);
    }
    let own = mine.part(bytes(&(me..me + 1)));
    fold_regions(own, &[own], &Reduction { prescale: 1.0, ..reduction });
    for (peer, keep, give) in turns.iter().rev() {
        swap(links, *peer, mine.part(bytes(keep)), mine.part(bytes(give)))?;
    }
    if partner < size {
        links.exchange(Some(Flow { peer: partner, regions: &[mine] }), None)?;
    }
    operands.target.scatter(0..length, mine);
    Ok(())
}

/// The turns of a rank: with whom, which parts it keeps, and which it gives away.
fn splits(me: usize, core: usize) -> Vec<(usize, Range<usize>, Range<usize>)> {
    let (mut held, mut bit, mut turns) = (0..core, core / 2, Vec::new());
    while bit > 0 {
        let middle = held.start + bit;
        let (low, high) = (held.start..middle, middle..held.end);
        let (keep, give) = if me & bit == 0 { (low, high) } else { (high, low) };
        turns.push((me ^ bit, keep.clone(), give));
        (held, bit) = (keep, bit / 2);
    }
    turns
}

fn swap(
    links: &mut Linked<'_>,
    peer: usize,
    outgoing: Region,
    incoming: Region,
) -> Result<(), Error> {
    links.exchange(
        Some(Flow { peer, regions: &[outgoing] }),
        Some(Flow { peer, regions: &[incoming] }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_partners_split_what_they_hold_and_each_ends_with_its_own_part() {
        for core in [1, 2, 4, 8] {
            for me in 0..core {
                let turns = splits(me, core);
                assert_eq!(turns.last().map_or(0..1, |turn| turn.1.clone()), me..me + 1);
                for (turn, (peer, keep, give)) in turns.iter().enumerate() {
                    let theirs = &splits(*peer, core)[turn];
                    assert_eq!((theirs.0, &theirs.1, &theirs.2), (me, give, keep));
                }
            }
        }
    }
}
