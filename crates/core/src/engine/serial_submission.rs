//! Detects whether submissions come one at a time.
//!
//! A thread that submits something it will not wait for may still drive briefly: if the other ranks
//! are ready too, the submission is done before any other thread would have woken up. That pays off
//! for a program whose collectives come one by one, for example a step that reduces all its
//! gradients in one call. It hurts a program that submits many at once: the first tensor would
//! travel alone while the rest, held up behind it, could have been fused with it. The two kinds can
//! be told apart only while nobody drives briefly: does a second submission arrive before the first
//! is done? So every now and then a submitting thread does not drive, to check.

/// After this many submissions in a row that were alone, the next one probably is, too.
const ENOUGH: u32 = 8;
/// One submission in this many is not driven by the submitting thread, as a check.
const CHECK_EVERY: u32 = 8;

#[derive(Default)]
pub(super) struct SerialSubmission {
    /// How many submissions in a row have completed without overlapping another.
    alone: u32,
    /// Whether any of the submissions in flight overlap.
    overlaps: bool,
}

impl SerialSubmission {
    /// Something was submitted while this many others were in flight.
    pub(super) fn submitted(&mut self, others: usize) {
        if others > 0 {
            self.overlaps = true;
            self.alone = 0;
        }
    }

    /// Something has completed; this many are left in flight.
    pub(super) fn completed(&mut self, left: usize) {
        if left == 0 && !std::mem::take(&mut self.overlaps) {
            self.alone = self.alone.saturating_add(1);
        }
    }

    /// Whether the latest submission will probably be the only one until it is done.
    pub(super) fn is_likely(&self) -> bool {
        self.alone >= ENOUGH && !self.alone.is_multiple_of(CHECK_EVERY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_by_one(serial_submission: &mut SerialSubmission, count: usize) -> usize {
        let driven = (0..count).filter(|_| {
            serial_submission.submitted(0);
            let drives = serial_submission.is_likely();
            serial_submission.completed(0);
            drives
        });
        driven.count()
    }

    #[test]
    fn serial_submissions_are_driven_except_every_eighth() {
        let mut serial_submission = SerialSubmission::default();
        assert_eq!(one_by_one(&mut serial_submission, ENOUGH as usize + 1), 0);
        assert_eq!(one_by_one(&mut serial_submission, 800), 700);
    }

    #[test]
    fn overlapping_submissions_are_never_driven() {
        let mut serial_submission = SerialSubmission::default();
        one_by_one(&mut serial_submission, 100);
        for step in 0..3 {
            for others in 0..10 {
                serial_submission.submitted(others);
                assert!(!serial_submission.is_likely() || step + others == 0, "{step}, {others}");
            }
            (0..10).rev().for_each(|left| serial_submission.completed(left));
        }
        assert_eq!(one_by_one(&mut serial_submission, ENOUGH as usize), 0);
    }

    #[test]
    fn the_check_detects_submissions_held_up_behind_a_driven_one() {
        let mut serial_submission = SerialSubmission::default();
        one_by_one(&mut serial_submission, 100);
        let mut in_flight = 0;
        let mut driven = 0;
        // A single thread submits ten in a row: each one after the previous call has returned.
        for _ in 0..10 {
            serial_submission.submitted(in_flight);
            match serial_submission.is_likely() {
                true => {
                    serial_submission.completed(in_flight);
                    driven += 1;
                }
                false => in_flight += 1,
            }
        }
        assert!(driven < CHECK_EVERY);
    }
}
