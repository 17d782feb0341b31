//! Handles that C callers hold, and what they stand for.
//!
//! A handle is a number that is never reused, so a stale one is an error. NVIDIA's libraries would
//! crash.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Looks like an address, as the handles of NVIDIA's libraries are.
static NEXT: AtomicUsize = AtomicUsize::new(0x5100_0000);

/// The live objects of one kind by handle.
pub(crate) struct Handles<T> {
    live: Mutex<BTreeMap<usize, Arc<T>>>,
}

impl<T> Handles<T> {
    pub(crate) const fn new() -> Self {
        Self { live: Mutex::new(BTreeMap::new()) }
    }

    pub(crate) fn add(&self, object: Arc<T>) -> usize {
        let handle = NEXT.fetch_add(0x10, Ordering::Relaxed);
        lock(&self.live).insert(handle, object);
        handle
    }

    pub(crate) fn find(&self, handle: usize) -> Option<Arc<T>> {
        lock(&self.live).get(&handle).cloned()
    }

    pub(crate) fn remove(&self, handle: usize) -> Option<Arc<T>> {
        lock(&self.live).remove(&handle)
    }

    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        lock(&self.live).values().cloned().collect()
    }
}

/// Locks a mutex even if a thread panicked while holding it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
