//! Elements as stored in memory, and the loops that convert them to values and back.
//!
//! All slices of one call have the same length, at most a block. Every loop is written so that the
//! compiler vectorizes it, with whatever CPU features the caller was compiled for.

use super::number::{FoldOp, Number, Scaling, Truth};

/// A value that may be at any address.
#[derive(Clone, Copy)]
#[repr(C, packed)]
pub(super) struct Packed<T>(pub(super) T);

/// An element type. It may order the values in a block as it likes, as long as the order is always
/// the same for the same length.
pub(super) trait Element: Sized {
    /// An element in memory; every bit pattern is valid.
    type Raw: Copy;

    /// An element during a fold.
    type Value: Number;

    /// Sets the values to those of `src`.
    fn load(values: &mut [Self::Value], src: &Elements<Self>);

    /// Sets the values to `first` combined with `second`.
    fn load_two<O: FoldOp>(
        values: &mut [Self::Value],
        first: &Elements<Self>,
        second: &Elements<Self>,
    );

    /// Combines the values with `src`.
    fn join<O: FoldOp>(values: &mut [Self::Value], src: &Elements<Self>);

    /// Combines the values with `first` and then with `second`.
    fn join_two<O: FoldOp>(
        values: &mut [Self::Value],
        first: &Elements<Self>,
        second: &Elements<Self>,
    );

    /// Writes the scaled values to `dst`.
    fn store(dst: &mut Elements<Self>, values: &[Self::Value], scaling: ScalingOf<Self>);

    /// Combines `dst` with `src` and scales the result.
    fn update<O: FoldOp>(dst: &mut Elements<Self>, src: &Elements<Self>, scaling: ScalingOf<Self>);
}

/// Elements in memory.
pub(super) type Elements<E> = [Packed<<E as Element>::Raw>];

/// How values of an element type are scaled.
pub(super) type ScalingOf<E> = Scaling<<<E as Element>::Value as Number>::Factor>;

/// An element type whose elements are converted one by one.
pub(super) trait Single {
    type Raw: Copy;
    type Value: Number;

    fn widen(raw: Self::Raw) -> Self::Value;
    fn narrow(value: Self::Value) -> Self::Raw;
}

impl<S: Single> Element for S {
    type Raw = S::Raw;
    type Value = S::Value;

    #[inline(always)]
    fn load(values: &mut [S::Value], src: &Elements<S>) {
        for (value, raw) in values.iter_mut().zip(src) {
            *value = S::widen(raw.0);
        }
    }

    #[inline(always)]
    fn load_two<O: FoldOp>(values: &mut [S::Value], first: &Elements<S>, second: &Elements<S>) {
        for ((value, first), second) in values.iter_mut().zip(first).zip(second) {
            *value = O::join(S::widen(first.0), S::widen(second.0));
        }
    }

    #[inline(always)]
    fn join<O: FoldOp>(values: &mut [S::Value], src: &Elements<S>) {
        for (value, raw) in values.iter_mut().zip(src) {
            *value = O::join(*value, S::widen(raw.0));
        }
    }

    #[inline(always)]
    fn join_two<O: FoldOp>(values: &mut [S::Value], first: &Elements<S>, second: &Elements<S>) {
        for ((value, first), second) in values.iter_mut().zip(first).zip(second) {
            *value = O::join(O::join(*value, S::widen(first.0)), S::widen(second.0));
        }
    }

    #[inline(always)]
    fn store(dst: &mut Elements<S>, values: &[S::Value], scaling: ScalingOf<S>) {
        let each = dst.iter_mut().zip(values);
        match scaling {
            Scaling::Times(factor) => {
                each.for_each(|(raw, value)| raw.0 = S::narrow(value.times(factor)));
            }
            Scaling::Over(divisor) => {
                each.for_each(|(raw, value)| raw.0 = S::narrow(value.over(divisor)));
            }
        }
    }

    #[inline(always)]
    fn update<O: FoldOp>(dst: &mut Elements<S>, src: &Elements<S>, scaling: ScalingOf<S>) {
        let joined =
            |raw: &Packed<S::Raw>, src: &Packed<S::Raw>| O::join(S::widen(raw.0), S::widen(src.0));
        let each = dst.iter_mut().zip(src);
        match scaling {
            Scaling::Times(factor) => {
                each.for_each(|(raw, src)| raw.0 = S::narrow(joined(raw, src).times(factor)));
            }
            Scaling::Over(divisor) => {
                each.for_each(|(raw, src)| raw.0 = S::narrow(joined(raw, src).over(divisor)));
            }
        }
    }
}

macro_rules! integers {
    ($($int:ty),*) => {$(
        impl Single for $int {
            type Raw = $int;
            type Value = $int;

            #[inline(always)]
            fn widen(raw: $int) -> $int {
                raw
            }

            #[inline(always)]
            fn narrow(value: $int) -> $int {
                value
            }
        }
    )*};
}

integers!(u8, i8, u16, i16, i32, i64);

macro_rules! floats {
    ($($float:ty),*) => {$(
        impl Single for $float {
            type Raw = $float;
            type Value = $float;

            #[inline(always)]
            fn widen(raw: $float) -> $float {
                raw
            }

            #[inline(always)]
            fn narrow(value: $float) -> $float {
                if value.is_nan() { <$float>::NAN } else { value }
            }
        }
    )*};
}

floats!(f32, f64);

/// A byte; only zero is false.
pub(super) struct Bool;

impl Single for Bool {
    type Raw = u8;
    type Value = Truth;

    #[inline(always)]
    fn widen(raw: u8) -> Truth {
        Truth(u8::from(raw != 0))
    }

    #[inline(always)]
    fn narrow(value: Truth) -> u8 {
        value.0
    }
}
