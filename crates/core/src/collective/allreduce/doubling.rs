//! Small buckets over sockets: as few messages one after the other as possible.

use super::super::Operands;
use super::prescaled;
use crate::buffer::{Buffer, Region};
use crate::error::Error;
use crate::group::{Flow, Linked};
use crate::reduce::{Reduction, fold_regions};

/// In turn `t` each rank exchanges all it has with the rank whose number differs in bit `t`, and
/// both add the two in the same order, the lower rank's first: so both hold the same bits, and after
/// `log2 n` turns everybody does. If `n` is no power of two, the ranks beyond the largest one hand
/// their elements to a partner first and get the result from it last.
pub(in super::super) fn doubling(
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

    if me >= core {
        let partner = me - core;
        send(links, partner, mine)?;
        receive(links, partner, mine)?;
    } else {
        let plain = Reduction { postscale: 1.0, ..reduction };
        let partner = me + core;
        if partner < size {
            receive(links, partner, theirs)?;
            fold_regions(mine, &[mine, theirs], &plain);
        }
        for bit in 0..core.ilog2() {
            let peer = me ^ (1 << bit);
            let (outgoing, incoming) = ([mine], [theirs]);
            links.exchange(
                Some(Flow { peer, regions: &outgoing }),
                Some(Flow { peer, regions: &incoming }),
            )?;
            let pair = if me < peer { [mine, theirs] } else { [theirs, mine] };
            fold_regions(mine, &pair, &plain);
        }
        fold_regions(mine, &[mine], &Reduction { prescale: 1.0, ..reduction });
        if partner < size {
            send(links, partner, mine)?;
        }
    }
    operands.target.scatter(0..length, mine);
    Ok(())
}

fn send(links: &mut Linked<'_>, peer: usize, region: Region) -> Result<(), Error> {
    links.exchange(Some(Flow { peer, regions: &[region] }), None)
}

fn receive(links: &mut Linked<'_>, peer: usize, region: Region) -> Result<(), Error> {
    links.exchange(None, Some(Flow { peer, regions: &[region] }))
}
