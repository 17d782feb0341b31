//! Several slices that form one row of bytes.

use std::ops::Range;

/// A row for reading.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row<'a> {
    slices: Vec<&'a [u8]>,
    cuts: Cuts,
}

/// A row for writing, with exclusive access.
#[derive(Debug, Default)]
pub(crate) struct RowMut<'a> {
    slices: Vec<&'a mut [u8]>,
    cuts: Cuts,
}

impl<'a> Row<'a> {
    /// Joins the slices.
    pub(crate) fn new(slices: Vec<&'a [u8]>) -> Row<'a> {
        let cuts = Cuts::of(slices.iter().map(|slice| slice.len()));
        Row { slices, cuts }
    }

    /// The number of bytes in the row.
    pub(crate) fn length(&self) -> usize {
        self.cuts.length
    }

    /// The slices that it consists of, in order.
    pub(crate) fn slices(&self) -> &[&'a [u8]] {
        &self.slices
    }

    /// The parts of slices in `range`, in order, each with its position in the row.
    pub(crate) fn parts(&self, range: Range<usize>) -> impl Iterator<Item = (usize, &'a [u8])> {
        let (first, spans) = self.cuts.spans(range);
        let parts = self.slices[first..].iter().zip(spans);
        parts.map(|(slice, (at, span))| (at, &slice[span])).filter(|(_, part)| !part.is_empty())
    }

    /// The bytes in `range`, as a row.
    pub(crate) fn slice(&self, range: Range<usize>) -> Row<'a> {
        Row::new(self.parts(range).map(|(_, part)| part).collect())
    }

    /// Concatenates rows.
    pub(crate) fn join(rows: impl Iterator<Item = Row<'a>>) -> Row<'a> {
        Row::new(rows.flat_map(|row| row.slices).collect())
    }

    /// Copies `range` of the row to `target`, which has the same length.
    pub(crate) fn gather(&self, range: Range<usize>, target: &mut [u8]) {
        gather(self.parts(range.clone()), range, target);
    }
}

impl<'a> RowMut<'a> {
    /// Joins the slices.
    pub(crate) fn new(slices: Vec<&'a mut [u8]>) -> RowMut<'a> {
        let cuts = Cuts::of(slices.iter().map(|slice| slice.len()));
        RowMut { slices, cuts }
    }

    /// The number of bytes in the row.
    pub(crate) fn length(&self) -> usize {
        self.cuts.length
    }

    /// The slices that it consists of, in order.
    pub(crate) fn slices(&self) -> &[&'a mut [u8]] {
        &self.slices
    }

    /// The slices that it consists of, for writing.
    pub(crate) fn slices_mut(&mut self) -> &mut [&'a mut [u8]] {
        &mut self.slices
    }

    pub(super) fn into_slices(self) -> Vec<&'a mut [u8]> {
        self.slices
    }

    pub(super) fn cuts(&self) -> &Cuts {
        &self.cuts
    }

    pub(super) fn cuts_and_slices(&mut self) -> (&Cuts, &mut [&'a mut [u8]]) {
        (&self.cuts, &mut self.slices)
    }

    /// Borrows the row for writing.
    pub(crate) fn reborrow(&mut self) -> RowMut<'_> {
        let slices = self.slices.iter_mut().map(|slice| &mut **slice).collect();
        RowMut { slices, cuts: self.cuts.clone() }
    }

    /// Borrows the row for reading.
    pub(crate) fn as_row(&self) -> Row<'_> {
        let slices = self.slices.iter().map(|slice| &**slice).collect();
        Row { slices, cuts: self.cuts.clone() }
    }

    /// The parts of slices in `range`, in order, each with its position in the row.
    pub(crate) fn parts(&self, range: Range<usize>) -> impl Iterator<Item = (usize, &[u8])> {
        let (first, spans) = self.cuts.spans(range);
        let parts = self.slices[first..].iter().zip(spans);
        parts.map(|(slice, (at, span))| (at, &slice[span])).filter(|(_, part)| !part.is_empty())
    }

