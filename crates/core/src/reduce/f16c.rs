//! IEEE half precision with the F16C instructions, eight elements at a time.
//!
//! The instructions produce the same bits as the software in `half`, except for NaN, which is made
//! canonical before narrowing. Elements that do not fill a vector are left to the software.

use std::arch::x86_64::{
    __m128i, __m256, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128,
    _mm256_add_ps, _mm256_blendv_ps, _mm256_cmp_ps, _mm256_cvtph_ps, _mm256_cvtps_ph,
    _mm256_div_ps, _mm256_loadu_ps, _mm256_max_ps, _mm256_min_ps, _mm256_mul_ps, _mm256_set1_ps,
    _mm256_storeu_ps,
};

use ronde_control::ReduceOp;

use super::element::{Element, Packed};
use super::half::{Alone, F16};
use super::number::{FoldOp, Scaling};

/// Half-precision elements on a CPU that has AVX and F16C. Only kernels of a variant that was found
/// to run on this CPU use this type; its functions rely on that.
pub(super) struct F16c;

type Raws = [Packed<u16>; 8];
type Values = [f32; 8];

impl Element for F16c {
    type Raw = u16;
    type Value = f32;

    #[inline(always)]
    fn load(values: &mut [f32], src: &[Packed<u16>]) {
        let (values, values_rest) = values.as_chunks_mut();
        let (src, src_rest) = src.as_chunks();
        // SAFETY: the CPU has the features, as the type guarantees.
        unsafe { load(values, src) };
        Alone::<F16>::load(values_rest, src_rest);
    }

    #[inline(always)]
    fn load_two<O: FoldOp>(values: &mut [f32], first: &[Packed<u16>], second: &[Packed<u16>]) {
        let (values, values_rest) = values.as_chunks_mut();
        let (first, first_rest) = first.as_chunks();
        let (second, second_rest) = second.as_chunks();
        // SAFETY: the CPU has the features, as the type guarantees.
        unsafe { load_two::<O>(values, first, second) };
        Alone::<F16>::load_two::<O>(values_rest, first_rest, second_rest);
    }

    #[inline(always)]
    fn join<O: FoldOp>(values: &mut [f32], src: &[Packed<u16>]) {
        let (values, values_rest) = values.as_chunks_mut();
        let (src, src_rest) = src.as_chunks();
        // SAFETY: the CPU has the features, as the type guarantees.
        unsafe { join::<O>(values, src) };
        Alone::<F16>::join::<O>(values_rest, src_rest);
    }

    #[inline(always)]
    fn join_two<O: FoldOp>(values: &mut [f32], first: &[Packed<u16>], second: &[Packed<u16>]) {
        let (values, values_rest) = values.as_chunks_mut();
        let (first, first_rest) = first.as_chunks();
        let (second, second_rest) = second.as_chunks();
        // SAFETY: the CPU has the features, as the type guarantees.
        unsafe { join_two::<O>(values, first, second) };
        Alone::<F16>::join_two::<O>(values_rest, first_rest, second_rest);
    }

    #[inline(always)]
    fn store(dst: &mut [Packed<u16>], values: &[f32], scaling: Scaling<f32>) {
        let (dst, dst_rest) = dst.as_chunks_mut();
        let (values, values_rest) = values.as_chunks();
        // SAFETY: the CPU has the features, as the type guarantees.
        unsafe { store(dst, values, scaling) };
        Alone::<F16>::store(dst_rest, values_rest, scaling);
    }

    #[inline(always)]
    fn update<O: FoldOp>(dst: &mut [Packed<u16>], src: &[Packed<u16>], scaling: Scaling<f32>) {
        let (dst, dst_rest) = dst.as_chunks_mut();
        let (src, src_rest) = src.as_chunks();
        // SAFETY: the CPU has the features, as the type guarantees.
        unsafe { update::<O>(dst, src, scaling) };
        Alone::<F16>::update::<O>(dst_rest, src_rest, scaling);
    }
}

#[inline]
#[target_feature(enable = "avx,f16c")]
fn load(values: &mut [Values], src: &[Raws]) {
    for (values, src) in values.iter_mut().zip(src) {
        write(values, widen(src));
    }
}

