//! The definition of a reduction, one element at a time.
//!
//! Elements are small whole numbers and prescale factors are powers of two, so that combining them
//! in any order gives the same bits in every element type; only the postscale factor may round,
//! once. The reciprocal of a number of ranks divides: an average is the sum divided by that number.

use half::{bf16, f16};
use ronde_control::{DType, ReduceOp};

/// How elements are combined.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arithmetic {
    pub(crate) op: ReduceOp,
    pub(crate) prescale: f64,
    pub(crate) postscale: f64,
}

/// Small whole numbers as elements of a type.
pub(crate) fn encode(dtype: DType, values: &[i64]) -> Vec<u8> {
    let plain = Arithmetic { op: ReduceOp::Sum, prescale: 1.0, postscale: 1.0 };
    values.iter().flat_map(|value| reduced(dtype, plain, &[*value])).collect()
}

/// The bytes of the element that results from those of all ranks, in rank order.
pub(crate) fn reduced(dtype: DType, arithmetic: Arithmetic, values: &[i64]) -> Vec<u8> {
    let Arithmetic { op, prescale, postscale } = arithmetic;
    macro_rules! integer {
        ($int:ty) => {{
            let scaled = |value: $int, factor: f64| match (factor, averages_over(factor)) {
                (1.0, _) => value,
                (_, Some(ranks)) => (value as f64 / f64::from(ranks)) as $int,
                _ => (value as f64 * factor) as $int,
            };
            let joined = values.iter().map(|value| scaled(*value as $int, prescale));
            let joined = joined.reduce(|a, b| match op {
                ReduceOp::Sum | ReduceOp::Adasum => a.wrapping_add(b),
                ReduceOp::Product => a.wrapping_mul(b),
                ReduceOp::Min => a.min(b),
                ReduceOp::Max => a.max(b),
            });
            scaled(joined.expect("there is a rank"), postscale).to_ne_bytes().to_vec()
        }};
    }
    let real = || {
        let values = values.iter().map(|value| *value as f64 * prescale);
        let joined = values.reduce(|a, b| match op {
            ReduceOp::Sum | ReduceOp::Adasum => a + b,
            ReduceOp::Product => a * b,
            ReduceOp::Min => a.min(b),
            ReduceOp::Max => a.max(b),
        });
        joined.expect("there is a rank")
    };
    let single = || match averages_over(postscale) {
        Some(ranks) => real() as f32 / f32::from(ranks),
        None => real() as f32 * postscale as f32,
    };
    let double = || match averages_over(postscale) {
        Some(ranks) => real() / f64::from(ranks),
        None => real() * postscale,
    };
    match dtype {
        DType::U8 => integer!(u8),
        DType::I8 => integer!(i8),
        DType::U16 => integer!(u16),
        DType::I16 => integer!(i16),
        DType::I32 => integer!(i32),
        DType::I64 => integer!(i64),
        DType::F16 => f16::from_f32(single()).to_ne_bytes().to_vec(),
        DType::BF16 => bf16::from_f32(single()).to_ne_bytes().to_vec(),
        DType::F32 => single().to_ne_bytes().to_vec(),
        DType::F64 => double().to_ne_bytes().to_vec(),
        DType::Bool => {
            let mut values = values.iter().map(|value| *value != 0 && prescale != 0.0);
            let joined = match op {
                ReduceOp::Sum | ReduceOp::Max | ReduceOp::Adasum => values.any(|value| value),
                ReduceOp::Min | ReduceOp::Product => values.all(|value| value),
            };
            vec![u8::from(joined && postscale != 0.0)]
        }
    }
}

/// The number of ranks that a factor averages over: then the sum is divided.
fn averages_over(factor: f64) -> Option<u16> {
    (1..1000).find(|ranks| 1.0 / f64::from(*ranks) == factor)
}

/// `count` elements, beginning at number `start`, of a row that repeats `pattern` endlessly.
pub(crate) fn cyclic(pattern: &[u8], element: usize, start: usize, count: usize) -> Vec<u8> {
    let (mut row, end) = (Vec::with_capacity(count * element), count * element);
    let mut at = start * element % pattern.len();
    while row.len() < end {
        let length = (pattern.len() - at).min(end - row.len());
        row.extend_from_slice(&pattern[at..at + length]);
        at = 0;
    }
    row
}
