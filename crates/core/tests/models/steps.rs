//! Staging memory: a rank reads another rank's memory only once it is published, and writes to its
//! own again only when all ranks have finished with it.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::atomic::AtomicU64;
use crate::count::{count, has_reached};
use crate::explore;

struct Rank {
    published: AtomicU64,
    finished: AtomicU64,
    /// Two halves, used in alternate steps.
    staging: [UnsafeCell<u64>; 2],
}

impl Rank {
    fn new() -> Rank {
        Rank {
            published: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            staging: [UnsafeCell::new(0), UnsafeCell::new(0)],
        }
    }
}

fn await_count(word: &AtomicU64, steps: u64) {
    while !has_reached(word, steps) {
        thread::yield_now();
    }
}

/// A series of steps; in each one, every rank publishes one number and reads all.
#[expect(
    unsafe_code,
    reason = "the cell belongs to the model checker, which detects concurrent access"
)]
fn run_steps(ranks: &[Rank], me: usize, steps: u64) {
    for step in 0..steps {
        let half = (step % 2) as usize;
        if step >= 2 {
            // The last step that used this half is two steps back.
            ranks.iter().for_each(|rank| await_count(&rank.finished, step - 1));
        }
        let value = 10 * step + me as u64;
        // SAFETY: the pointer is valid inside the call; the checker fails on concurrent access.
        ranks[me].staging[half].with_mut(|place| unsafe { *place = value });
        count(&ranks[me].published, step + 1);
        for (rank, other) in ranks.iter().enumerate() {
            await_count(&other.published, step + 1);
            // SAFETY: as above.
            let seen = other.staging[half].with(|place| unsafe { *place });
            assert_eq!(seen, 10 * step + rank as u64);
        }
        count(&ranks[me].finished, step + 1);
    }
}

#[test]
fn no_rank_reads_what_is_being_written() {
    explore(3, || {
        let ranks = Arc::new(vec![Rank::new(), Rank::new()]);
        let other = {
            let ranks = ranks.clone();
            thread::spawn(move || run_steps(&ranks, 1, 3))
        };
        run_steps(&ranks, 0, 3);
        other.join().unwrap();
    });
}
