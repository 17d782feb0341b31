//! Models of the protocols that threads and processes run on atomic words, checked by exploring
//! every order in which their steps could happen and every value that memory could show them.
//!
//! The protocols are the core's own source files, compiled with the model checker's atomics instead
//! of the machine's. `LOOM_MAX_PREEMPTIONS` sets how often a thread may be preempted.

mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}
#[path = "../../src/transport/shm/count.rs"]
mod count;
#[path = "../../src/transport/depth.rs"]
mod depth;
#[path = "../../src/transport/shm/ring.rs"]
mod ring;
#[path = "../../src/transport/shm/round.rs"]
mod round;

mod rings;
mod rounds;
mod sleeping;
mod steps;

/// Explores everything that could happen, with a bound on preemptions that keeps it short.
fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.check(model);
}
