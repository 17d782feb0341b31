//! The arithmetic of one accumulated value, and the four elementwise operations as types.
//!
//! Code here avoids branches where it can, so that loops over it are vectorized, and is exact about
//! order: no operation is reassociated, contracted or commuted where that could change bits.

use ronde_control::ReduceOp;

/// A value during a fold.
pub(super) trait Number: Copy {
    /// Placeholder for a value that is not computed yet.
    const ZERO: Self;

    /// A number that values are multiplied or divided by.
    type Factor: Copy;

    /// Whether to multiply or divide to apply a factor, and by what.
    fn scaling(factor: f64) -> Scaling<Self::Factor>;

    fn times(self, factor: Self::Factor) -> Self;
    fn over(self, divisor: Self::Factor) -> Self;
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
}

/// How values are scaled. The choice is made outside of loops, so that multiplying does not pay for
/// dividing.
#[derive(Clone, Copy)]
pub(super) enum Scaling<F> {
    /// Multiply by the factor; one changes nothing.
    Times(F),
    /// Divide by the divisor.
    Over(F),
}

/// The whole number that a factor is the reciprocal of, if dividing by it gives other bits than
/// multiplying: an average over three ranks is the sum divided by three, not a third of it.
fn divisor(factor: f64) -> Option<f64> {
    let divisor = factor.recip().round();
    let is_exact = (3.0..=MAX_DIVISOR).contains(&divisor) && divisor.recip() == factor;
    (is_exact && !(divisor as u32).is_power_of_two()).then_some(divisor)
}

/// Larger divisors would not be exact in every value type.
const MAX_DIVISOR: f64 = (1 << 24) as f64;

/// An operation that combines the accumulated value with the next one, as a type.
pub(super) trait FoldOp {
    const OP: ReduceOp;

    /// Whether the order of two values never matters; it does for min and max, where the earlier of
    /// two zeros wins.
    const COMMUTES: bool = matches!(Self::OP, ReduceOp::Sum | ReduceOp::Product);

    #[inline(always)]
    fn join<N: Number>(sofar: N, next: N) -> N {
        match Self::OP {
            // Adasum is not an operation on elements, and no type here represents it.
            ReduceOp::Sum | ReduceOp::Adasum => sofar.add(next),
            ReduceOp::Min => sofar.smaller(next),
            ReduceOp::Max => sofar.larger(next),
            ReduceOp::Product => sofar.multiply(next),
        }
    }
}

pub(super) struct Sum;
pub(super) struct Min;
pub(super) struct Max;
pub(super) struct Product;

impl FoldOp for Sum {
    const OP: ReduceOp = ReduceOp::Sum;
}

impl FoldOp for Min {
    const OP: ReduceOp = ReduceOp::Min;
}

impl FoldOp for Max {
    const OP: ReduceOp = ReduceOp::Max;
}

impl FoldOp for Product {
    const OP: ReduceOp = ReduceOp::Product;
}

/// A byte that is zero or one.
#[derive(Clone, Copy)]
pub(super) struct Truth(pub(super) u8);

impl Number for Truth {
    const ZERO: Self = Truth(0);

    type Factor = u8;

    fn scaling(factor: f64) -> Scaling<u8> {
        Scaling::Times(u8::from(factor != 0.0))
    }

    #[inline(always)]
    fn times(self, factor: u8) -> Self {
        Truth(self.0 & factor)
    }

    #[inline(always)]
    fn over(self, _divisor: u8) -> Self {
        self
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Truth(self.0 | other.0)
    }

    #[inline(always)]
    fn multiply(self, other: Self) -> Self {
        Truth(self.0 & other.0)
    }

    #[inline(always)]
    fn smaller(self, other: Self) -> Self {
        self.multiply(other)
    }

    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        self.add(other)
    }
}

macro_rules! integers {
    ($($int:ty: $truncate:path;)*) => {$(
        impl Number for $int {
            const ZERO: Self = 0;

            // Not every `i64` survives a multiplication by 1.0.
            type Factor = Option<f64>;

            fn scaling(factor: f64) -> Scaling<Option<f64>> {
                match divisor(factor) {
                    Some(divisor) => Scaling::Over(Some(divisor)),
                    None => Scaling::Times((factor != 1.0).then_some(factor)),
                }
            }

            #[inline(always)]
            fn times(self, factor: Option<f64>) -> Self {
                match factor {
                    None => self,
                    Some(factor) => $truncate(self as f64 * factor) as $int,
                }
            }

            #[inline(always)]
            fn over(self, divisor: Option<f64>) -> Self {
                match divisor {
                    None => self,
                    Some(divisor) => $truncate(self as f64 / divisor) as $int,
                }
            }

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                Ord::min(self, other)
            }

            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                Ord::max(self, other)
            }
        }
    )*};
}

integers! {
    u8: truncate::<0, 0xFF>;
    i8: truncate::<-0x80, 0x7F>;
    u16: truncate::<0, 0xFFFF>;
    i16: truncate::<-0x8000, 0x7FFF>;
    i32: truncate::<{ i32::MIN }, { i32::MAX }>;
    i64: std::convert::identity;
}

/// Truncates toward zero and saturates like a cast, which the compiler would not vectorize.
#[inline(always)]
fn truncate<const LOWEST: i32, const HIGHEST: i32>(value: f64) -> i32 {
    let number = if value.is_nan() { 0.0 } else { value };
    let clamped = number.max(LOWEST.into()).min(HIGHEST.into());
    // SAFETY: the value is not NaN, and within the range of `i32`.
    unsafe { clamped.to_int_unchecked() }
}

macro_rules! floats {
    ($($float:ty),*) => {$(
        impl Number for $float {
            const ZERO: Self = 0.0;

            type Factor = $float;

            fn scaling(factor: f64) -> Scaling<$float> {
                match divisor(factor) {
                    Some(divisor) => Scaling::Over(divisor as $float),
                    None => Scaling::Times(factor as $float),
                }
            }

            #[inline(always)]
            fn times(self, factor: $float) -> Self {
                self * factor
            }

            #[inline(always)]
            fn over(self, divisor: $float) -> Self {
                self / divisor
            }

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }

            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self * other
            }

            // A comparison with NaN is false, which keeps an earlier NaN. A NaN in `other` is
            // replaced by a constant: if it were `other` itself, the compiler would merge the two
            // selections into one masked store instead of a vector minimum.
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                let smaller = if other < self { other } else { self };
                if other.is_nan() { <$float>::NAN } else { smaller }
            }

            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                let larger = if other > self { other } else { self };
                if other.is_nan() { <$float>::NAN } else { larger }
            }
        }
    )*};
}

floats!(f32, f64);
