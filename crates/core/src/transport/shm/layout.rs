//! Layout of the shared segment.

/// Alignment of everything that one rank writes and another polls: a whole number of cache lines.
pub(super) const LINE: usize = 128;
pub(super) const QUEUE: usize = 64 << 10;
pub(super) const LOG: usize = 256 << 10;

/// Data that a rank can send along in a round of the express lane.
pub(super) const EXPRESS: usize = 32 << 10;
/// Words of a rank before that data: round, wish, length.
pub(super) const EXPRESS_WORDS: usize = 3;

/// Counters of one rank in one process set: published, reduced, finished, offered.
const COUNTERS: usize = 4;
/// Pieces of staging memory per rank; see `shared_group`.
pub(crate) const SLOTS: usize = 4;
/// Process sets that can exist at the same time, including the world.
pub(crate) const LANES: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentLayout {
    pub(super) ranks: usize,
    pub(super) piece: usize,
}

impl SegmentLayout {
    /// Few ranks get large pieces, so that the cost of synchronizing per piece is negligible; with
    /// many ranks the staging memory of all of them must still fit into the caches.
    pub(super) fn of(ranks: usize) -> SegmentLayout {
        let piece = match ranks {
            0..=4 => 256 << 10,
            5..=16 => 128 << 10,
            _ => 64 << 10,
        };
        SegmentLayout { ranks, piece }
    }

    /// Offset of the word that says how deeply a rank sleeps.
    pub(super) fn depth(&self, rank: usize) -> usize {
        LINE * (1 + rank)
    }

    pub(super) fn counters(&self, lane: usize, rank: usize) -> usize {
        self.depth(self.ranks) + LINE * COUNTERS * (lane * self.ranks + rank)
    }

    pub(super) fn queue(&self, rank: usize) -> usize {
        self.counters(LANES, 0) + rank * (2 * LINE + QUEUE)
    }

    pub(super) fn log(&self) -> usize {
        self.queue(self.ranks)
    }

    /// Offset of one of a rank's two places in the express lane.
    pub(super) fn express(&self, rank: usize, half: usize) -> usize {
        let place = (8 * EXPRESS_WORDS + EXPRESS).next_multiple_of(LINE);
        self.log() + LINE * (1 + self.ranks) + LOG + (2 * rank + half) * place
    }

    pub(super) fn staging(&self, rank: usize, slot: usize) -> usize {
        let start = self.express(self.ranks, 0);
        start.next_multiple_of(4096) + (SLOTS * rank + slot) * self.piece
    }

    pub(super) fn length(&self) -> usize {
        self.staging(self.ranks, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps_and_everything_is_aligned() {
        for ranks in [1, 2, 3, 5, 16, 64, 200] {
            let layout = SegmentLayout::of(ranks);
            assert!(layout.depth(ranks) <= layout.counters(0, 0));
            assert!(layout.counters(0, ranks) <= layout.counters(1, 0));
            assert!(layout.counters(LANES - 1, ranks) <= layout.queue(0));
            assert!(layout.queue(0) + 2 * LINE + QUEUE <= layout.queue(1));
            assert!(layout.log() + LINE * (1 + ranks) + LOG <= layout.express(0, 0));
            assert!(layout.express(0, 1) + 8 * EXPRESS_WORDS + EXPRESS <= layout.express(1, 0));
            assert!(layout.express(ranks, 0) <= layout.staging(0, 0));
            assert_eq!(layout.staging(0, 1) - layout.staging(0, 0), layout.piece);
            assert_eq!(layout.staging(1, 0) - layout.staging(0, SLOTS - 1), layout.piece);
            for place in [
                layout.counters(1, 1),
                layout.queue(1),
                layout.log(),
                layout.express(0, 1),
                layout.staging(0, 0),
            ] {
                assert_eq!(place % LINE, 0);
            }
        }
    }
}