    /// The parts of slices in `range`, for writing.
    pub(crate) fn parts_mut(
        &mut self,
        range: Range<usize>,
    ) -> impl Iterator<Item = (usize, &mut [u8])> {
        let (first, spans) = self.cuts.spans(range);
        let parts = self.slices[first..].iter_mut().zip(spans);
        parts.map(|(slice, (at, span))| (at, &mut slice[span])).filter(|(_, part)| !part.is_empty())
    }

    /// The bytes in each of these ranges, which must not overlap, as rows.
    pub(crate) fn split(&mut self, ranges: &[Range<usize>]) -> Vec<RowMut<'_>> {
        let mut order: Vec<usize> =
            (0..ranges.len()).filter(|index| !ranges[*index].is_empty()).collect();
        order.sort_unstable_by_key(|index| ranges[*index].start);
        let mut found: Vec<Vec<&mut [u8]>> = ranges.iter().map(|_| Vec::new()).collect();
        let mut slices = self.slices.iter_mut();
        // The rest of the current slice, and its position in the row.
        let (mut rest, mut at): (&mut [u8], usize) = (&mut [], 0);
        for index in order {
            let Range { start, end } = ranges[index];
            assert!(at <= start, "ranges overlap");
            while at < end {
                if rest.is_empty() {
                    rest = slices.next().expect("ranges are within the row");
                    continue;
                }
                let step = rest.len().min(if at < start { start - at } else { end - at });
                let (near, far) = std::mem::take(&mut rest).split_at_mut(step);
                if at >= start {
                    found[index].push(near);
                }
                (rest, at) = (far, at + step);
            }
        }
        found.into_iter().map(RowMut::new).collect()
    }

    /// Concatenates rows.
    pub(crate) fn join(rows: impl Iterator<Item = RowMut<'a>>) -> RowMut<'a> {
        RowMut::new(rows.flat_map(|row| row.slices).collect())
    }

    /// Copies `range` of the row to `target`, which has the same length.
    pub(crate) fn gather(&self, range: Range<usize>, target: &mut [u8]) {
        gather(self.parts(range.clone()), range, target);
    }

    /// Copies `source` over `range` of the row, which has the same length.
    pub(crate) fn scatter(&mut self, range: Range<usize>, source: &[u8]) {
        assert_eq!(range.len(), source.len(), "source and target have equal lengths");
        let base = range.start;
        for (at, part) in self.parts_mut(range) {
            part.copy_from_slice(&source[at - base..at - base + part.len()]);
        }
    }

    /// Copies another row into this one, beginning at `start`.
    pub(crate) fn copy_from(&mut self, start: usize, source: &Row<'_>) {
        for (at, part) in source.parts(0..source.length()) {
            self.scatter(start + at..start + at + part.len(), part);
        }
    }
}

/// Copies the parts of `range` to their positions in `target`.
pub(super) fn gather<'a>(
    parts: impl Iterator<Item = (usize, &'a [u8])>,
    range: Range<usize>,
    target: &mut [u8],
) {
    assert_eq!(range.len(), target.len(), "source and target have equal lengths");
    for (at, part) in parts {
        let at = at - range.start;
        target[at..at + part.len()].copy_from_slice(part);
    }
}

/// Where each slice of a row starts.
#[derive(Clone, Debug, Default)]
pub(super) struct Cuts {
    starts: Vec<usize>,
    length: usize,
}

impl Cuts {
    pub(super) fn of(lengths: impl Iterator<Item = usize>) -> Cuts {
        let mut length = 0;
        let starts = lengths.map(|each| {
            let start = length;
            length += each;
            start
        });
        let starts = starts.collect();
        Cuts { starts, length }
    }

