//! Whether submissions come one at a time.
//!
//! Whoever submits something that it will not wait for may still stay and drive for a moment: if the
//! others are as far, it is done before any other thread would have woken up. That pays for a program
//! whose collectives come one by one, as that of a step which reduces all its gradients in one call.
//! It harms one that submits many at once: the first would travel alone while the rest, held up
//! behind it, could have gone along. Which kind a program is shows while nobody stays: does a second
//! submission come before the first is done? So now and then somebody does not stay, to see.

/// So many in a row that were alone make it likely that the next one is.
const ENOUGH: u32 = 8;
/// Of so many one does not stay.
const CHECKS: u32 = 8;

#[derive(Default)]
pub(super) struct Solitude {
    /// How many in a row have come and gone without meeting another.
    alone: u32,
    /// Whether those in flight have met.
    crowded: bool,
}

impl Solitude {
    /// Something was submitted while so many others were in flight.
    pub(super) fn came(&mut self, others: usize) {
        if others > 0 {
            self.crowded = true;
            self.alone = 0;
        }
    }

    /// Something has ended; so many are left.
    pub(super) fn went(&mut self, left: usize) {
        if left == 0 && !std::mem::take(&mut self.crowded) {
            self.alone = self.alone.saturating_add(1);
        }
    }

    /// Whether the one that has just come will be the only one until it is done.
    pub(super) fn is_likely(&self) -> bool {
        self.alone >= ENOUGH && !self.alone.is_multiple_of(CHECKS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_by_one(solitude: &mut Solitude, count: usize) -> usize {
        let stayed = (0..count).filter(|_| {
            solitude.came(0);
            let stays = solitude.is_likely();
            solitude.went(0);
            stays
        });
        stayed.count()
    }

    #[test]
    fn those_that_come_one_by_one_stay_but_for_every_eighth() {
        let mut solitude = Solitude::default();
        assert_eq!(one_by_one(&mut solitude, ENOUGH as usize + 1), 0);
        assert_eq!(one_by_one(&mut solitude, 800), 700);
    }

    #[test]
    fn those_that_come_together_never_stay() {
        let mut solitude = Solitude::default();
        one_by_one(&mut solitude, 100);
        for step in 0..3 {
            for others in 0..10 {
                solitude.came(others);
                assert!(!solitude.is_likely() || step + others == 0, "{step}, {others}");
            }
            (0..10).rev().for_each(|left| solitude.went(left));
        }
        assert_eq!(one_by_one(&mut solitude, ENOUGH as usize), 0);
    }

    #[test]
    fn those_held_up_behind_one_that_stays_are_found_out_by_the_check() {
        let mut solitude = Solitude::default();
        one_by_one(&mut solitude, 100);
        let mut in_flight = 0;
        let mut stayed = 0;
        // Ten that a single thread submits in a row: the next comes when the one before has returned.
        for _ in 0..10 {
            solitude.came(in_flight);
            match solitude.is_likely() {
                true => {
                    solitude.went(in_flight);
                    stayed += 1;
                }
                false => in_flight += 1,
            }
        }
        assert!(stayed < CHECKS);
    }
}
