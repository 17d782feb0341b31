//! The bookkeeping of an allocator, without the memory: which bytes of a region are in use.
//!
//! Blocks start on cache lines and are cut from the smallest gap that holds them. Adjacent gaps
//! merge, so that a region whose blocks have all been freed is one gap again.

use std::collections::BTreeMap;
use std::ops::Range;

/// Two blocks never share a cache line.
const GRAIN: usize = 64;

pub(super) struct Allocator {
    /// Start and length of each gap.
    gaps: BTreeMap<usize, usize>,
}

impl Allocator {
    pub(super) fn new(length: usize) -> Allocator {
        let length = length / GRAIN * GRAIN;
        Allocator { gaps: (length > 0).then_some((0, length)).into_iter().collect() }
    }

    /// Takes a block of `length` bytes, if there is a gap for it.
    pub(super) fn take(&mut self, length: usize) -> Option<Range<usize>> {
        let length = length.max(1).checked_next_multiple_of(GRAIN)?;
        let fits = self.gaps.iter().filter(|(_, gap)| **gap >= length);
        let (start, gap) = fits.min_by_key(|(_, gap)| **gap).map(|(start, gap)| (*start, *gap))?;
        self.gaps.remove(&start);
        if gap > length {
            self.gaps.insert(start + length, gap - length);
        }
        Some(start..start + length)
    }

    /// Frees a block that `take` has handed out; returns the gap that it has become part of.
    pub(super) fn give_back(&mut self, block: Range<usize>) -> Range<usize> {
        let Range { mut start, mut end } = block;
        if let Some(length) = self.gaps.remove(&end) {
            end += length;
        }
        if let Some((before, length)) = self.gaps.range(..start).next_back()
            && before + length == start
        {
            start = *before;
        }
        self.gaps.insert(start, end - start);
        start..end
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_block_that_does_not_fit_is_refused() {
        let mut allocator = Allocator::new(1000);
        assert_eq!(allocator.take(1000), None);
        assert_eq!(allocator.take(usize::MAX), None);
        assert_eq!(allocator.take(900), Some(0..960));
        assert_eq!(allocator.take(1), None);
        assert_eq!(Allocator::new(63).take(0), None);
    }

    #[test]
    fn the_smallest_gap_that_is_large_enough_is_cut() {
        let mut allocator = Allocator::new(1 << 20);
        let blocks: Vec<_> =
            [640, 64, 128, 64].map(|length| allocator.take(length).unwrap()).into();
        allocator.give_back(blocks[0].clone());
        allocator.give_back(blocks[2].clone());
        assert_eq!(allocator.take(100), Some(blocks[2].clone()));
        assert_eq!(allocator.take(100), Some(0..128));
    }

    proptest! {
        #[test]
        fn blocks_never_overlap_and_all_memory_is_reclaimed(
            turns in proptest::collection::vec((0usize..5000, any::<prop::sample::Index>()), 1..200),
        ) {
            const LENGTH: usize = 64 << 10;
            let mut allocator = Allocator::new(LENGTH);
            let mut taken: Vec<Range<usize>> = Vec::new();
            for (length, index) in turns {
                match allocator.take(length) {
                    Some(block) if length % 3 > 0 => {
                        prop_assert!(block.len() >= length && block.end <= LENGTH);
                        let apart = |other: &Range<usize>| {
                            other.end <= block.start || block.end <= other.start
                        };
                        prop_assert!(taken.iter().all(apart));
                        taken.push(block);
                    }
                    Some(block) => {
                        let gap = allocator.give_back(block.clone());
                        prop_assert!(gap.start <= block.start && block.end <= gap.end);
                    }
                    None => {
                        let block = taken.swap_remove(index.index(taken.len()));
                        allocator.give_back(block);
                    }
                }
            }
            for block in taken {
                allocator.give_back(block);
            }
            prop_assert_eq!(allocator.take(LENGTH), Some(0..LENGTH));
        }
    }
}