#[inline]
#[target_feature(enable = "avx,f16c")]
fn load_two<O: FoldOp>(values: &mut [Values], first: &[Raws], second: &[Raws]) {
    for ((values, first), second) in values.iter_mut().zip(first).zip(second) {
        write(values, joined::<O>(widen(first), widen(second)));
    }
}

#[inline]
#[target_feature(enable = "avx,f16c")]
fn join<O: FoldOp>(values: &mut [Values], src: &[Raws]) {
    for (values, src) in values.iter_mut().zip(src) {
        write(values, joined::<O>(read(values), widen(src)));
    }
}

#[inline]
#[target_feature(enable = "avx,f16c")]
fn join_two<O: FoldOp>(values: &mut [Values], first: &[Raws], second: &[Raws]) {
    for ((values, first), second) in values.iter_mut().zip(first).zip(second) {
        write(values, joined::<O>(joined::<O>(read(values), widen(first)), widen(second)));
    }
}

#[inline]
#[target_feature(enable = "avx,f16c")]
fn store(dst: &mut [Raws], values: &[Values], scaling: Scaling<f32>) {
    for (dst, values) in dst.iter_mut().zip(values) {
        narrow(dst, scaled(read(values), scaling));
    }
}

#[inline]
#[target_feature(enable = "avx,f16c")]
fn update<O: FoldOp>(dst: &mut [Raws], src: &[Raws], scaling: Scaling<f32>) {
    for (dst, src) in dst.iter_mut().zip(src) {
        narrow(dst, scaled(joined::<O>(widen(dst), widen(src)), scaling));
    }
}

#[inline]
#[target_feature(enable = "avx,f16c")]
fn scaled(values: __m256, scaling: Scaling<f32>) -> __m256 {
    match scaling {
        Scaling::Times(factor) => _mm256_mul_ps(values, _mm256_set1_ps(factor)),
        Scaling::Over(divisor) => _mm256_div_ps(values, _mm256_set1_ps(divisor)),
    }
}

/// The same as `O::join`. If the values are equal or one is NaN, the instructions for minimum and
/// maximum return their second operand.
#[inline]
#[target_feature(enable = "avx,f16c")]
fn joined<O: FoldOp>(sofar: __m256, next: __m256) -> __m256 {
    match O::OP {
        ReduceOp::Sum | ReduceOp::Adasum => _mm256_add_ps(sofar, next),
        ReduceOp::Product => _mm256_mul_ps(sofar, next),
        ReduceOp::Min => or_nan(_mm256_min_ps(next, sofar), next),
        ReduceOp::Max => or_nan(_mm256_max_ps(next, sofar), next),
    }
}

/// The values, but NaN where `others` is NaN.
#[inline]
#[target_feature(enable = "avx,f16c")]
fn or_nan(values: __m256, others: __m256) -> __m256 {
    let unordered = _mm256_cmp_ps::<_CMP_UNORD_Q>(others, others);
    _mm256_blendv_ps(values, _mm256_set1_ps(f32::NAN), unordered)
}

#[inline]
#[target_feature(enable = "avx,f16c")]
fn widen(raw: &Raws) -> __m256 {
    // SAFETY: the reference covers a whole vector; no alignment is required.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(raw.as_ptr().cast::<__m128i>()) })
}

#[inline]
#[target_feature(enable = "avx,f16c")]
fn narrow(dst: &mut Raws, values: __m256) {
    let raw = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(or_nan(values, values));
    // SAFETY: the reference covers a whole vector; no alignment is required.
    unsafe { _mm_storeu_si128(dst.as_mut_ptr().cast::<__m128i>(), raw) };
}

#[inline]
#[target_feature(enable = "avx,f16c")]
fn read(values: &Values) -> __m256 {
    // SAFETY: the reference covers eight floats; no alignment is required.
    unsafe { _mm256_loadu_ps(values.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx,f16c")]
fn write(values: &mut Values, vector: __m256) {
    // SAFETY: the reference covers eight floats; no alignment is required.
    unsafe { _mm256_storeu_ps(values.as_mut_ptr(), vector) };
}
