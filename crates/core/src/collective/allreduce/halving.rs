//! Medium-sized buckets over sockets: few messages, and still no byte is sent more than twice.

use std::ops::Range;

use super::super::{cut, pieces};
use super::prescaled;
use crate::buffer::{Buffer, Operands, Row, RowMut};
use crate::error::Error;
use crate::group::{Flow, Linked};
use crate::reduce::{Reduction, Term, combine};

/// Larger buckets are reduced in pieces of this many bytes, one after another.
const PIECE: usize = 4 << 20;

/// The ranks below the largest power of two do the work; each of the others first hands its
/// elements to a partner, and gets the result from it at the end. With `core` ranks at work, the
/// bucket is cut into `core` parts.
///
/// 1. Halving: in turn `t`, each rank and the one whose number differs in the highest bit not yet
///    used split the parts they both hold. Each sends the other's half and adds what it receives to
///    its own half, the lower rank's elements first. At the end, each holds one part complete.
/// 2. Doubling: the same turns backwards; the two exchange all their complete parts.
///
/// The order in which elements are added depends only on the rank numbers, and each part is
/// completed by one rank.
pub(in super::super) fn halving(
    links: &mut Linked<'_>,
    operands: &mut Operands<'_>,
    reduction: &Reduction,
) -> Result<(), Error> {
    let reduction = prescaled(operands, reduction);
    let length = operands.length();
    let (mut mine, mut theirs) = (Buffer::new(length.min(PIECE)), Buffer::new(length.min(PIECE)));
    for piece in pieces(length, PIECE) {
        let own = &mut mine.bytes_mut()[..piece.len()];
        operands.gather(piece.clone(), own);
        reduce(links, own, &mut theirs.bytes_mut()[..piece.len()], &reduction)?;
        operands.target_mut().scatter(piece, own);
    }
    Ok(())
}

/// Reduces one piece: `mine` becomes the result, `theirs` is room for what arrives.
fn reduce(
    links: &mut Linked<'_>,
    mine: &mut [u8],
    theirs: &mut [u8],
    reduction: &Reduction,
) -> Result<(), Error> {
    let (me, size) = (links.me(), links.size());
    let core = 1 << size.ilog2();
    let plain = Reduction { postscale: 1.0, ..*reduction };
    let partner = if me < core { me + core } else { me - core };
    if me >= core {
        links.exchange(Some(Flow { peer: partner, row: Row::new(vec![mine]) }), None)?;
        return links.exchange(None, Some(Flow { peer: partner, row: RowMut::new(vec![mine]) }));
    }
    if partner < size {
        links.exchange(None, Some(Flow { peer: partner, row: RowMut::new(vec![theirs]) }))?;
        combine(mine, [Term::Target, Term::Of(theirs)], &plain);
    }
    let part = |index: usize| cut(mine.len(), core, index, reduction.dtype.size());
    let bytes = |parts: &Range<usize>| part(parts.start).start..part(parts.end - 1).end;
    let in_bytes = |(peer, keep, give)| (peer, bytes(&keep), bytes(&give));
    let turns: Vec<_> = splits(me, core).into_iter().map(in_bytes).collect();
    let own = part(me);
    for (peer, keep, give) in &turns {
        let arrived = &mut theirs[keep.clone()];
        swap(links, *peer, &mine[give.clone()], arrived)?;
        let (own, other) = (Term::Target, Term::Of(arrived));
        let pair = if me < *peer { [own, other] } else { [other, own] };
        combine(&mut mine[keep.clone()], pair, &plain);
    }
    combine(&mut mine[own], [Term::Target], &Reduction { prescale: 1.0, ..*reduction });
    for (peer, keep, give) in turns.iter().rev() {
        let halves = mine.get_disjoint_mut([keep.clone(), give.clone()]);
        let [keep, give] = halves.expect("the halves do not overlap");
        swap(links, *peer, keep, give)?;
    }
    if partner < size {
        links.exchange(Some(Flow { peer: partner, row: Row::new(vec![mine]) }), None)?;
    }
    Ok(())
}

/// The turns of a rank: its peer, the parts it keeps, and the parts it gives away.
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
    outgoing: &[u8],
    incoming: &mut [u8],
) -> Result<(), Error> {
    links.exchange(
        Some(Flow { peer, row: Row::new(vec![outgoing]) }),
        Some(Flow { peer, row: RowMut::new(vec![incoming]) }),
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
