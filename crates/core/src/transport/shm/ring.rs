//! Positions in a ring of bytes: one writer, and one or more readers that each read everything.
//!
//! Positions count bytes since the start of the world. Only the writer moves `head`, and never past
//! the slowest reader by more than the size; each reader alone moves its `tail`.

use super::atomic::{AtomicU64, Ordering};

/// Writes `length` bytes with `put`, which gets their position; returns false if there is no room.
pub(crate) fn write<'a>(
    head: &AtomicU64,
    tails: impl Iterator<Item = &'a AtomicU64>,
    size: usize,
    length: usize,
    put: impl FnOnce(u64),
) -> bool {
    let position = head.load(Ordering::Relaxed);
    let slowest = tails.map(|tail| tail.load(Ordering::Acquire)).min().unwrap_or(position);
    if position.wrapping_sub(slowest) as usize > size.saturating_sub(length) {
        return false;
    }
    put(position);
    head.store(position + length as u64, Ordering::Release);
    true
}

/// Reads with `take`, which gets the positions of head and tail, and returns the value it has read
/// and the position after it.
pub(crate) fn read<T, E>(
    head: &AtomicU64,
    tail: &AtomicU64,
    take: impl FnOnce(u64, u64) -> Result<Option<(T, u64)>, E>,
) -> Result<Option<T>, E> {
    let (end, position) = (head.load(Ordering::Acquire), tail.load(Ordering::Relaxed));
    let Some((value, next)) = take(end, position)? else { return Ok(None) };
    tail.store(next, Ordering::Release);
    Ok(Some(value))
}
