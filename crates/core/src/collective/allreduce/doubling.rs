//! Small buckets over sockets: as few consecutive messages as possible.

use super::prescaled;
use crate::buffer::{Buffer, Operands, Row, RowMut};
use crate::error::Error;
use crate::group::{Flow, Linked};
use crate::reduce::{Reduction, Term, combine};

/// In each turn, each rank exchanges all it has with the rank whose number differs in one bit, the
/// highest first, and both add the two in the same order, the lower rank's first. So both hold the
/// same bits, and after `log2 n` turns all ranks do. If `n` is not a power of two, each rank beyond
/// the largest power of two first hands its elements to a partner, and gets the result from it at
/// the end. Elements are added in the same order as in `halving`.
pub(in super::super) fn doubling(
    links: &mut Linked<'_>,
    operands: &mut Operands<'_>,
    reduction: &Reduction,
) -> Result<(), Error> {
    let reduction = prescaled(operands, reduction);
    let (me, size, length) = (links.me(), links.size(), operands.length());
    let core = 1 << size.ilog2();
    let (mut mine, mut theirs) = (Buffer::new(length), Buffer::new(length));
    let (mine, theirs) = (mine.bytes_mut(), theirs.bytes_mut());
    operands.gather(0..length, mine);

    if me >= core {
        let partner = me - core;
        send(links, partner, mine)?;
        receive(links, partner, mine)?;
    } else {
        let plain = Reduction { postscale: 1.0, ..reduction };
        let partner = me + core;
        if partner < size {
            receive(links, partner, theirs)?;
            combine(mine, [Term::Target, Term::Of(theirs)], &plain);
        }
        for bit in (0..core.ilog2()).rev() {
            let peer = me ^ (1 << bit);
            links.exchange(
                Some(Flow { peer, row: Row::new(vec![mine]) }),
                Some(Flow { peer, row: RowMut::new(vec![theirs]) }),
            )?;
            let (own, other) = (Term::Target, Term::Of(theirs));
            combine(mine, if me < peer { [own, other] } else { [other, own] }, &plain);
        }
        combine(mine, [Term::Target], &Reduction { prescale: 1.0, ..reduction });
        if partner < size {
            send(links, partner, mine)?;
        }
    }
    operands.target_mut().scatter(0..length, mine);
    Ok(())
}

fn send(links: &mut Linked<'_>, peer: usize, bytes: &[u8]) -> Result<(), Error> {
    links.exchange(Some(Flow { peer, row: Row::new(vec![bytes]) }), None)
}

fn receive(links: &mut Linked<'_>, peer: usize, bytes: &mut [u8]) -> Result<(), Error> {
    links.exchange(None, Some(Flow { peer, row: RowMut::new(vec![bytes]) }))
}
