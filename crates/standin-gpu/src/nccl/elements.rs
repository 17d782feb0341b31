//! Element types and reductions.
//!
//! Sixteen-bit floats are added up in 32 bits and rounded once; NCCL may round after every step.

use half::{bf16, f16};

use super::errors::{NcclFailure, NcclResult};

/// The numbers of `ncclDataType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NcclType {
    Int8,
    Uint8,
    Int32,
    Uint32,
    Int64,
    Uint64,
    Float16,
    Float32,
    Float64,
    Bfloat16,
}

/// The numbers of `ncclRedOp_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReduceOperator {
    Sum,
    Product,
    Max,
    Min,
    Average,
}

impl NcclType {
    pub(super) const ALL: [NcclType; 10] = [
        NcclType::Int8,
        NcclType::Uint8,
        NcclType::Int32,
        NcclType::Uint32,
        NcclType::Int64,
        NcclType::Uint64,
        NcclType::Float16,
        NcclType::Float32,
        NcclType::Float64,
        NcclType::Bfloat16,
    ];

    pub(super) fn from_number(number: u64) -> NcclResult<Self> {
        let found = Self::ALL.get(usize::try_from(number).unwrap_or(usize::MAX));
        found.copied().ok_or_else(|| NcclFailure::argument(format!("no data type {number}")))
    }

    pub(super) fn size(self) -> usize {
        match self {
            NcclType::Int8 | NcclType::Uint8 => 1,
            NcclType::Float16 | NcclType::Bfloat16 => 2,
            NcclType::Int32 | NcclType::Uint32 | NcclType::Float32 => 4,
            NcclType::Int64 | NcclType::Uint64 | NcclType::Float64 => 8,
        }
    }
}

impl ReduceOperator {
    pub(super) fn from_number(number: u64) -> Option<Self> {
        let all = [Self::Sum, Self::Product, Self::Max, Self::Min, Self::Average];
        all.get(usize::try_from(number).ok()?).copied()
    }
}

/// Combines inputs of equal length, in the order of the ranks.
pub(super) fn reduce(dtype: NcclType, reduction: ReduceOperator, inputs: &[&[u8]]) -> Vec<u8> {
    match dtype {
        NcclType::Int8 => reduce_as::<i8>(reduction, inputs),
        NcclType::Uint8 => reduce_as::<u8>(reduction, inputs),
        NcclType::Int32 => reduce_as::<i32>(reduction, inputs),
        NcclType::Uint32 => reduce_as::<u32>(reduction, inputs),
        NcclType::Int64 => reduce_as::<i64>(reduction, inputs),
        NcclType::Uint64 => reduce_as::<u64>(reduction, inputs),
        NcclType::Float16 => reduce_as::<f16>(reduction, inputs),
        NcclType::Float32 => reduce_as::<f32>(reduction, inputs),
        NcclType::Float64 => reduce_as::<f64>(reduction, inputs),
        NcclType::Bfloat16 => reduce_as::<bf16>(reduction, inputs),
    }
}

/// Multiplies each element by a scalar of the same type.
pub(super) fn scale(dtype: NcclType, data: &mut [u8], scalar: &[u8]) {
    let scalars = scalar.repeat(data.len() / dtype.size());
    let products = reduce(dtype, ReduceOperator::Product, &[data, &scalars]);
    data.copy_from_slice(&products);
}

fn reduce_as<T: NcclElement>(reduction: ReduceOperator, inputs: &[&[u8]]) -> Vec<u8> {
    let Some((first, others)) = inputs.split_first() else { return Vec::new() };
    let mut sums: Vec<T::Wide> = first.chunks_exact(size_of::<T>()).map(T::load).collect();
    for input in others {
        for (sum, element) in sums.iter_mut().zip(input.chunks_exact(size_of::<T>())) {
            *sum = T::combine(reduction, *sum, T::load(element));
        }
    }
    let mut result = Vec::with_capacity(first.len());
    for sum in sums {
        let is_average = reduction == ReduceOperator::Average;
        T::store(if is_average { T::divide(sum, inputs.len()) } else { sum }, &mut result);
    }
    result
}

