//! The arithmetic of Adasum on two tensors: their inner products, and the blend of the two.
//!
//! Everything is computed in `f64`. The inner products are summed in lanes, with element `i` in
//! lane `i % LANES`, and then the lanes one after another: an order that vector instructions can
//! follow and that does not depend on which of them the CPU has.

use std::slice;

use ronde_control::DType;

use super::element::{Packed, Single};
use super::half::{Alone, Bf16, F16};
use super::variant::Variant;

/// The number of partial sums.
const LANES: usize = 8;

/// The inner products of two tensors, or of parts of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Products {
    /// Of left and right.
    pub(crate) cross: f64,
    /// Of left with itself.
    pub(crate) left: f64,
    /// Of right with itself.
    pub(crate) right: f64,
}

impl Products {
    /// The same products with left and right swapped.
    pub(crate) fn swapped(&self) -> Products {
        Products { cross: self.cross, left: self.right, right: self.left }
    }

    /// The factors of the two tensors in their blend: half of each tensor's projection on the other
    /// is removed. So orthogonal tensors are added and equal ones averaged. Nothing can be
    /// projected on a tensor of zeros, which leaves the other one unchanged.
    pub(crate) fn factors(&self) -> (f64, f64) {
        let factor = |square: f64| match square == 0.0 {
            true => 1.0,
            false => 1.0 - self.cross / (2.0 * square),
        };
        (factor(self.left), factor(self.right))
    }
}

/// The inner products of two tensors of equal length.
pub(crate) fn products(left: &[u8], right: &[u8], dtype: DType) -> Products {
    assert_eq!(left.len(), right.len(), "tensors have equal lengths");
    let count = left.len() / dtype.size();
    // SAFETY: both slices have `count` elements, and this CPU can run the variant.
    unsafe { (Kernels::detected(dtype).measure)(left.as_ptr(), right.as_ptr(), count) }
}

/// Writes `factor * target + other_factor * other` to `target`.
pub(crate) fn blend(target: &mut [u8], other: &[u8], factors: (f64, f64), dtype: DType) {
    assert_eq!(target.len(), other.len(), "tensors have equal lengths");
    let count = target.len() / dtype.size();
    let mix = Kernels::detected(dtype).mix;
    // SAFETY: as above, and the target is borrowed mutably, so it overlaps nothing.
    unsafe { mix(target.as_mut_ptr(), other.as_ptr(), count, factors) };
}

/// The two kernels for one element type; they have the same requirements for addresses as `fold`.
struct Kernels {
    measure: unsafe fn(*const u8, *const u8, usize) -> Products,
    mix: unsafe fn(*mut u8, *const u8, usize, (f64, f64)),
}

impl Kernels {
    fn detected(dtype: DType) -> Kernels {
        Kernels::of(Variant::detected(), dtype)
    }

    fn of(variant: Variant, dtype: DType) -> Kernels {
        match dtype {
            DType::F16 => Kernels::new::<Alone<F16>>(variant),
            DType::BF16 => Kernels::new::<Alone<Bf16>>(variant),
            DType::F32 => Kernels::new::<f32>(variant),
            DType::F64 => Kernels::new::<f64>(variant),
            other => unreachable!("Adasum of {other} is refused when it is submitted"),
        }
    }

    fn new<S: Single<Value: Real>>(variant: Variant) -> Kernels {
        match variant {
            Variant::Portable => Kernels { measure: measure::<S>, mix: mix::<S> },
            #[cfg(target_arch = "x86_64")]
            Variant::Avx2 => Kernels { measure: avx2::measure::<S>, mix: avx2::mix::<S> },
        }
    }
}

/// A value that is converted to `f64` to compute with it.
trait Real: Copy {
    fn to_real(self) -> f64;
    fn from_real(real: f64) -> Self;
}

impl Real for f32 {
    #[inline(always)]
    fn to_real(self) -> f64 {
        self.into()
    }

    #[inline(always)]
    fn from_real(real: f64) -> f32 {
        real as f32
    }
}

impl Real for f64 {
    #[inline(always)]
    fn to_real(self) -> f64 {
        self
    }

    #[inline(always)]
    fn from_real(real: f64) -> f64 {
        real
    }
}

/// # Safety
///
/// Both addresses must be readable for `count` elements, and nothing may write there.
#[inline(always)]
unsafe fn measure<S: Single<Value: Real>>(
    left: *const u8,
    right: *const u8,
    count: usize,
) -> Products {
    // SAFETY: the caller vouches for the range; packed elements need no alignment.
    let left: &[Packed<S::Raw>] = unsafe { slice::from_raw_parts(left.cast(), count) };
    // SAFETY: as above.
    let right: &[Packed<S::Raw>] = unsafe { slice::from_raw_parts(right.cast(), count) };
    let mut sums = [[0.0; LANES]; 3];
    let mut add = |lane: usize, left: &Packed<S::Raw>, right: &Packed<S::Raw>| {
        let (left, right) = (S::widen(left.0).to_real(), S::widen(right.0).to_real());
        sums[0][lane] += left * right;
        sums[1][lane] += left * left;
        sums[2][lane] += right * right;
    };
    let (left_rows, left_rest) = left.as_chunks::<LANES>();
    let (right_rows, right_rest) = right.as_chunks::<LANES>();
    for (left, right) in left_rows.iter().zip(right_rows) {
        for lane in 0..LANES {
            add(lane, &left[lane], &right[lane]);
        }
    }
    for (lane, (left, right)) in left_rest.iter().zip(right_rest).enumerate() {
        add(lane, left, right);
    }
    let [cross, left, right] = sums.map(|lanes| lanes.iter().sum());
    Products { cross, left, right }
}

