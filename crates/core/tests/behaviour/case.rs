//! One case of the behavior suite: a collective, its tensors, and the expected results.
//!
//! The elements of a tensor repeat a short random pattern of prime length, so that an element in
//! the wrong place is noticed, and the expected result is known without computing it for every
//! element.

use std::fmt;

use ronde_control::negotiate::CollectiveKind;
use ronde_control::{DType, Rank, ReduceOp};
use ronde_testkit::TestRng;

use crate::reference::{Arithmetic, cyclic, encode, reduced};

const PERIOD: usize = 509;

/// Tensors grow to about this many bytes.
const LARGE: usize = 700 << 10;

/// A collective; members are given by their place in the set.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Collective {
    Allreduce(Arithmetic),
    Broadcast { root: usize },
    Allgather,
    Alltoall,
    Reducescatter(Arithmetic),
}

/// How the tensors of a case are submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// All in one request.
    Group,
    /// Each separately, in a different order on every rank; they may be fused in any way.
    Crowd,
}

/// Where results go, unless the engine allocates them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Into {
    Source,
    Other,
}

pub(crate) struct Case {
    pub(crate) collective: Collective,
    pub(crate) dtype: DType,
    pub(crate) form: Form,
    pub(crate) into: Into,
    /// The index of the process set that it runs in.
    pub(crate) set: usize,
    pub(crate) tensors: Vec<Tensors>,
}

/// One tensor of every member.
pub(crate) struct Tensors {
    lengths: Lengths,
    /// The pattern that each member's elements repeat.
    patterns: Vec<Vec<u8>>,
    /// The pattern that the elements of a reduction repeat.
    reduced: Vec<u8>,
}

#[derive(Debug)]
struct Lengths {
    /// The number of elements in a row.
    width: usize,
    /// The number of rows of each member.
    rows: Vec<usize>,
    /// The number of rows from each member to each other, for alltoall.
    splits: Vec<Vec<usize>>,
}

impl Case {
    /// A random case for a world whose process sets have these sizes. The first cases go through
    /// all types and operations one after another, so that none is left to chance.
    pub(crate) fn any(number: usize, sets: &[usize], rng: &mut TestRng) -> Case {
        let set = if rng.once_in(3) { rng.below(sets.len()) } else { 0 };
        let size = sets[set];
        let collective = match number % 8 {
            0..4 => Collective::Allreduce(any_arithmetic(number / 8 % 4, size, rng)),
            4 => Collective::Broadcast { root: rng.below(size) },
            5 => Collective::Allgather,
            6 => Collective::Alltoall,
            _ => Collective::Reducescatter(any_arithmetic(number / 8 % 4, size, rng)),
        };
        let dtype = DType::ALL[number % DType::ALL.len()];
        let form = rng.pick(&[Form::Group, Form::Crowd]);
        let into = rng.pick(&[Into::Source, Into::Other]);
        let most = match collective {
            Collective::Alltoall if form == Form::Group => 1,
            _ => rng.pick(&[1, 1, 2, 5, 40]),
        };
        let count = 1 + rng.below(most);
        let tensor = |_| Tensors::any(collective, dtype, (size, count), rng);
        let tensors = (0..count).map(tensor).collect();
        Case { collective, dtype, form, into, set, tensors }
    }

    /// One tensor of `length` floats on every member, in the world.
    pub(crate) fn of(
        collective: Collective,
        length: usize,
        size: usize,
        rng: &mut TestRng,
    ) -> Case {
        let splits = vec![vec![length / size; size]; size];
        let lengths = Lengths { width: 1, rows: vec![length; size], splits };
        let tensors = vec![Tensors::with(collective, DType::F32, lengths, rng)];
        let (form, into) = (Form::Group, Into::Other);
        Case { collective, dtype: DType::F32, form, into, set: 0, tensors }
    }

    /// The kind of the request for one of its tensors, as this member submits it.
    pub(crate) fn kind(&self, tensor: usize, me: usize, ranks: &[u32]) -> CollectiveKind {
        match self.collective {
            Collective::Allreduce(Arithmetic { op, prescale, postscale }) => {
                CollectiveKind::Allreduce { op, prescale, postscale }
            }
            Collective::Reducescatter(Arithmetic { op, prescale, postscale }) => {
                CollectiveKind::Reducescatter { op, prescale, postscale }
            }
            Collective::Broadcast { root } => CollectiveKind::Broadcast { root: Rank(ranks[root]) },
            Collective::Allgather => CollectiveKind::Allgather,
            Collective::Alltoall => {
                let splits = &self.tensors[tensor].lengths.splits[me];
                CollectiveKind::Alltoall {
                    splits: splits.iter().map(|rows| *rows as u64).collect(),
                }
            }
        }
    }

