//! Recursive halving: each pair shares the work of combining its two tensors.

use std::ops::Range;

use super::super::row;
use super::pairs::{PairTurn, exchange, places};
use crate::buffer::{Buffer, Operands, Row, RowMut};
use crate::error::Error;
use crate::group::{Flow, Group};
use crate::reduce::{Products, Reduction, Term, blend, combine, products};

/// Size of the three products of one tensor, in bytes.
const PRODUCTS: usize = 24;

/// The ranks below the largest power of two `c` are the leaves of a binary tree, in which ranks
/// that differ only in bit `t` and below are combined in turn `t`.
///
/// 1. The ranks from `c` on hand everything to the rank `c` below, which combines it with its own.
/// 2. Turn `t` on the way up: ranks `r` and `r ^ 2^t` hold the same range of the row, each for its
///    side of the tree. They exchange halves: the lower rank keeps the first half, the upper one
///    the second. Each computes the inner products over its half, all `2^(t+1)` ranks below this
///    node of the tree add theirs up, and each blends its half. So after the last turn a rank holds
///    `1/c` of the result.
/// 3. Turn `t` on the way down: the same pairs exchange what they hold, until all ranks have
///    everything.
/// 4. The ranks from `c` on get the result.
///
/// A rank below `c` sends and receives `2 (c - 1) / c` of the row, plus twice the row if it
/// represents another rank.
pub(in super::super) fn halving(
    group: &mut Group<'_>,
    operands: &mut Operands<'_>,
    reduction: &Reduction,
) -> Result<(), Error> {
    if !reduction.dtype.is_float() {
        let error = format!("Adasum supports only floating-point tensors, not {}", reduction.dtype);
        return Err(Error::Invalid(error));
    }
    let (me, size) = places(group);
    let mut bucket = AdasumBucket::new(operands, reduction, (me, size));
    let (core, longest) = (bucket.core, bucket.length);
    let represents_another = me < size - core;
    let whole = 0..longest;

    if core < size {
        let (own, others) = bucket.both(whole.clone());
        let send = (me >= core).then(|| Flow { peer: me - core, row: own });
        let receive = represents_another.then(|| Flow { peer: me + core, row: others });
        exchange(group, PairTurn { send, receive, longest })?;
        if represents_another {
            let products = bucket.measure(whole.clone());
            bucket.combine(whole, &products);
        }
    }
    for level in 0..core.ilog2() {
        up(group, &mut bucket, level)?;
    }
    if me < core {
        bucket.scale(bucket.held_range(me, core.ilog2()));
    }
    for level in (0..core.ilog2()).rev() {
        down(group, &mut bucket, level)?;
    }
    if core < size {
        let mut turn = PairTurn { longest, ..PairTurn::default() };
        if represents_another {
            turn.send = Some(Flow { peer: me + core, row: bucket.own.as_row() });
        } else if me >= core {
            turn.receive = Some(Flow { peer: me - core, row: bucket.own.reborrow() });
        }
        exchange(group, turn)?;
    }
    Ok(())
}

fn up(group: &mut Group<'_>, bucket: &mut AdasumBucket<'_>, level: u32) -> Result<(), Error> {
    let (me, peer) = (bucket.me, bucket.me ^ (1 << level));
    let longest = bucket.longest(level + 1);
    if me >= bucket.core {
        exchange(group, PairTurn { longest, ..PairTurn::default() })?;
        return add_up(group, bucket, Vec::new(), level).map(|_| ());
    }
    let (mine, theirs) = (bucket.held_range(me, level + 1), bucket.held_range(peer, level + 1));
    let send = Some(Flow { peer, row: bucket.own.as_row().slice(theirs) });
    let others = &mut bucket.others.bytes_mut()[..mine.len()];
    let receive = Some(Flow { peer, row: RowMut::new(vec![others]) });
    exchange(group, PairTurn { send, receive, longest })?;
    // Among the ranks below this node of the tree, left is the lower side.
    let swapped = |products: Vec<Products>| match me < peer {
        true => products,
        false => products.iter().map(Products::swapped).collect(),
    };
    let products = add_up(group, bucket, swapped(bucket.measure(mine.clone())), level)?;
    bucket.combine(mine, &swapped(products));
    Ok(())
}

fn down(group: &mut Group<'_>, bucket: &mut AdasumBucket<'_>, level: u32) -> Result<(), Error> {
    let (me, peer) = (bucket.me, bucket.me ^ (1 << level));
    let longest = bucket.longest(level + 1);
    if me >= bucket.core {
        return exchange(group, PairTurn { longest, ..PairTurn::default() });
    }
    let ranges = [me, peer].map(|rank| bucket.held_range(rank, level + 1));
    let mut halves = bucket.own.split(&ranges).into_iter();
    let (mine, theirs) = (halves.next(), halves.next());
    let send = mine.as_ref().map(|row| Flow { peer, row: row.as_row() });
    let receive = theirs.map(|row| Flow { peer, row });
    exchange(group, PairTurn { send, receive, longest })
}

