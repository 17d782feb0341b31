//! The kernels that process tensor data: folding several sources into one destination, and scaling.
//!
//! This module knows only numbers and addresses, not ranks, links or time, and never fails. Its
//! invariant: the bits of a result depend only on the element type, the operation, the factors and
//! the order of the sources. Blocking, alignment, tails, aliasing and CPU features make no
//! difference, so that every rank computes the same bits.
//!
//! - A factor that is the reciprocal of a whole number divides: an average is exactly the sum
//!   divided by the number of ranks, as a program would compute it.
//! - Half-precision floats are widened to `f32`, folded there and rounded once, to nearest even.
//! - Integers wrap. A factor other than one is applied in `f64`, truncated toward zero, saturating.
//! - Booleans: sum and max are *or*, min and product are *and*; any nonzero byte is true, and the
//!   result is zero or one. A factor of zero gives false, any other factor changes nothing.
//! - Min and max of floats: a NaN anywhere gives NaN; of equal values (the two zeros) the earlier
//!   source wins.
//! - A computed NaN is always the positive quiet NaN without payload, because CPUs differ in which
//!   payload survives.
#![expect(unsafe_code, reason = "sources are in memory shared with other processes")]

mod blend;
mod element;
mod environment;
#[cfg(target_arch = "x86_64")]
mod f16c;
mod half;
mod kernel;
mod number;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod reference;
mod terms;
mod variant;

use ronde_control::{DType, ReduceOp};

use self::kernel::FoldTask;
use self::variant::Variant;
pub(crate) use blend::{Products, blend, products};
pub(crate) use environment::in_plain_environment;
pub use terms::{Term, combine};

/// How several sources are combined into one destination.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reduction {
    /// The type of the elements of the sources and of the destination.
    pub dtype: DType,
    /// The operation that combines elements of two sources.
    pub op: ReduceOp,
    /// Factor applied to every source before the fold.
    pub prescale: f64,
    /// Factor applied to the result.
    pub postscale: f64,
}

/// Writes `postscale * op(prescale * srcs[0], prescale * srcs[1], …)`, folded strictly in the order
/// of the sources, to `dst`, for `count` elements.
///
/// A single source is scaled by one factor and then by the other; if both factors are one it is
/// copied (booleans still become zero or one). Without any source nothing is written. `Adasum` is
/// not an operation on elements: it allows only one source.
///
/// # Safety
///
/// Each source must be readable and `dst` writable for `count` elements, and nothing else may write
/// to the sources or touch `dst` during the call. `dst` may be identical to one or more sources,
/// and must not overlap a source otherwise. No alignment is required.
pub unsafe fn fold(dst: *mut u8, srcs: &[*const u8], count: usize, reduction: &Reduction) {
    debug_assert!(
        reduction.op != ReduceOp::Adasum || srcs.len() < 2,
        "Adasum is not an operation on elements"
    );
    if count == 0 {
        return;
    }
    let task =
        FoldTask { dst, srcs, count, prescale: reduction.prescale, postscale: reduction.postscale };
    let unscaled = reduction.prescale == 1.0 && reduction.postscale == 1.0;
    match *srcs {
        [] => {}
        // SAFETY: the caller vouches for both ranges.
        [src] if unscaled && reduction.dtype != DType::Bool => unsafe {
            copy(dst, src, count * reduction.dtype.size());
        },
        _ => {
            let run = Variant::detected().kernel(reduction.dtype, reduction.op);
            // SAFETY: the caller vouches for the ranges, and this CPU can run the variant.
            unsafe { run(&task) }
        }
    }
}

/// Writes `factor * src` to `dst` for `count` elements; a factor of one just copies.
///
/// # Safety
///
/// The same as for [`fold`] with one source.
pub unsafe fn scale(dst: *mut u8, src: *const u8, count: usize, dtype: DType, factor: f64) {
    if factor == 1.0 {
        // SAFETY: the caller vouches for both ranges.
        return unsafe { copy(dst, src, count * dtype.size()) };
    }
    let reduction = Reduction { dtype, op: ReduceOp::Sum, prescale: factor, postscale: 1.0 };
    // SAFETY: the caller vouches for both ranges.
    unsafe { fold(dst, &[src], count, &reduction) }
}

/// # Safety
///
/// `src` must be readable and `dst` writable for `len` bytes, the same range or two disjoint ones.
unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    if !std::ptr::eq(dst, src) {
        // SAFETY: the ranges are not the same, so the caller guarantees that they are disjoint.
        unsafe { dst.copy_from_nonoverlapping(src, len) }
    }
}
