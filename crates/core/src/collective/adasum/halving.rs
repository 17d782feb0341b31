//! Halves of halves: each pair shares the work of combining its two tensors.

use std::ops::Range;

use super::super::{Operands, row};
use super::pairs::{Parcel, Turn, exchange, places};
use crate::buffer::{Buffer, Region, Segments};
use crate::error::Error;
use crate::group::Group;
use crate::reduce::{Products, Reduction, blend, fold_regions, products};

/// Bytes of the three products of one tensor.
const PRODUCTS: usize = 24;

/// The ranks below the largest power of two `c` are the leaves of a binary tree; in it, ranks that
/// differ only in bit `t` and below are combined in turn `t`.
///
/// 1. The ranks from `c` on hand everything to the rank `c` below, which combines it with its own.
/// 2. Turn `t` on the way up: the ranks `r` and `r ^ 2^t` hold the same stretch of the row, each for
///    its side of the tree. They exchange halves: the lower keeps the first, the upper the second.
///    Each computes the inner products over its half, all `2^(t+1)` ranks below this node of the
///    tree add theirs up, and each blends its half. So after the last turn a rank holds `1/c` of the
///    result.
/// 3. Turn `t` on the way down: the same pairs give each other what they hold, until all have all.
/// 4. The ranks from `c` on get the result.
///
/// A rank below `c` sends and receives `2 (c - 1) / c` of the row, and twice the row more for one
/// that it speaks for.
pub(in super::super) fn halving(
    group: &mut Group<'_>,
    operands: &Operands,
    reduction: &Reduction,
) -> Result<(), Error> {
    if !reduction.dtype.is_float() {
        let error = format!("Adasum takes floating-point tensors only, not {}", reduction.dtype);
        return Err(Error::Invalid(error));
    }
    let (me, size) = places(group);
    let row = Row::new(operands, reduction, (me, size));
    let core = row.core;
    let speaks_for_another = me < size - core;
    let whole = 0..row.length;

    if core < size {
        let send = (me >= core).then(|| row.own(me - core, whole.clone()));
        let receive = speaks_for_another.then(|| row.others(me + core, whole.clone()));
        exchange(group, &Turn { send, receive, longest: row.length })?;
        if speaks_for_another {
            row.combine(whole.clone(), &row.measure(whole.clone()));
        }
    }
    for level in 0..core.ilog2() {
        up(group, &row, level)?;
    }
    if me < core {
        row.scale(row.stretch(me, core.ilog2()));
    }
    for level in (0..core.ilog2()).rev() {
        down(group, &row, level)?;
    }
    if core < size {
        let send = speaks_for_another.then(|| row.own(me + core, whole.clone()));
        let receive = (me >= core).then(|| row.own(me - core, whole));
        exchange(group, &Turn { send, receive, longest: row.length })?;
    }
    Ok(())
}

fn up(group: &mut Group<'_>, row: &Row, level: u32) -> Result<(), Error> {
    let (me, peer) = (row.me, row.me ^ (1 << level));
    let longest = row.longest(level + 1);
    if me >= row.core {
        exchange(group, &Turn { longest, ..Turn::default() })?;
        return add_up(group, row, Vec::new(), level).map(|_| ());
    }
    let (mine, theirs) = (row.stretch(me, level + 1), row.stretch(peer, level + 1));
    let (send, receive) = (Some(row.own(peer, theirs)), Some(row.others(peer, mine.clone())));
    exchange(group, &Turn { send, receive, longest })?;
    // Among the ranks below this node of the tree, left is the lower side.
    let turned = |products: Vec<Products>| match me < peer {
        true => products,
        false => products.iter().map(Products::turned).collect(),
    };
    let products = add_up(group, row, turned(row.measure(mine.clone())), level)?;
    row.combine(mine, &turned(products));
    Ok(())
}

fn down(group: &mut Group<'_>, row: &Row, level: u32) -> Result<(), Error> {
    let (me, peer) = (row.me, row.me ^ (1 << level));
    let longest = row.longest(level + 1);
    let takes_part = me < row.core;
    let send = takes_part.then(|| row.own(peer, row.stretch(me, level + 1)));
    let receive = takes_part.then(|| row.own(peer, row.stretch(peer, level + 1)));
    exchange(group, &Turn { send, receive, longest })
}

