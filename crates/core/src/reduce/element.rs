//! Elements as they lie in memory, and the loops that make values of them and elements again.
//!
//! Slices of one call have one length, at most a block. Every loop is written so that the compiler
//! makes vector code of it, under whatever CPU features the caller was compiled with.

use super::number::{Number, Op, Scaling, Truth};

/// Something that may lie at any address.
#[derive(Clone, Copy)]
#[repr(C, packed)]
pub(super) struct Packed<T>(pub(super) T);

/// An element type. The order of the values in a block is the type's own affair, as long as it is
/// always the same for the same length.
pub(super) trait Element: Sized {
    /// An element in memory; every bit pattern is one.
    type Raw: Copy;

    /// An element while it is being folded.
    type Value: Number;

    /// Makes the values those of `src`.
    fn load(values: &mut [Self::Value], src: &Elements<Self>);

    /// Makes the values those of `first` joined by those of `second`.
    fn load_two<O: Op>(values: &mut [Self::Value], first: &Elements<Self>, second: &Elements<Self>);

    /// Joins `src` to the values.
    fn join<O: Op>(values: &mut [Self::Value], src: &Elements<Self>);

    /// Joins `first` and then `second` to the values.
    fn join_two<O: Op>(values: &mut [Self::Value], first: &Elements<Self>, second: &Elements<Self>);

    /// Writes the scaled values to `dst`.
    fn store(dst: &mut Elements<Self>, values: &[Self::Value], scaling: ScalingOf<Self>);

    /// Joins `src` to `dst` and scales it.
    fn update<O: Op>(dst: &mut Elements<Self>, src: &Elements<Self>, scaling: ScalingOf<Self>);
}

/// Elements in memory.
pub(super) type Elements<E> = [Packed<<E as Element>::Raw>];

/// What scales the values of an element type.
pub(super) type ScalingOf<E> = Scaling<<<E as Element>::Value as Number>::Factor>;

/// An element type that is converted one by one.
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
    fn load_two<O: Op>(values: &mut [S::Value], first: &Elements<S>, second: &Elements<S>) {
        for ((value, first), second) in values.iter_mut().zip(first).zip(second) {
            *value = O::join(S::widen(first.0), S::widen(second.0));
        }
    }

    #[inline(always)]
    fn join<O: Op>(values: &mut [S::Value], src: &Elements<S>) {
        for (value, raw) in values.iter_mut().zip(src) {
            *value = O::join(*value, S::widen(raw.0));
        }
    }

    #[inline(always)]
    fn join_two<O: Op>(values: &mut [S::Value], first: &Elements<S>, second: &Elements<S>) {
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
    fn update<O: Op>(dst: &mut Elements<S>, src: &Elements<S>, scaling: ScalingOf<S>) {
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

/// A byte of which only zero is false.
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
