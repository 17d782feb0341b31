//! A fold computed one element at a time, without loops, blocks or vectors.
//!
//! The `half` crate converts half precision; integers and floats use the language alone.

use half::{bf16, f16};
use ronde_control::{DType, ReduceOp};

use super::Reduction;

/// The bits of a source's elements, each in the low bytes of a word.
pub(super) type Source = Vec<u64>;

/// The expected result of a fold.
pub(super) fn reference(sources: &[Source], reduction: &Reduction) -> Source {
    let count = sources[0].len();
    (0..count).map(|i| element(sources.iter().map(|source| source[i]), reduction)).collect()
}

fn element(bits: impl Iterator<Item = u64>, reduction: &Reduction) -> u64 {
    let pre = reduction.prescale;
    let post = reduction.postscale;
    let op = reduction.op;
    macro_rules! integer {
        ($int:ty) => {{
            let scaled = |value: $int, factor: f64| match (factor, ranks(factor)) {
                (1.0, _) => value,
                (_, Some(ranks)) => (value as f64 / f64::from(ranks)) as $int,
                _ => (value as f64 * factor) as $int,
            };
            let joined = bits.map(|bits| scaled(bits as $int, pre)).reduce(|a, b| match op {
                ReduceOp::Sum | ReduceOp::Adasum => a.wrapping_add(b),
                ReduceOp::Product => a.wrapping_mul(b),
                ReduceOp::Min => a.min(b),
                ReduceOp::Max => a.max(b),
            });
            scaled(joined.unwrap(), post) as u64
        }};
    }
    macro_rules! float {
        ($float:ty, $widen:expr, $narrow:expr) => {{
            let scaled = |value: $float, factor: f64| match ranks(factor) {
                Some(ranks) => value / ranks as $float,
                None => value * factor as $float,
            };
            let joined = bits.map($widen).map(|value| scaled(value, pre)).reduce(|a, b| match op {
                ReduceOp::Sum | ReduceOp::Adasum => a + b,
                ReduceOp::Product => a * b,
                _ if a.is_nan() || b.is_nan() => <$float>::NAN,
                ReduceOp::Min if b < a => b,
                ReduceOp::Max if b > a => b,
                ReduceOp::Min | ReduceOp::Max => a,
            });
            let value: $float = scaled(joined.unwrap(), post);
            $narrow(if value.is_nan() { <$float>::NAN } else { value })
        }};
    }
    let word: u64 = match reduction.dtype {
        DType::U8 => integer!(u8),
        DType::I8 => integer!(i8),
        DType::U16 => integer!(u16),
        DType::I16 => integer!(i16),
        DType::I32 => integer!(i32),
        DType::I64 => integer!(i64),
        DType::F16 => float!(f32, |bits| f16::from_bits(bits as u16).to_f32_const(), |value| {
            f16::from_f32_const(value).to_bits().into()
        }),
        DType::BF16 => {
            float!(f32, |bits| bf16::from_bits(bits as u16).to_f32(), |value| bf16::from_f32(value)
                .to_bits()
                .into())
        }
        DType::F32 => {
            float!(f32, |bits| f32::from_bits(bits as u32), |value: f32| value.to_bits().into())
        }
        DType::F64 => float!(f64, f64::from_bits, f64::to_bits),
        DType::Bool => {
            let joined = bits.map(|bits| bits as u8 != 0 && pre != 0.0).reduce(|a, b| match op {
                ReduceOp::Sum | ReduceOp::Max | ReduceOp::Adasum => a || b,
                ReduceOp::Min | ReduceOp::Product => a && b,
            });
            u64::from(joined.unwrap() && post != 0.0)
        }
    };
    word & mask(reduction.dtype)
}

/// The number of ranks that a factor averages over.
fn ranks(factor: f64) -> Option<u16> {
    (1..1000).find(|ranks| 1.0 / f64::from(*ranks) == factor)
}

/// The bits that belong to an element.
pub(super) fn mask(dtype: DType) -> u64 {
    u64::MAX >> (64 - 8 * dtype.size())
}

/// Difficult elements. For floats: zeros, infinities and NaN, then the largest, the smallest
/// normal, denormals, rounding ties and a signaling NaN. For integers: the ends of every range, and
/// one that `f64` cannot represent.
pub(super) fn specials(dtype: DType) -> Vec<u64> {
    let floats = [0.0, -0.0, 1.0, -1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -f64::NAN];
    let (floats, others): (_, &[u64]) = match dtype {
        DType::F16 => (
            floats.map(|value| f16::from_f64(value).to_bits().into()),
            &[0x7BFF, 0xFBFF, 0x0400, 0x0001, 0x83FF, 0x3C01, 0x1000, 0x7C01],
        ),
        DType::BF16 => (
            floats.map(|value| bf16::from_f64(value).to_bits().into()),
            &[0x7F7F, 0xFF7F, 0x0080, 0x0001, 0x807F, 0x3F81, 0x3B80, 0x7F81],
        ),
        DType::F32 => (
            floats.map(|value| (value as f32).to_bits().into()),
            &[0x7F7F_FFFF, 0x0080_0000, 0x0000_0001, 0x807F_FFFF, 0x7F80_0001],
        ),
        DType::F64 => {
            (floats.map(f64::to_bits), &[1, 1 << 52, 0x7FEF << 48, 0x7FF0_0000_0000_0001])
        }
        _ => (
            [0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000],
            &[0x7FFF_FFFF, 0x8000_0000, i64::MAX as u64, 1 << 63, (1 << 53) + 1],
        ),
    };
    floats.iter().chain(others).map(|bits| bits & mask(dtype)).collect()
}
