//! 16-bit floats, folded in `f32` with instructions that every CPU has.
//!
//! Two of them are handled as one 32-bit word: shifts and masks are enough to widen its halves,
//! whereas single elements would have to be unpacked and packed. A block of values therefore has
//! the lower halves of all words first, then the upper halves, then the odd one out. Nothing here
//! computes with denormal `f32` numbers unless the elements themselves are denormal.

use std::marker::PhantomData;
use std::slice;

use super::element::{Element, Packed, Single};
use super::number::{FoldOp, Number, Scaling};

/// A 16-bit float format, in the lower half of a word.
pub(super) trait Format {
    fn widen(bits: u32) -> f32;

    /// Rounds to nearest even; the upper half of the word is zero, and all NaNs become the same
    /// one.
    fn narrow(value: f32) -> u32;
}

/// The upper half of an `f32`.
pub(super) struct Bf16;

impl Format for Bf16 {
    #[inline(always)]
    fn widen(bits: u32) -> f32 {
        f32::from_bits(bits << 16)
    }

    #[inline(always)]
    fn narrow(value: f32) -> u32 {
        let bits = value.to_bits();
        // Half a unit in the last place that is kept, less one bit where the kept part is even.
        let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1));
        (if value.is_nan() { 0x7FC0_0000 } else { rounded }) >> 16
    }
}

/// IEEE half precision.
pub(super) struct F16;

/// The difference of the exponent biases of `f32` and half precision, shifted to the exponent of an
/// `f32`.
const REBIAS: u32 = (127 - 15) << 23;

/// The smallest normal half, 2^-14.
const SMALLEST_NORMAL: f32 = f32::from_bits((127 - 14) << 23);

/// The bits of the `f32` beyond the range of halves, 2^16.
const END: u32 = (127 + 16) << 23;

impl Format for F16 {
    #[inline(always)]
    fn widen(bits: u32) -> f32 {
        let sign = (bits & 0x8000) << 16;
        let magnitude = (bits & 0x7FFF) << 13;
        let normal = magnitude + REBIAS;
        let infinite = normal + REBIAS;
        // A denormal half is a normal `f32`: take it as 2^-14 plus a fraction, and subtract 2^-14.
        let shifted = f32::from_bits(magnitude + SMALLEST_NORMAL.to_bits());
        let denormal = (shifted - SMALLEST_NORMAL).to_bits();
        let finite = if magnitude < 0x0400 << 13 { denormal } else { normal };
        f32::from_bits(sign | if magnitude < 0x7C00 << 13 { finite } else { infinite })
    }

    #[inline(always)]
    fn narrow(value: f32) -> u32 {
        let bits = value.to_bits();
        let sign = (bits >> 16) & 0x8000;
        let magnitude = bits & 0x7FFF_FFFF;
        // Half a unit in the last place that is kept, less one bit where the kept part is even; a
        // carry goes into the exponent and yields infinity at the end of the range, as it should.
        let rounded = magnitude.wrapping_add(0x0FFF + ((magnitude >> 13) & 1));
        let normal = rounded.wrapping_sub(REBIAS) >> 13;
        // When 1/2 is added, the last place of the `f32` is the last place of a denormal half.
        let denormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        let finite = if magnitude < SMALLEST_NORMAL.to_bits() { denormal } else { normal };
        let number = sign | if magnitude < END { finite } else { 0x7C00 };
        if value.is_nan() { 0x7E00 } else { number }
    }
}

/// Elements of a format, one by one.
pub(super) struct Alone<F>(PhantomData<F>);

impl<F: Format> Single for Alone<F> {
    type Raw = u16;
    type Value = f32;

    #[inline(always)]
    fn widen(raw: u16) -> f32 {
        F::widen(raw.into())
    }

    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        F::narrow(value) as u16
    }
}

/// Elements of a format, in pairs.
pub(super) struct Pairs<F>(PhantomData<F>);

impl<F: Format> Element for Pairs<F> {
    type Raw = u16;
    type Value = f32;

    #[inline(always)]
    fn load(values: &mut [f32], src: &[Packed<u16>]) {
        let (words, last) = words(src);
        let (lower, upper, rest) = parts_mut(values);
        for ((lower, upper), word) in lower.iter_mut().zip(upper).zip(words) {
            (*lower, *upper) = unpack::<F>(word.0);
        }
        Alone::<F>::load(rest, last);
    }

    #[inline(always)]
    fn load_two<O: FoldOp>(values: &mut [f32], first: &[Packed<u16>], second: &[Packed<u16>]) {
        let ((first, first_last), (second, second_last)) = (words(first), words(second));
        let (lower, upper, rest) = parts_mut(values);
        let words = first.iter().zip(second);
        for ((lower, upper), (first, second)) in lower.iter_mut().zip(upper).zip(words) {
            let (first, second) = (unpack::<F>(first.0), unpack::<F>(second.0));
            *lower = O::join(first.0, second.0);
            *upper = O::join(first.1, second.1);
        }
        Alone::<F>::load_two::<O>(rest, first_last, second_last);
    }