/// # Safety
///
/// `target` must be writable and `other` readable for `count` elements, the two must be disjoint,
/// and nothing else may touch `target` or write to `other`.
#[inline(always)]
unsafe fn mix<S: Single<Value: Real>>(
    target: *mut u8,
    other: *const u8,
    count: usize,
    (factor, other_factor): (f64, f64),
) {
    // SAFETY: the caller vouches for the range; packed elements need no alignment.
    let target: &mut [Packed<S::Raw>] = unsafe { slice::from_raw_parts_mut(target.cast(), count) };
    // SAFETY: as above.
    let other: &[Packed<S::Raw>] = unsafe { slice::from_raw_parts(other.cast(), count) };
    for (target, other) in target.iter_mut().zip(other) {
        let own = S::widen(target.0).to_real() * factor;
        let value = own + S::widen(other.0).to_real() * other_factor;
        target.0 = S::narrow(S::Value::from_real(value));
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{Products, Real, Single};

    /// # Safety
    ///
    /// The CPU must have the features; the requirements of [`super::measure`] apply.
    #[target_feature(enable = "avx2,f16c")]
    pub(super) unsafe fn measure<S: Single<Value: Real>>(
        left: *const u8,
        right: *const u8,
        count: usize,
    ) -> Products {
        // SAFETY: the caller vouches for the addresses.
        unsafe { super::measure::<S>(left, right, count) }
    }

    /// # Safety
    ///
    /// The CPU must have the features; the requirements of [`super::mix`] apply.
    #[target_feature(enable = "avx2,f16c")]
    pub(super) unsafe fn mix<S: Single<Value: Real>>(
        target: *mut u8,
        other: *const u8,
        count: usize,
        factors: (f64, f64),
    ) {
        // SAFETY: the caller vouches for the addresses.
        unsafe { super::mix::<S>(target, other, count, factors) }
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};
    use proptest::prelude::*;

    use super::*;

    const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

    /// The values as elements after one byte, at an odd address, and their values after rounding.
    fn elements(dtype: DType, values: &[f64]) -> (Vec<u8>, Vec<f64>) {
        // An allocation of this size starts at an even address.
        let mut bytes = Vec::with_capacity(1 + 8 * values.len());
        bytes.push(0);
        let mut rounded = Vec::new();
        for value in values {
            let (raw, value) = match dtype {
                DType::F16 => {
                    let half = f16::from_f32(*value as f32);
                    (half.to_ne_bytes().to_vec(), half.to_f64())
                }
                DType::BF16 => {
                    let half = bf16::from_f32(*value as f32);
                    (half.to_ne_bytes().to_vec(), half.to_f64())
                }
                DType::F32 => ((*value as f32).to_ne_bytes().to_vec(), f64::from(*value as f32)),
                _ => (value.to_ne_bytes().to_vec(), *value),
            };
            bytes.extend(raw);
            rounded.push(value);
        }
        (bytes, rounded)
    }

    proptest! {
        #[test]
        fn every_variant_gives_the_same_correct_bits(
            pairs in prop::collection::vec((-100.0..100.0f64, -100.0..100.0f64), 0..70),
            factors in (-2.0..2.0f64, -2.0..2.0f64),
            dtype in prop::sample::select(&FLOATS[..]),
        ) {
            let (left, right): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
            let (right, right_values) = elements(dtype, &right);
            let mut seen: Option<(Products, Vec<u8>)> = None;
            for variant in Variant::ALL.iter().filter(|variant| variant.runs_here()) {
                let (mut left, left_values) = elements(dtype, &left);
                let Kernels { measure, mix } = Kernels::of(*variant, dtype);
                let count = left_values.len();
                let theirs = right[1..].as_ptr();
                // SAFETY: both slices have that many elements, and the variant runs here.
                let products = unsafe { measure(left[1..].as_ptr(), theirs, count) };
                // SAFETY: as above, and the slices are of two vectors.
                unsafe { mix(left[1..].as_mut_ptr(), theirs, count, factors) };
                let sum = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>();
                let both = left_values.iter().zip(&right_values);
                let cross = sum(&mut both.clone().map(|(a, b)| a * b));
                let square = sum(&mut left_values.iter().map(|a| a * a));
                prop_assert!((products.cross - cross).abs() < 1e-6, "{products:?} {cross}");
                prop_assert!((products.left - square).abs() < 1e-6, "{products:?} {square}");
                let blended: Vec<f64> = both.map(|(a, b)| a * factors.0 + b * factors.1).collect();
                let (right_bits, _) = elements(dtype, &blended);
                prop_assert_eq!(&left, &right_bits);
                let result = (products, left);
                prop_assert_eq!(seen.get_or_insert_with(|| result.clone()), &result);
            }
        }
    }

    #[test]
    fn orthogonal_tensors_add_equal_ones_average_and_zeros_change_nothing() {
        let factors = |cross, left, right| Products { cross, left, right }.factors();
        assert_eq!(factors(0.0, 4.0, 9.0), (1.0, 1.0));
        assert_eq!(factors(4.0, 4.0, 4.0), (0.5, 0.5));
        assert_eq!(factors(0.0, 0.0, 9.0), (1.0, 1.0));
        assert_eq!(factors(-4.0, 4.0, 4.0), (1.5, 1.5));
    }
}
