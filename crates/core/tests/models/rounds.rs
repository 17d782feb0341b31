//! Rounds: ranks that want the same all find that out, ranks that do not find that out too, and
//! nobody reads a place that is being written.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::atomic::AtomicU64;
use crate::explore;
use crate::round::{REFUSAL, RoundWords};

#[derive(Default)]
struct Place {
    round: AtomicU64,
    wish: AtomicU64,
    data: UnsafeCell<u64>,
}

type Rank = [Place; 2];

fn words(ranks: &[Rank], rank: usize, round: u64) -> RoundWords<'_> {
    let Place { round, wish, .. } = &ranks[rank][(round % 2) as usize];
    RoundWords { round, wish }
}

/// One rank: in every round it wants what `wish` says, as soon as it may. Returns in which rounds
/// all wanted the same.
#[expect(
    unsafe_code,
    reason = "the cell belongs to the model checker, which detects concurrent access"
)]
fn run_rounds(ranks: &[Rank], me: usize, wish: fn(usize, u64) -> u64, rounds: u64) -> Vec<bool> {
    let mut answers = Vec::new();
    for round in 1..=rounds {
        while !(0..ranks.len())
            .all(|rank| rank == me || words(ranks, rank, round - 1).has(round - 1))
        {
            thread::yield_now();
        }
        let place = &ranks[me][(round % 2) as usize];
        // SAFETY: the pointer is valid inside the call; the checker fails on concurrent access.
        place.data.with_mut(|data| unsafe { *data = 10 * round + me as u64 });
        words(ranks, me, round).publish(round, wish(me, round));
        let equal = (0..ranks.len()).all(|rank| {
            loop {
                match words(ranks, rank, round).wish(round) {
                    Some(other) => break other == wish(me, round) && other != REFUSAL,
                    None => thread::yield_now(),
                }
            }
        });
        if equal {
            for (rank, places) in ranks.iter().enumerate() {
                let place = &places[(round % 2) as usize];
                // SAFETY: as above.
                let data = place.data.with(|data| unsafe { *data });
                assert_eq!(data, 10 * round + rank as u64);
            }
        }
        answers.push(equal);
    }
    answers
}

fn check(wish: fn(usize, u64) -> u64, answers: &'static [bool]) {
    explore(3, move || {
        let ranks: Arc<Vec<Rank>> = Arc::new(vec![Rank::default(), Rank::default()]);
        let other = {
            let ranks = ranks.clone();
            thread::spawn(move || run_rounds(&ranks, 1, wish, answers.len() as u64))
        };
        assert_eq!(run_rounds(&ranks, 0, wish, answers.len() as u64), answers);
        assert_eq!(other.join().expect("the other rank ends"), answers);
    });
}

#[test]
fn two_ranks_agree_round_after_round() {
    check(|_, round| 100 + round, &[true, true, true, true]);
}

#[test]
fn a_refused_round_is_refused_for_all_and_the_next_one_is_not() {
    check(|me, round| if round == 2 && me == 1 { REFUSAL } else { 7 }, &[true, false, true]);
}
