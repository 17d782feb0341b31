//! Models of what threads and processes agree on through single words, checked by going through every
//! order in which their steps could happen and every value that memory could show them.
//!
//! The protocols are the source files of the core themselves, with words of the model checker in
//! place of the machine's. `LOOM_MAX_PREEMPTIONS` sets how often a thread may be interrupted.

mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}
#[path = "../../src/transport/shm/count.rs"]
mod count;
#[path = "../../src/transport/depth.rs"]
mod depth;
#[path = "../../src/transport/shm/ring.rs"]
mod ring;

mod rings;
mod sleeping;
mod steps;

/// Goes through everything that could happen, with a bound on interruptions that keeps it short.
fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.check(model);
}
