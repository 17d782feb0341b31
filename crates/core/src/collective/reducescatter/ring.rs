//! Reducescatter over sockets.

use std::ops::Range;

use crate::buffer::{Buffer, Row, RowMut};
use crate::error::Error;
use crate::group::{Flow, Linked};
use crate::reduce::{Reduction, Term, combine};

/// Once around the ring: in turn `t`, a rank passes on the sum of part `me - t - 1` and receives
/// the sum of part `me - t - 2`, to which it adds its own. The last part it receives is its own,
/// complete. Sums alternate between two buffers, so that the source is not modified.
pub(in super::super) fn ring(
    links: &mut Linked<'_>,
    source: &Row<'_>,
    target: &mut RowMut<'_>,
    reduction: &Reduction,
    cuts: &[Range<usize>],
) -> Result<(), Error> {
    let (me, size) = (links.me(), links.size());
    let (right, left) = ((me + 1) % size, (me + size - 1) % size);
    let longest = cuts.iter().map(Range::len).max().unwrap_or(0);
    let mut buffers = [Buffer::new(longest), Buffer::new(longest)];
    let part = |index: usize| cuts[index % size].clone();
    // Prescaling is applied before a sum is sent, postscaling only at the end.
    let first = Reduction { postscale: 1.0, ..*reduction };
    let plain = Reduction { prescale: 1.0, postscale: 1.0, ..*reduction };
    let last = Reduction { prescale: 1.0, ..*reduction };
    let [mut sums, mut others] = buffers.each_mut().map(Buffer::bytes_mut);
    let start = part(me + size - 1);
    scale_own(source, start.clone(), &mut sums[..start.len()], &first);
    if size == 1 {
        combine_into(target, &[&sums[..start.len()]], &last);
        return Ok(());
    }
    for turn in 0..size - 1 {
        let (out, into) = (part(me + 2 * size - turn - 1), part(me + 2 * size - turn - 2));
        let incoming = &mut others[..into.len()];
        links.exchange(
            Some(Flow { peer: right, row: Row::new(vec![&sums[..out.len()]]) }),
            Some(Flow { peer: left, row: RowMut::new(vec![incoming]) }),
        )?;
        // The outgoing buffer is free now, and as long as the longest part.
        let own = &mut sums[..into.len()];
        scale_own(source, into, own, &first);
        if turn + 2 < size {
            combine(incoming, [Term::Target, Term::Of(own)], &plain);
        } else {
            combine_into(target, &[incoming, own], &last);
        }
        std::mem::swap(&mut sums, &mut others);
    }
    Ok(())
}

/// Copies this rank's elements of a part, prescaled.
fn scale_own(source: &Row<'_>, part: Range<usize>, target: &mut [u8], reduction: &Reduction) {
    let base = part.start;
    for (at, own) in source.parts(part) {
        combine(&mut target[at - base..at - base + own.len()], [Term::Of(own)], reduction);
    }
}

/// Reduces sources of equal length into the target.
fn combine_into(target: &mut RowMut<'_>, sources: &[&[u8]], reduction: &Reduction) {
    let length = sources.first().map_or(0, |source| source.len());
    for (at, target) in target.parts_mut(0..length) {
        let range = at..at + target.len();
        combine(target, sources.iter().map(|source| Term::Of(&source[range.clone()])), reduction);
    }
}