trait NcclElement {
    /// What it is computed in.
    type Wide: Copy;
    fn load(bytes: &[u8]) -> Self::Wide;
    fn store(value: Self::Wide, to: &mut Vec<u8>);
    fn combine(reduction: ReduceOperator, one: Self::Wide, other: Self::Wide) -> Self::Wide;
    fn divide(sum: Self::Wide, count: usize) -> Self::Wide;
}

fn array<const SIZE: usize>(bytes: &[u8]) -> [u8; SIZE] {
    std::array::from_fn(|index| bytes[index])
}

macro_rules! integer {
    ($($type:ty),*) => {$(
        impl NcclElement for $type {
            type Wide = $type;
            fn load(bytes: &[u8]) -> $type {
                <$type>::from_le_bytes(array(bytes))
            }
            fn store(value: $type, to: &mut Vec<u8>) {
                to.extend(value.to_le_bytes());
            }
            fn combine(reduction: ReduceOperator, one: $type, other: $type) -> $type {
                match reduction {
                    ReduceOperator::Sum | ReduceOperator::Average => one.wrapping_add(other),
                    ReduceOperator::Product => one.wrapping_mul(other),
                    ReduceOperator::Max => one.max(other),
                    ReduceOperator::Min => one.min(other),
                }
            }
            fn divide(sum: $type, count: usize) -> $type {
                // Wide enough for the count as well.
                (sum as i128 / count as i128) as $type
            }
        }
    )*};
}

macro_rules! float {
    ($($type:ty as $wide:ty: $load:expr, $store:expr;)*) => {$(
        impl NcclElement for $type {
            type Wide = $wide;
            fn load(bytes: &[u8]) -> $wide {
                $load(<$type>::from_le_bytes(array(bytes)))
            }
            fn store(value: $wide, to: &mut Vec<u8>) {
                let value: $type = $store(value);
                to.extend(value.to_le_bytes());
            }
            fn combine(reduction: ReduceOperator, one: $wide, other: $wide) -> $wide {
                match reduction {
                    ReduceOperator::Sum | ReduceOperator::Average => one + other,
                    ReduceOperator::Product => one * other,
                    ReduceOperator::Max => one.max(other),
                    ReduceOperator::Min => one.min(other),
                }
            }
            fn divide(sum: $wide, count: usize) -> $wide {
                sum / count as $wide
            }
        }
    )*};
}

integer!(i8, u8, i32, u32, i64, u64);
float! {
    f32 as f32: std::convert::identity, std::convert::identity;
    f64 as f64: std::convert::identity, std::convert::identity;
    f16 as f32: f16::to_f32, f16::from_f32;
    bf16 as f32: bf16::to_f32, bf16::from_f32;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_of_integers_are_cut() {
        let inputs: Vec<_> = [7_i32, -2, 2].iter().map(|value| value.to_le_bytes()).collect();
        let inputs: Vec<_> = inputs.iter().map(<[u8; 4]>::as_slice).collect();
        assert_eq!(reduce(NcclType::Int32, ReduceOperator::Average, &inputs), 2_i32.to_le_bytes());
        assert_eq!(reduce(NcclType::Int32, ReduceOperator::Min, &inputs), (-2_i32).to_le_bytes());
    }

    #[test]
    fn a_scalar_multiplies_each_element() {
        let mut data: Vec<u8> = [1.5_f32, -2.0].iter().flat_map(|it| it.to_le_bytes()).collect();
        scale(NcclType::Float32, &mut data, &2.0_f32.to_le_bytes());
        let wanted: Vec<u8> = [3_f32, -4.0].iter().flat_map(|it| it.to_le_bytes()).collect();
        assert_eq!(data, wanted);
    }
}
