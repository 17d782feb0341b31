//! Large buckets over sockets: round the ring twice.

use std::ops::Range;

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
/// What arrives is reduced while the rest is still on its way; a large chunk travels in stripes, one
/// per connection of the link. Each rank sends and receives
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
    let regions = |row: &Segments, range: Range<usize>| -> Vec<Region> {
        row.parts(range).map(|(_, part)| part).collect()
    };
    let most = links.stripes(chunk(0).len().max(chunk(size - 1).len())).len();
    let scratch: Vec<Buffer> = (0..most).map(|_| Buffer::new(SCRATCH)).collect();

    for turn in 0..size - 1 {
        let (out, into) = (chunk(me + size - turn), chunk(me + size - turn - 1));
        let row = if turn == 0 { &operands.source } else { &operands.target };
        let outgoing: Vec<Vec<Region>> = links
            .stripes(out.len())
            .into_iter()
            .map(|stripe| regions(row, out.start + stripe.start..out.start + stripe.end))
            .collect();
        let stripes = links.stripes(into.len());
        let landing: Vec<Vec<Region>> = stripes
            .iter()
            .zip(&scratch)
            .map(|(stripe, scratch)| land(stripe.len(), scratch.region()))
            .collect();
        // The factor behind the sum belongs to the last addition.
        let postscale = if turn + 2 == size { reduction.postscale } else { 1.0 };
        let step = Reduction { postscale, ..reduction };
        let mut folded = vec![0; stripes.len()];
        links.stream(&flows(right, &outgoing), &flows(left, &landing), |stripe, arrived| {
            let whole = arrived / element * element;
            let (done, scratch) = (&mut folded[stripe], scratch[stripe].region());
            while *done < whole {
                let at = *done % SCRATCH;
                let end = SCRATCH.min(at + whole - *done);
                let start = into.start + stripes[stripe].start + *done;
                accumulate(&operands, start, scratch.part(at..end), &step);
                *done += end - at;
            }
        })?;
    }
    for turn in 0..size - 1 {
        let (out, into) = (chunk(me + 1 + size - turn), chunk(me + size - turn));
        let (outgoing, incoming) =
            (regions(&operands.target, out), regions(&operands.target, into));
        links.exchange(
            Some(Flow { peer: right, regions: &outgoing }),
            Some(Flow { peer: left, regions: &incoming }),
        )?;
    }
    Ok(())
}

/// Where so many bytes land: in the same place again and again.
fn land(length: usize, scratch: Region) -> Vec<Region> {
    pieces(length, SCRATCH).map(|piece| scratch.part(0..piece.len())).collect()
}

fn flows(peer: usize, stripes: &[Vec<Region>]) -> Vec<Flow<'_>> {
    stripes.iter().map(|regions| Flow { peer, regions }).collect()
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
