//! No thread stays asleep while there is something to see, whichever others sleep, ring or take
//! over.

use loom::sync::{Arc, Mutex, Notify};
use loom::thread;

use crate::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use crate::depth::{AWAKE, BACKGROUND, Depth, FOREGROUND, WakeTarget, anybody_sleeps};
use crate::explore;

/// A rank as the others see it.
struct Rank {
    depth: AtomicU32,
    /// What the others wait for.
    progress: AtomicU64,
    foreground: Notify,
    background: Notify,
}

impl Rank {
    fn new() -> Rank {
        Rank {
            depth: AtomicU32::new(AWAKE),
            progress: AtomicU64::new(0),
            foreground: Notify::new(),
            background: Notify::new(),
        }
    }
}

struct House {
    sleepers: AtomicU32,
    ranks: Vec<Rank>,
}

impl House {
    fn of(ranks: usize) -> Arc<House> {
        let ranks = (0..ranks).map(|_| Rank::new()).collect();
        Arc::new(House { sleepers: AtomicU32::new(0), ranks })
    }

    fn depth(&self, rank: usize) -> Depth<'_> {
        Depth { word: &self.ranks[rank].depth, sleepers: Some(&self.sleepers) }
    }

    fn ring(&self, rank: usize, whom: WakeTarget) {
        match self.depth(rank).rouse(whom) {
            Some(FOREGROUND) => self.ranks[rank].foreground.notify(),
            Some(_) => self.ranks[rank].background.notify(),
            None => {}
        }
    }

    /// Makes progress and wakes sleeping ranks, like `Waiter::ring_others`.
    fn advance(&self, me: usize) {
        self.ranks[me].progress.fetch_add(1, Ordering::Release);
        if anybody_sleeps(&self.sleepers) {
            (0..self.ranks.len()).filter(|rank| *rank != me).for_each(|rank| {
                self.ring(rank, WakeTarget::Waiting);
            });
        }
    }

    /// Waits for another rank's progress, like `Waiter::until` after it has spun.
    fn await_progress(&self, me: usize, of: usize, needed: u64) {
        let look = || self.ranks[of].progress.load(Ordering::Acquire) >= needed;
        while !look() {
            self.depth(me).go_to_sleep(FOREGROUND);
            if look() {
                self.depth(me).go_to_sleep(AWAKE);
                return;
            }
            if self.depth(me).seen() == FOREGROUND {
                self.ranks[me].foreground.wait();
            }
            self.depth(me).go_to_sleep(AWAKE);
        }
    }
}

#[test]
fn two_ranks_that_wait_for_each_other_both_wake_up() {
    explore(3, || {
        let house = House::of(2);
        let other = house.clone();
        let thread = thread::spawn(move || {
            other.advance(1);
            other.await_progress(1, 0, 1);
        });
        house.advance(0);
        house.await_progress(0, 1, 1);
        thread.join().unwrap();
        assert_eq!(house.sleepers.load(Ordering::Relaxed), 0);
        assert_eq!(house.depth(0).seen(), AWAKE);
    });
}

#[test]
fn a_sleeper_woken_by_two_ranks_is_woken_and_counted_once() {
    explore(3, || {
        let house = House::of(3);
        let wakers = [1, 2].map(|rank| {
            let house = house.clone();
            thread::spawn(move || house.advance(rank))
        });
        house.await_progress(0, 1, 1);
        house.await_progress(0, 2, 1);
        wakers.into_iter().for_each(|waker| waker.join().unwrap());
        assert_eq!(house.sleepers.load(Ordering::Relaxed), 0);
    });
}

/// A driver hands the engine back to the background thread while another rank makes progress: one
/// of the two must notice the progress.
#[test]
fn input_during_a_change_of_drivers_is_noticed() {
    struct Engine {
        house: Arc<House>,
        lock: Mutex<u64>,
    }
    impl Engine {
        fn has_input(&self, taken: u64) -> bool {
            self.house.ranks[1].progress.load(Ordering::Acquire) > taken
        }

        /// A turn, followed by the steps of `EngineShared::step_back`.
        fn drive(&self, mut taken: loom::sync::MutexGuard<'_, u64>) -> bool {
            *taken += u64::from(self.has_input(*taken));
            self.house.depth(0).go_to_sleep(BACKGROUND);
            if self.has_input(*taken) {
                fence(Ordering::SeqCst);
                self.house.ring(0, WakeTarget::Everybody);
            }
            let is_done = *taken == 1;
            drop(taken);
            if self.house.depth(0).seen() == AWAKE {
                self.house.ranks[0].background.notify();
            }
            is_done
        }
    }
    explore(3, || {
        let engine = Arc::new(Engine { house: House::of(2), lock: Mutex::new(0) });
        let driving = engine.lock.lock().unwrap();
        let peer = {
            let house = engine.house.clone();
            thread::spawn(move || house.advance(1))
        };
        let background = {
            let engine = engine.clone();
            thread::spawn(move || {
                loop {
                    if let Ok(taken) = engine.lock.try_lock() {
                        engine.house.depth(0).go_to_sleep(AWAKE);
                        if engine.drive(taken) {
                            return;
                        }
                    }
                    engine.house.ranks[0].background.wait();
                }
            })
        };
        if engine.drive(driving) {
            // The background thread would rightly sleep forever: no more input comes.
            engine.house.ranks[0].background.notify();
        }
        peer.join().unwrap();
        background.join().unwrap();
        assert_eq!(*engine.lock.lock().unwrap(), 1);
    });
}
