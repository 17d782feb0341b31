//! Large buckets over sockets: twice around the ring.

use std::ops::Range;

use super::super::cut;
use super::prescaled;
use crate::buffer::{Buffer, Operands};
use crate::error::Error;
use crate::group::{BURST, Flow, Linked, Scratch};
use crate::reduce::{Reduction, Term, combine};

/// Size of the buffer that receives sums, which are added from it while still in the cache. Twice
/// what one system call delivers, so that data is never overwritten before it is added.
const SCRATCH: usize = 2 * BURST;

/// The bucket is cut into one chunk per rank; each rank always sends to the right and receives from
/// the left.
///
/// 1. First time around: in turn `t`, a rank passes on chunk `me - t`, receives chunk `me - t - 1`
///    and adds its own elements to it. After `n - 1` turns it holds chunk `me + 1` complete. The
///    sum of a chunk is built in the order of the ring, starting with the rank of the chunk's
///    number, so it does not depend on timing.
/// 2. Second time around: the complete chunks are passed on until all ranks have all of them.
///
/// Arriving data is reduced while the rest is still in flight; a large chunk travels in stripes,
/// one per connection of the link. Each rank sends and receives `2 (n - 1) / n` of the bucket,
/// which is the least possible.
pub(in super::super) fn ring(
    links: &mut Linked<'_>,
    operands: &mut Operands<'_>,
    reduction: &Reduction,
) -> Result<(), Error> {
    let reduction = prescaled(operands, reduction);
    let (me, size) = (links.me(), links.size());
    let (right, left) = ((me + 1) % size, (me + size - 1) % size);
    let (element, length) = (reduction.dtype.size(), operands.length());
    let cuts: Vec<_> = (0..size).map(|index| cut(length, size, index, element)).collect();
    let most = links.stripes(cuts.iter().map(Range::len).max().unwrap_or(0)).len();
    let mut scratch: Vec<Buffer> = (0..most).map(|_| Buffer::new(SCRATCH)).collect();
    let mut chunks = operands.split(&cuts);

    for turn in 0..size - 1 {
        let (out, into) = two(&mut chunks, me + size - turn, me + size - turn - 1);
        let row = if turn == 0 { out.source() } else { out.target().as_row() };
        let outgoing = links.stripes(row.length()).into_iter();
        let outgoing = outgoing.map(|stripe| Flow { peer: right, row: row.slice(stripe) });
        let stripes = links.stripes(into.length());
        let incoming = stripes.iter().zip(&mut scratch).map(|(stripe, scratch)| {
            let (memory, length) = (scratch.bytes_mut(), stripe.len());
            Flow { peer: left, row: Scratch { memory, length } }
        });
        // Postscaling belongs to the last addition.
        let postscale = if turn + 2 == size { reduction.postscale } else { 1.0 };
        let step = Reduction { postscale, ..reduction };
        let mut folded = vec![0; stripes.len()];
        links.stream(outgoing.collect(), incoming.collect(), |stripe, arrived, scratch| {
            let whole = arrived / element * element;
            let done = &mut folded[stripe];
            while *done < whole {
                let at = *done % SCRATCH;
                let end = SCRATCH.min(at + whole - *done);
                accumulate(into, stripes[stripe].start + *done, &scratch[at..end], &step);
                *done += end - at;
            }
        })?;
    }
    for turn in 0..size - 1 {
        let (out, into) = two(&mut chunks, me + 1 + size - turn, me + size - turn);
        links.exchange(
            Some(Flow { peer: right, row: out.target().as_row() }),
            Some(Flow { peer: left, row: into.target_mut().reborrow() }),
        )?;
    }
    Ok(())
}

/// Two chunks, by their numbers around the ring.
fn two<'a, 'b>(
    chunks: &'a mut [Operands<'b>],
    one: usize,
    other: usize,
) -> (&'a Operands<'b>, &'a mut Operands<'b>) {
    let size = chunks.len();
    let both = chunks.get_disjoint_mut([one % size, other % size]);
    let [one, other] = both.expect("neighbors in a ring of two or more");
    (one, other)
}

/// Adds this rank's elements to the received sum, into the target.
fn accumulate(chunk: &mut Operands<'_>, at: usize, sum: &[u8], reduction: &Reduction) {
    for (place, own, target) in chunk.pairs_mut(at..at + sum.len()) {
        let sum = &sum[place - at..place - at + target.len()];
        combine(target, [Term::Of(sum), own.into()], reduction);
    }
}