    #[inline(always)]
    fn join<O: FoldOp>(values: &mut [f32], src: &[Packed<u16>]) {
        let (words, last) = words(src);
        let (lower, upper, rest) = parts_mut(values);
        for ((lower, upper), word) in lower.iter_mut().zip(upper).zip(words) {
            let next = unpack::<F>(word.0);
            *lower = O::join(*lower, next.0);
            *upper = O::join(*upper, next.1);
        }
        Alone::<F>::join::<O>(rest, last);
    }

    #[inline(always)]
    fn join_two<O: FoldOp>(values: &mut [f32], first: &[Packed<u16>], second: &[Packed<u16>]) {
        let ((first, first_last), (second, second_last)) = (words(first), words(second));
        let (lower, upper, rest) = parts_mut(values);
        let words = first.iter().zip(second);
        for ((lower, upper), (first, second)) in lower.iter_mut().zip(upper).zip(words) {
            let (first, second) = (unpack::<F>(first.0), unpack::<F>(second.0));
            *lower = O::join(O::join(*lower, first.0), second.0);
            *upper = O::join(O::join(*upper, first.1), second.1);
        }
        Alone::<F>::join_two::<O>(rest, first_last, second_last);
    }

    #[inline(always)]
    fn store(dst: &mut [Packed<u16>], values: &[f32], scaling: Scaling<f32>) {
        let (words, last) = words_mut(dst);
        let (lower, rest) = values.split_at(words.len());
        let (upper, rest) = rest.split_at(words.len());
        let each = words.iter_mut().zip(lower).zip(upper);
        match scaling {
            Scaling::Times(factor) => each.for_each(|((word, lower), upper)| {
                word.0 = pack::<F>(lower.times(factor), upper.times(factor));
            }),
            Scaling::Over(divisor) => each.for_each(|((word, lower), upper)| {
                word.0 = pack::<F>(lower.over(divisor), upper.over(divisor));
            }),
        }
        Alone::<F>::store(last, rest, scaling);
    }

    #[inline(always)]
    fn update<O: FoldOp>(dst: &mut [Packed<u16>], src: &[Packed<u16>], scaling: Scaling<f32>) {
        let (src_words, src_last) = words(src);
        let (words, last) = words_mut(dst);
        let joined = |word: u32, src: u32| {
            let (sofar, next) = (unpack::<F>(word), unpack::<F>(src));
            (O::join(sofar.0, next.0), O::join(sofar.1, next.1))
        };
        let each = words.iter_mut().zip(src_words);
        match scaling {
            Scaling::Times(factor) => each.for_each(|(word, src)| {
                let (lower, upper) = joined(word.0, src.0);
                word.0 = pack::<F>(lower.times(factor), upper.times(factor));
            }),
            Scaling::Over(divisor) => each.for_each(|(word, src)| {
                let (lower, upper) = joined(word.0, src.0);
                word.0 = pack::<F>(lower.over(divisor), upper.over(divisor));
            }),
        }
        Alone::<F>::update::<O>(last, src_last, scaling);
    }
}

#[inline(always)]
fn unpack<F: Format>(word: u32) -> (f32, f32) {
    (F::widen(word & 0xFFFF), F::widen(word >> 16))
}

#[inline(always)]
fn pack<F: Format>(lower: f32, upper: f32) -> u32 {
    F::narrow(lower) | F::narrow(upper) << 16
}

/// The elements as words, and the odd one out.
#[inline(always)]
fn words(raw: &[Packed<u16>]) -> (&[Packed<u32>], &[Packed<u16>]) {
    let (pairs, last) = raw.as_chunks::<2>();
    // SAFETY: a packed word has the size of a pair and needs no alignment; any bits are a word.
    (unsafe { slice::from_raw_parts(pairs.as_ptr().cast(), pairs.len()) }, last)
}

#[inline(always)]
fn words_mut(raw: &mut [Packed<u16>]) -> (&mut [Packed<u32>], &mut [Packed<u16>]) {
    let (pairs, last) = raw.as_chunks_mut::<2>();
    // SAFETY: a packed word has the size of a pair and needs no alignment; any bits are a word or
    // a pair, and the pairs stay borrowed as long as the words.
    (unsafe { slice::from_raw_parts_mut(pairs.as_mut_ptr().cast(), pairs.len()) }, last)
}

/// The values of the lower halves, of the upper halves, and of the odd one out.
#[inline(always)]
fn parts_mut(values: &mut [f32]) -> (&mut [f32], &mut [f32], &mut [f32]) {
    let words = values.len() / 2;
    let (lower, rest) = values.split_at_mut(words);
    let (upper, rest) = rest.split_at_mut(words);
    (lower, upper, rest)
}
