//! The queue and the log: every frame is read completely, once by every reader, and never while it
//! is being written.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::atomic::AtomicU64;
use crate::{explore, ring};

/// A ring of two places; the model checker detects two threads at the same place.
const SIZE: usize = 2;

struct Ring {
    head: AtomicU64,
    tails: Vec<AtomicU64>,
    places: [UnsafeCell<u64>; SIZE],
}

impl Ring {
    fn of(readers: usize) -> Arc<Ring> {
        Arc::new(Ring {
            head: AtomicU64::new(0),
            tails: (0..readers).map(|_| AtomicU64::new(0)).collect(),
            places: [UnsafeCell::new(0), UnsafeCell::new(0)],
        })
    }

    #[expect(
        unsafe_code,
        reason = "the cell belongs to the model checker, which detects concurrent access"
    )]
    fn push(&self, value: u64) -> bool {
        ring::write(&self.head, self.tails.iter(), SIZE, 1, |position| {
            let place = &self.places[position as usize % SIZE];
            // SAFETY: the pointer is valid inside the call; the checker fails on concurrent access.
            place.with_mut(|place| unsafe { *place = value });
        })
    }

    #[expect(unsafe_code, reason = "see `push`")]
    fn pop(&self, reader: usize) -> Option<u64> {
        let take = |head: u64, tail: u64| -> Result<Option<(u64, u64)>, ()> {
            if head == tail {
                return Ok(None);
            }
            // SAFETY: as for `push`.
            let value = self.places[tail as usize % SIZE].with(|place| unsafe { *place });
            Ok(Some((value, tail + 1)))
        };
        ring::read(&self.head, &self.tails[reader], take).expect("no frame is corrupt")
    }

    /// Reads until the last value and checks the order.
    fn follow(&self, reader: usize, until: u64) {
        let mut next = 1;
        while next <= until {
            match self.pop(reader) {
                Some(value) => {
                    assert_eq!(value, next);
                    next += 1;
                }
                None => thread::yield_now(),
            }
        }
    }
}

#[test]
fn a_reader_and_a_writer_are_never_at_the_same_place() {
    explore(3, || {
        let ring = Ring::of(1);
        let reader = {
            let ring = ring.clone();
            thread::spawn(move || ring.follow(0, 3))
        };
        for value in 1..=3 {
            while !ring.push(value) {
                thread::yield_now();
            }
        }
        reader.join().unwrap();
        assert_eq!(ring.pop(0), None);
    });
}

/// No thread waits here, so that the model stays small: each tries a few times and checks what it
/// saw.
#[test]
fn the_slower_of_two_readers_holds_up_the_writer() {
    explore(3, || {
        let ring = Ring::of(2);
        let readers = [0, 1].map(|reader| {
            let ring = ring.clone();
            thread::spawn(move || {
                let seen: Vec<u64> = (0..3).filter_map(|_| ring.pop(reader)).collect();
                assert!(seen.iter().copied().eq(1..=seen.len() as u64), "{seen:?}");
                seen.len()
            })
        });
        let pushed = (1..=4).take_while(|value| ring.push(*value)).count();
        let read = readers.map(|reader| reader.join().unwrap());
        assert!(read.iter().all(|count| *count <= pushed && pushed - count <= SIZE));
    });
}