    /// The input of a member: its shape and bytes.
    pub(crate) fn input(&self, tensor: usize, me: usize) -> ([u64; 2], Vec<u8>) {
        let Tensors { lengths: Lengths { width, rows, .. }, patterns, .. } = &self.tensors[tensor];
        let bytes = cyclic(&patterns[me], self.dtype.size(), 0, rows[me] * width);
        ([rows[me] as u64, *width as u64], bytes)
    }

    /// The expected output of a member.
    pub(crate) fn output(&self, tensor: usize, me: usize) -> Vec<u8> {
        let Tensors { lengths, patterns, reduced } = &self.tensors[tensor];
        let Lengths { width, rows, splits } = lengths;
        let row = |pattern: &[u8], start: usize, count: usize| {
            cyclic(pattern, self.dtype.size(), start * width, count * width)
        };
        let size = patterns.len();
        match self.collective {
            Collective::Allreduce(_) => row(reduced, 0, rows[me]),
            Collective::Broadcast { root } => row(&patterns[root], 0, rows[me]),
            Collective::Allgather => {
                (0..size).flat_map(|from| row(&patterns[from], 0, rows[from])).collect()
            }
            Collective::Alltoall => {
                let before = |from: usize| splits[from][..me].iter().sum();
                let part = |from: usize| row(&patterns[from], before(from), splits[from][me]);
                (0..size).flat_map(part).collect()
            }
            Collective::Reducescatter(_) => {
                let mine = |place: usize| rows[0] / size + usize::from(place < rows[0] % size);
                row(reduced, (0..me).map(mine).sum(), mine(me))
            }
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { collective, dtype, form, into, set, tensors } = self;
        let shapes: Vec<_> = tensors.iter().take(4).map(|tensor| &tensor.lengths).collect();
        write!(
            f,
            "{collective:?} of {} tensors of {dtype} as {form:?} into {into:?} ",
            tensors.len()
        )?;
        write!(f, "in set {set}, the first are {shapes:?}")
    }
}

impl Tensors {
    fn any(
        collective: Collective,
        dtype: DType,
        (size, count): (usize, usize),
        rng: &mut TestRng,
    ) -> Tensors {
        let width = rng.pick(&[1, 1, 2, 3, 17]);
        let limit = LARGE / count / dtype.size() / width;
        let (mut rows, mut splits) = (vec![any_length(limit, rng); size], Vec::new());
        match collective {
            Collective::Allgather => {
                rows = (0..size).map(|_| any_length(limit * 2 / size, rng)).collect();
            }
            Collective::Alltoall => {
                let limit = limit / size;
                splits = (0..size)
                    .map(|_| (0..size).map(|_| any_length(limit, rng)).collect())
                    .collect();
                // Rows that no split covers are dropped.
                let row = |splits: &Vec<usize>| splits.iter().sum::<usize>() + rng.below(3);
                rows = splits.iter().map(row).collect();
            }
            _ => {}
        }
        Tensors::with(collective, dtype, Lengths { width, rows, splits }, rng)
    }

    fn with(collective: Collective, dtype: DType, lengths: Lengths, rng: &mut TestRng) -> Tensors {
        let size = lengths.rows.len();
        let arithmetic = match collective {
            Collective::Allreduce(arithmetic) | Collective::Reducescatter(arithmetic) => arithmetic,
            _ => Arithmetic { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 },
        };
        let alphabet: &[i64] = match arithmetic.op {
            ReduceOp::Product => &[-1, 0, 1, 1, 1, 2, 2, 2],
            _ => &[-3, -2, -1, 0, 1, 2, 3, 7],
        };
        let numbers: Vec<Vec<i64>> =
            (0..size).map(|_| (0..PERIOD).map(|_| rng.pick(alphabet)).collect()).collect();
        let patterns = numbers.iter().map(|values| encode(dtype, values)).collect();
        let element = |i: usize| {
            let values: Vec<i64> = numbers.iter().map(|values| values[i]).collect();
            reduced(dtype, arithmetic, &values)
        };
        let reduced = (0..PERIOD).flat_map(element).collect();
        Tensors { lengths, patterns, reduced }
    }
}

fn any_arithmetic(op: usize, size: usize, rng: &mut TestRng) -> Arithmetic {
    let op = [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product][op];
    if rng.once_in(2) {
        return Arithmetic { op, prescale: 1.0, postscale: 1.0 };
    }
    // A product of doubled numbers would overflow half precision along the way.
    let prescale = rng.pick(if op == ReduceOp::Product { &[1.0, 0.5] } else { &[1.0, 0.5, 2.0] });
    let postscale = rng.pick(&[1.0, 1.0 / size as f64, 0.25, 3.0]);
    Arithmetic { op, prescale, postscale }
}

/// A length of at most `limit`, often next to one at which something changes.
fn any_length(limit: usize, rng: &mut TestRng) -> usize {
    let length = match rng.below(8) {
        0 => 0,
        1 => 1,
        2..4 => rng.below(100),
        4..6 => rng.below(5000),
        6 => (1 << rng.below(20)) + rng.below(3) - 1,
        _ => rng.below(limit + 1),
    };
    length.min(limit)
}