/// Adds up the products of all ranks below this rank's tree node at `level`: in turn `t`, with the
/// rank whose number differs in bit `t`. Both add the same two numbers, so they get the same sum.
fn add_up(
    group: &mut Group<'_>,
    bucket: &AdasumBucket<'_>,
    mut sums: Vec<Products>,
    level: u32,
) -> Result<Vec<Products>, Error> {
    let longest = bucket.tensors.len() * PRODUCTS;
    for bit in 0..=level {
        if bucket.me >= bucket.core {
            exchange(group, PairTurn { longest, ..PairTurn::default() })?;
            continue;
        }
        let peer = bucket.me ^ (1 << bit);
        let (mine, mut theirs) = (write(&sums), vec![0; longest]);
        let send = Some(Flow { peer, row: Row::new(vec![&mine]) });
        let receive = Some(Flow { peer, row: RowMut::new(vec![&mut theirs]) });
        exchange(group, PairTurn { send, receive, longest })?;
        for (sum, other) in sums.iter_mut().zip(read(&theirs)) {
            sum.cross += other.cross;
            sum.left += other.left;
            sum.right += other.right;
        }
    }
    Ok(sums)
}

fn write(products: &[Products]) -> Vec<u8> {
    let bytes = |each: &Products| [each.cross, each.left, each.right].map(f64::to_ne_bytes);
    products.iter().flat_map(bytes).flatten().collect()
}

fn read(bytes: &[u8]) -> Vec<Products> {
    let (numbers, _) = bytes.as_chunks::<8>();
    let (triples, _) = numbers.as_chunks::<3>();
    let product = |triple: &[[u8; 8]; 3]| {
        let [cross, left, right] = triple.map(f64::from_ne_bytes);
        Products { cross, left, right }
    };
    triples.iter().map(product).collect()
}

/// The tensors of a bucket one after another, in the memory of the result, and a buffer for data
/// from another rank.
struct AdasumBucket<'a> {
    me: usize,
    /// The number of leaves of the tree: the largest power of two not above the number of ranks.
    core: usize,
    length: usize,
    reduction: Reduction,
    /// The range of each tensor in the row.
    tensors: Vec<Range<usize>>,
    own: RowMut<'a>,
    others: Buffer,
}

impl<'a> AdasumBucket<'a> {
    fn new(
        operands: &'a mut Operands<'_>,
        reduction: &Reduction,
        (me, size): (usize, usize),
    ) -> AdasumBucket<'a> {
        let length = operands.length();
        let core = 1 << size.ilog2();
        let scale = Reduction { postscale: 1.0, ..*reduction };
        for (_, own, target) in operands.pairs_mut(0..length) {
            combine(target, [own.into()], &scale);
        }
        let tensors = row(operands.lengths().filter(|length| *length > 0));
        let (own, others) = (operands.target_mut().reborrow(), Buffer::new(0));
        let mut bucket =
            AdasumBucket { me, core, length, reduction: *reduction, tensors, own, others };
        // At most half of the bucket arrives, unless another rank hands over everything.
        bucket.others = Buffer::new(if core < size { length } else { bucket.longest(1) });
        bucket
    }

    /// The range that a rank holds after exchanging halves in this many turns.
    fn held_range(&self, rank: usize, turns: u32) -> Range<usize> {
        let element = self.reduction.dtype.size();
        let mut range = 0..self.length / element;
        for turn in 0..turns {
            let middle = range.start + range.len().div_ceil(2);
            range = if rank & (1 << turn) == 0 { range.start..middle } else { middle..range.end };
        }
        range.start * element..range.end * element
    }

    /// The longest range that any rank holds: a first half is never shorter than the second.
    fn longest(&self, turns: u32) -> usize {
        self.held_range(0, turns).len()
    }

    /// A range of this rank's data, and a buffer for as much of another rank's.
    fn both(&mut self, range: Range<usize>) -> (Row<'_>, RowMut<'_>) {
        let others = &mut self.others.bytes_mut()[..range.len()];
        (self.own.as_row().slice(range), RowMut::new(vec![others]))
    }

    /// The index of the tensor at a position in the row.
    fn tensor(&self, at: usize) -> usize {
        self.tensors.partition_point(|tensor| tensor.end <= at)
    }

    /// The inner products of this rank's and the received data, for each tensor.
    fn measure(&self, range: Range<usize>) -> Vec<Products> {
        let mut all = vec![Products::default(); self.tensors.len()];
        let start = range.start;
        for (at, own) in self.own.parts(range) {
            let other = &self.others.bytes()[at - start..at - start + own.len()];
            all[self.tensor(at)] = products(own, other, self.reduction.dtype);
        }
        all
    }

    /// Blends the received data with this rank's.
    fn combine(&mut self, range: Range<usize>, products: &[Products]) {
        let AdasumBucket { own, others, tensors, reduction, .. } = self;
        let start = range.start;
        for (at, own) in own.parts_mut(range) {
            let other = &others.bytes()[at - start..at - start + own.len()];
            let tensor = tensors.partition_point(|tensor| tensor.end <= at);
            blend(own, other, products[tensor].factors(), reduction.dtype);
        }
    }

    /// Applies the postscale factor.
    fn scale(&mut self, range: Range<usize>) {
        let scale = Reduction { prescale: 1.0, ..self.reduction };
        for (_, part) in self.own.parts_mut(range) {
            combine(part, [Term::Target], &scale);
        }
    }
}
