//! The loop over blocks that folds sources into a destination, for one element type and operation.
//!
//! A block of values stays in the L1 cache while a block of every source is combined with it, so
//! that each source is read once. All sources of a block are read before that block of the
//! destination is written, and references to the two never coexist: the destination may be a
//! source. If there are two sources and one of them is the destination, they are combined in place
//! without this detour.

use std::mem::MaybeUninit;
use std::{ptr, slice};

use super::element::{Element, Packed};
use super::number::{FoldOp, Number, Scaling};

/// The number of elements in a block: 4 KiB of `f32`.
const BLOCK: usize = 1024;

/// What to fold. The kernel determines the element type and the operation.
pub(super) struct FoldTask<'a> {
    pub(super) dst: *mut u8,
    pub(super) srcs: &'a [*const u8],
    pub(super) count: usize,
    pub(super) prescale: f64,
    pub(super) postscale: f64,
}

/// Runs a task that has sources.
///
/// # Safety
///
/// The addresses of the task must meet the requirements of `fold`.
#[inline(always)]
pub(super) unsafe fn run<E: Element, O: FoldOp>(task: &FoldTask) {
    if task.prescale != 1.0 {
        // SAFETY: the caller vouches for the task.
        return unsafe { prescaled::<E, O>(task) };
    }
    match *task.srcs {
        // SAFETY: the caller vouches for the task, and `src` is not `dst`.
        [dst, src] if ptr::eq(dst, task.dst) && !ptr::eq(src, dst) => unsafe {
            in_place::<E, O>(task, src);
        },
        // SAFETY: as above.
        [src, dst] if ptr::eq(dst, task.dst) && !ptr::eq(src, dst) && O::COMMUTES => unsafe {
            in_place::<E, O>(task, src);
        },
        // SAFETY: the caller vouches for the task.
        _ => unsafe { in_blocks::<E, O>(task) },
    }
}

/// # Safety
///
/// The addresses of the task must meet the requirements of `fold`; its two sources are `src`
/// and the destination.
#[inline(always)]
unsafe fn in_place<E: Element, O: FoldOp>(task: &FoldTask, src: *const u8) {
    let postscale = E::Value::scaling(task.postscale);
    // SAFETY: the caller vouches for the ranges and that they are disjoint.
    let dst = unsafe { slice::from_raw_parts_mut(task.dst.cast(), task.count) };
    // SAFETY: as above.
    let src = unsafe { slice::from_raw_parts(src.cast(), task.count) };
    E::update::<O>(dst, src, postscale);
}

/// # Safety
///
/// The addresses of the task must meet the requirements of `fold`.
#[inline(always)]
unsafe fn in_blocks<E: Element, O: FoldOp>(task: &FoldTask) {
    let postscale = E::Value::scaling(task.postscale);
    let mut values = uninit();
    let values = zeros(&mut values, task.count);
    for (start, len) in blocks(task.count) {
        let values = &mut values[..len];
        // SAFETY: the block is part of the range that the caller vouches for.
        let read = |src| unsafe { block::<E>(src, start, len) };
        let rest = match task.srcs {
            [first, second, rest @ ..] => {
                E::load_two::<O>(values, read(*first), read(*second));
                rest
            }
            [first, rest @ ..] => {
                E::load(values, read(*first));
                rest
            }
            [] => return,
        };
        let (pairs, last) = rest.as_chunks::<2>();
        for [first, second] in pairs {
            E::join_two::<O>(values, read(*first), read(*second));
        }
        for src in last {
            E::join::<O>(values, read(*src));
        }
        // SAFETY: as above; the blocks of the sources are no longer borrowed.
        let dst = unsafe { block_mut::<E>(task.dst, start, len) };
        E::store(dst, values, postscale);
    }
}

/// # Safety
///
/// The addresses of the task must meet the requirements of `fold`.
#[inline(always)]
unsafe fn prescaled<E: Element, O: FoldOp>(task: &FoldTask) {
    let prescale = E::Value::scaling(task.prescale);
    let postscale = E::Value::scaling(task.postscale);
    let [first, rest @ ..] = task.srcs else { return };
    let mut values = uninit();
    let values = zeros(&mut values, task.count);
    let mut next = uninit();
    let next = zeros(&mut next, task.count);
    for (start, len) in blocks(task.count) {
        let read = |values: &mut [E::Value], src| {
            // SAFETY: the block is part of the range that the caller vouches for.
            E::load(values, unsafe { block::<E>(src, start, len) });
            match prescale {
                Scaling::Times(factor) => values.iter_mut().for_each(|v| *v = v.times(factor)),
                Scaling::Over(divisor) => values.iter_mut().for_each(|v| *v = v.over(divisor)),
            }
        };
        let values = &mut values[..len];
        let next = &mut next[..len];
        read(values, *first);
        for src in rest {
            read(next, *src);
            for (value, next) in values.iter_mut().zip(next.iter()) {
                *value = O::join(*value, *next);
            }
        }
        // SAFETY: as above; the blocks of the sources are no longer borrowed.
        let dst = unsafe { block_mut::<E>(task.dst, start, len) };
        E::store(dst, values, postscale);
    }
}

/// A block of values. Initializing all of it would slow down tasks of few elements.
type BlockBuffer<V> = [MaybeUninit<V>; BLOCK];

#[inline(always)]
fn uninit<V>() -> BlockBuffer<V> {
    [const { MaybeUninit::uninit() }; BLOCK]
}

/// Initializes the first `count` values, at most a block, to zero.
#[inline(always)]
fn zeros<V: Number>(buffer: &mut BlockBuffer<V>, count: usize) -> &mut [V] {
    let values = &mut buffer[..count.min(BLOCK)];
    for value in values.iter_mut() {
        value.write(V::ZERO);
    }
    // SAFETY: all of them have just been written.
    unsafe { slice::from_raw_parts_mut(values.as_mut_ptr().cast(), values.len()) }
}

/// The start and length of each block.
#[inline(always)]
fn blocks(count: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count).step_by(BLOCK).map(move |start| (start, BLOCK.min(count - start)))
}

/// # Safety
///
/// The block must be readable, and nothing may write to it while it is borrowed.
#[inline(always)]
unsafe fn block<'a, E: Element>(src: *const u8, start: usize, len: usize) -> &'a [Packed<E::Raw>] {
    let first = src.cast::<Packed<E::Raw>>().wrapping_add(start);
    // SAFETY: the caller vouches for the block; packed elements need no alignment.
    unsafe { slice::from_raw_parts(first, len) }
}

/// # Safety
///
/// The block must be writable, and nothing else may touch it while it is borrowed.
#[inline(always)]
unsafe fn block_mut<'a, E: Element>(
    dst: *mut u8,
    start: usize,
    len: usize,
) -> &'a mut [Packed<E::Raw>] {
    let first = dst.cast::<Packed<E::Raw>>().wrapping_add(start);
    // SAFETY: the caller vouches for the block; packed elements need no alignment.
    unsafe { slice::from_raw_parts_mut(first, len) }
}
