//! Reduction of parts over sockets.

use std::ops::Range;

use super::super::Operands;
use super::sliced::fold_into;
use crate::buffer::{Buffer, Region};
use crate::error::Error;
use crate::group::{Flow, Linked};
use crate::reduce::{Reduction, fold_regions};

/// Once round the ring: in turn `t` a rank passes on the sum of part `me - t - 1` and receives that of
/// part `me - t - 2`, to which it adds its own. What it receives in the last turn is its own part,
/// complete. Sums travel through two buffers in turn, so that the source stays as it is.
pub(in super::super) fn ring(
    links: &mut Linked<'_>,
    operands: &Operands,
    reduction: &Reduction,
    cuts: &[Range<usize>],
) -> Result<(), Error> {
    let (me, size) = (links.me(), links.size());
    let (right, left) = ((me + 1) % size, (me + size - 1) % size);
    let longest = cuts.iter().map(Range::len).max().unwrap_or(0);
    let buffers = [Buffer::new(longest), Buffer::new(longest)];
    let part = |index: usize| cuts[index % size].clone();
    // Sums travel with the factor in front already applied; the one behind belongs to the end.
    let first = Reduction { postscale: 1.0, ..*reduction };
    let plain = Reduction { prescale: 1.0, postscale: 1.0, ..*reduction };
    let start = buffers[0].region().part(0..part(me + size - 1).len());
    scale_own(operands, part(me + size - 1), start, &first);
    if size == 1 {
        let last = Reduction { prescale: 1.0, ..*reduction };
        fold_into(operands, 0, &[start], &last);
        return Ok(());
    }
    for turn in 0..size - 1 {
        let (out, into) = (part(me + 2 * size - turn - 1), part(me + 2 * size - turn - 2));
        let outgoing = buffers[turn % 2].region().part(0..out.len());
        let incoming = buffers[(turn + 1) % 2].region().part(0..into.len());
        links.exchange(
            Some(Flow { peer: right, regions: &[outgoing] }),
            Some(Flow { peer: left, regions: &[incoming] }),
        )?;
        // The outgoing buffer is free now, and as long as the longest part.
        let own = buffers[turn % 2].region().part(0..into.len());
        scale_own(operands, into.clone(), own, &first);
        if turn + 2 < size {
            fold_regions(incoming, &[incoming, own], &plain);
        } else {
            let last = Reduction { prescale: 1.0, ..*reduction };
            fold_into(operands, 0, &[incoming, own], &last);
        }
    }
    Ok(())
}

/// Copies this rank's elements of a part, with the factor in front applied.
fn scale_own(operands: &Operands, part: Range<usize>, target: Region, reduction: &Reduction) {
    let base = part.start;
    for (at, own) in operands.source.parts(part) {
        fold_regions(target.part(at - base..at - base + own.length()), &[own], reduction);
    }
}