    /// The index of the first slice that `range` may touch; and for it and each later slice that
    /// the range touches, the position in the row and the part of the slice in the range.
    pub(super) fn spans(
        &self,
        range: Range<usize>,
    ) -> (usize, impl Iterator<Item = (usize, Range<usize>)>) {
        let Range { start: low, end: high } = range;
        assert!(low <= high && high <= self.length, "ranges are within the row");
        let first = self.starts.partition_point(|start| *start <= low).saturating_sub(1);
        let starts = self.starts[first..].iter().copied();
        let ends = starts.clone().skip(1).chain([self.length]);
        let spans = starts.zip(ends).take_while(move |(start, _)| *start < high).map(
            move |(start, end)| {
                let at = low.max(start);
                (at, at - start..high.min(end) - start)
            },
        );
        (first, spans)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_range_of_a_row_is_read_from_the_right_slices() {
        let parts: [&[u8]; 4] = [&[0, 1, 2], &[], &[3], &[4, 5, 6, 7]];
        let row = Row::new(parts.to_vec());
        assert_eq!(row.length(), 8);
        for low in 0..=8 {
            for high in low..=8 {
                let mut out = vec![99; high - low];
                row.gather(low..high, &mut out);
                let expected: Vec<u8> = (low as u8..high as u8).collect();
                assert_eq!(out, expected, "{low}..{high}");
                row.slice(low..high).gather(0..high - low, &mut out);
                assert_eq!(out, expected, "{low}..{high}");
            }
        }
    }

    #[test]
    fn scattering_is_the_opposite_of_gathering() {
        let (mut a, mut b) = ([0; 3], [0; 5]);
        let mut row = RowMut::new(vec![&mut a, &mut b]);
        row.scatter(1..6, &[1, 2, 3, 4, 5]);
        let mut seen = [0; 8];
        row.as_row().gather(0..8, &mut seen);
        assert_eq!(seen, [0, 1, 2, 3, 4, 5, 0, 0]);
        assert_eq!((a, b), ([0, 1, 2], [3, 4, 5, 0, 0]));
    }

    #[test]
    fn rows_with_different_boundaries_can_be_copied() {
        let (a, b, mut c, mut d) = ([1, 2, 3], [4, 5], [0; 1], [0; 5]);
        RowMut::new(vec![&mut c, &mut d]).copy_from(1, &Row::new(vec![&a, &b]));
        assert_eq!((c, d), ([0], [1, 2, 3, 4, 5]));
    }

    #[test]
    fn a_row_is_split_into_any_ranges_in_any_order() {
        let (mut a, mut b) = ([0, 1, 2], [3, 4, 5, 6, 7]);
        let mut row = RowMut::new(vec![&mut a, &mut [], &mut b]);
        let ranges = [6..8, 2..5, 3..3, 0..1, 8..8];
        for (part, range) in row.split(&ranges).iter().zip(&ranges) {
            let mut seen = vec![99; range.len()];
            part.as_row().gather(0..range.len(), &mut seen);
            assert_eq!(seen, (range.start as u8..range.end as u8).collect::<Vec<_>>());
        }
    }

    #[test]
    #[should_panic(expected = "ranges overlap")]
    fn overlapping_ranges_are_refused() {
        RowMut::new(vec![&mut [0; 4]]).split(&[2..4, 0..3]);
    }

    #[test]
    fn positions_beyond_four_gigabytes_work() {
        // Hardly any of this memory is ever touched, so it takes no physical memory.
        let (mut first, mut second) = (vec![0; (3 << 30) + 1], vec![0; 2 << 30]);
        let mut row = RowMut::new(vec![&mut first, &mut second]);
        let border = (3 << 30) + 1;
        assert_eq!(row.length(), (5 << 30) + 1);
        for (mark, at) in [(1 << 31) - 3, 1 << 31, border - 2, (1 << 32) - 2, row.length() - 5]
            .into_iter()
            .enumerate()
        {
            let bytes = [mark as u8 + 1; 5];
            row.scatter(at..at + 5, &bytes);
            let mut seen = [0; 7];
            let around = at - 1..(at + 6).min(row.length());
            row.as_row().gather(around.clone(), &mut seen[..around.len()]);
            assert_eq!(seen[1..6], bytes, "{at}");
            assert_eq!(row.parts(at..at + 5).count(), if at == border - 2 { 2 } else { 1 });
        }
    }
}
