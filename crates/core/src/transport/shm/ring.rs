//! Positions in a ring of bytes: one writer, and one reader or several that all read everything.
//!
//! Positions count bytes since the beginning of the world. The writer alone moves `head`, and never
//! overtakes the slowest reader; each reader alone moves its `tail`.

use super::atomic::{AtomicU64, Ordering};

/// Writes `length` bytes by means of `put`, which gets their position, unless there is no room.
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

/// Reads by means of `take`, which gets the positions of head and tail, and gives what it has read and
/// the position behind it.
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