/// Adds up the products of all ranks below the node that this rank is under at `level`: in turn `t`
/// with the rank whose number differs in bit `t`. Both add the same two numbers, so they get the
/// same sum.
fn add_up(
    group: &mut Group<'_>,
    row: &Row,
    mut sums: Vec<Products>,
    level: u32,
) -> Result<Vec<Products>, Error> {
    let longest = row.tensors.len() * PRODUCTS;
    let (mine, theirs) = (Buffer::new(longest), Buffer::new(longest));
    for bit in 0..=level {
        if row.me >= row.core {
            exchange(group, &Turn { longest, ..Turn::default() })?;
            continue;
        }
        let parcel = |buffer: &Buffer| {
            let content = Segments::new(vec![buffer.region()]);
            Some(Parcel { peer: row.me ^ (1 << bit), content })
        };
        write(&sums, mine.region());
        exchange(group, &Turn { send: parcel(&mine), receive: parcel(&theirs), longest })?;
        for (sum, other) in sums.iter_mut().zip(read(theirs.region())) {
            sum.cross += other.cross;
            sum.left += other.left;
            sum.right += other.right;
        }
    }
    Ok(sums)
}

fn write(products: &[Products], region: Region) {
    let bytes = |each: &Products| [each.cross, each.left, each.right].map(f64::to_ne_bytes);
    region.write(products.iter().flat_map(bytes).flatten().collect::<Vec<u8>>().as_slice());
}

fn read(region: Region) -> Vec<Products> {
    let mut bytes = vec![0; region.length()];
    region.read(&mut bytes);
    let (numbers, _) = bytes.as_chunks::<8>();
    let (triples, _) = numbers.as_chunks::<3>();
    let product = |triple: &[[u8; 8]; 3]| {
        let [cross, left, right] = triple.map(f64::from_ne_bytes);
        Products { cross, left, right }
    };
    triples.iter().map(product).collect()
}

/// The tensors of a bucket one behind the other, in the memory of the result, and room for what comes
/// from another rank.
struct Row {
    me: usize,
    /// The leaves of the tree: the largest power of two that is not above the number of ranks.
    core: usize,
    length: usize,
    reduction: Reduction,
    /// Where each tensor lies in the row.
    tensors: Vec<Range<usize>>,
    own: Segments,
    others: Buffer,
}

impl Row {
    fn new(operands: &Operands, reduction: &Reduction, (me, size): (usize, usize)) -> Row {
        let Operands { source, target } = operands;
        let length = source.length();
        let core = 1 << size.ilog2();
        let scale = Reduction { postscale: 1.0, ..*reduction };
        for ((_, source), (_, target)) in source.parts(0..length).zip(target.parts(0..length)) {
            fold_regions(target, &[source], &scale);
        }
        let tensors = row(source.parts(0..length).map(|(_, part)| part.length()));
        let (own, others) = (target.clone(), Buffer::new(0));
        let mut row = Row { me, core, length, reduction: *reduction, tensors, own, others };
        // Halves are the most that comes, unless somebody hands everything over.
        row.others = Buffer::new(if core < size { length } else { row.longest(1) });
        row
    }

    /// What a rank holds when it has exchanged halves in so many turns.
    fn stretch(&self, rank: usize, turns: u32) -> Range<usize> {
        let element = self.reduction.dtype.size();
        let mut range = 0..self.length / element;
        for turn in 0..turns {
            let middle = range.start + range.len().div_ceil(2);
            range = if rank & (1 << turn) == 0 { range.start..middle } else { middle..range.end };
        }
        range.start * element..range.end * element
    }

    /// The longest stretch of any rank: a first half is never shorter than the second.
    fn longest(&self, turns: u32) -> usize {
        self.stretch(0, turns).len()
    }

    fn own(&self, peer: usize, range: Range<usize>) -> Parcel {
        let content = Segments::new(self.own.parts(range).map(|(_, part)| part).collect());
        Parcel { peer, content }
    }

    fn others(&self, peer: usize, range: Range<usize>) -> Parcel {
        Parcel { peer, content: Segments::new(vec![self.others.region().part(0..range.len())]) }
    }

    /// The parts of tensors that lie in a range: whose, what is own, and what has come for it.
    fn parts(&self, range: Range<usize>) -> impl Iterator<Item = (usize, Region, Region)> {
        let start = range.start;
        self.own.parts(range).map(move |(at, own)| {
            let tensor = self.tensors.partition_point(|tensor| tensor.end <= at);
            (tensor, own, self.others.region().part(at - start..at - start + own.length()))
        })
    }

    /// The inner products of what is own and what has come, for each tensor.
    fn measure(&self, range: Range<usize>) -> Vec<Products> {
        let mut all = vec![Products::default(); self.tensors.len()];
        for (tensor, own, other) in self.parts(range) {
            all[tensor] = products(own, other, self.reduction.dtype);
        }
        all
    }

    /// Blends what has come with what is own.
    fn combine(&self, range: Range<usize>, products: &[Products]) {
        for (tensor, own, other) in self.parts(range) {
            blend(own, other, products[tensor].factors(), self.reduction.dtype);
        }
    }

    /// Applies the factor behind the reduction.
    fn scale(&self, range: Range<usize>) {
        let scale = Reduction { prescale: 1.0, ..self.reduction };
        for (_, part) in self.own.parts(range) {
            fold_regions(part, &[part], &scale);
        }
    }
}
