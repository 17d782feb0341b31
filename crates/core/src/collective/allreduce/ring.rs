//! Large buckets over sockets: round the ring twice.

use super::super::{Operands, cut, pieces};
use super::prescaled;
use crate::buffer::{Buffer, Region, Segments};
use crate::error::Error;
use crate::group::{BURST, Flow, Linked};
use crate::reduce::{Reduction, fold_regions};

/// Sums land here, again and again, and are added from here while they are still in the cache. Twice
/// what one system call brings, so that it never overwrites what has not been added yet.
const SCRATCH: usize = 2 * BURST;

/// The bucket is cut into one chunk per rank; everybody always sends to the right and receives from
/// the left.
///
/// 1. First time round: in turn `t` a rank passes on chunk `me - t` and receives chunk `me - t - 1`,
///    to which it adds its own. After `n - 1` turns it holds chunk `me + 1` complete. The sum of a
///    chunk is built in the order of the ring, starting with the rank of the chunk's number, so it
///    does not depend on time.
/// 2. Second time round: the complete chunks travel on until everybody has all.
///
/// What arrives is reduced while the rest is still on its way. Each rank sends and receives
/// `2 (n - 1) / n` of the bucket, which is the least possible.
pub(in super::super) fn ring(
    links: &mut Linked<'_>,
    operands: &Operands,
    reduction: &Reduction,
) -> Result<(), Error> {
    let (operands, reduction) = prescaled(operands, reduction);
    let (me, size) = (links.me(), links.size());
    let (right, left) = ((me + 1) % size, (me + size - 1) % size);
    let element = reduction.dtype.size();
    let length = operands.source.length();
    let chunk = |index: usize| cut(length, size, index % size, element);
    let regions = |row: &Segments, index: usize| -> Vec<Region> {
        row.parts(chunk(index)).map(|(_, part)| part).collect()
    };
    let scratch = Buffer::new(SCRATCH);

    for turn in 0..size - 1 {
        let (out, into) = (me + size - turn, me + size - turn - 1);
        let outgoing = regions(if turn == 0 { &operands.source } else { &operands.target }, out);
        let landing: Vec<Region> = pieces(chunk(into).len(), SCRATCH)
            .map(|piece| scratch.region().part(0..piece.len()))
            .collect();
        // The factor behind the sum belongs to the last addition.
        let postscale = if turn + 2 == size { reduction.postscale } else { 1.0 };
        let step = Reduction { postscale, ..reduction };
        let mut folded = 0;
        links.exchange(
            Some(Flow { peer: right, regions: &outgoing }),
            Some(Flow { peer: left, regions: &landing }),
            |arrived| {
                let whole = arrived / element * element;
                while folded < whole {
                    let at = folded % SCRATCH;
                    let end = SCRATCH.min(at + whole - folded);
                    let fresh = scratch.region().part(at..end);
                    accumulate(&operands, chunk(into).start + folded, fresh, &step);
                    folded += end - at;
                }
            },
        )?;
    }
    for turn in 0..size - 1 {
        let (out, into) = (me + 1 + size - turn, me + size - turn);
        let (outgoing, incoming) =
            (regions(&operands.target, out), regions(&operands.target, into));
        links.exchange(
            Some(Flow { peer: right, regions: &outgoing }),
            Some(Flow { peer: left, regions: &incoming }),
            |_| (),
        )?;
    }
    Ok(())
}

/// Adds this rank's elements to the sum that has come, into the target.
fn accumulate(operands: &Operands, at: usize, sum: Region, reduction: &Reduction) {
    for (place, own) in operands.source.parts(at..at + sum.length()) {
        let sum = sum.part(place - at..place - at + own.length());
        for (inner, target) in operands.target.parts(place..place + own.length()) {
            let range = inner - place..inner - place + target.length();
            fold_regions(target, &[sum.part(range.clone()), own.part(range)], reduction);
        }
    }
}
