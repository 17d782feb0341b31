//! A bucket as an algorithm sees it: its inputs, and where their results go.

use std::ops::Range;

use super::row::{self, Row, RowMut};

/// The tensors of a bucket one after another, and their results, with the same boundaries. A tensor
/// without a source of its own is reduced in place: its result overwrites it.
#[derive(Debug, Default)]
pub(crate) struct Operands<'a> {
    sources: Vec<Option<&'a [u8]>>,
    target: RowMut<'a>,
}

impl<'a> Operands<'a> {
    /// The operands of these tensors and results; each result is as long as its tensor.
    pub(crate) fn new(
        pairs: impl IntoIterator<Item = (Option<&'a [u8]>, &'a mut [u8])>,
    ) -> Operands<'a> {
        let (sources, targets): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let same_length = |(source, target): (&Option<&[u8]>, &&mut [u8])| {
            source.is_none_or(|source| source.len() == target.len())
        };
        assert!(sources.iter().zip(&targets).all(same_length), "a result is as long as its tensor");
        Operands { sources, target: RowMut::new(targets) }
    }

    /// A row and another one of the same length for the result; their boundaries may differ.
    pub(crate) fn apart(source: &Row<'a>, target: RowMut<'a>) -> Operands<'a> {
        assert_eq!(source.length(), target.length(), "a result is as long as its tensor");
        let mut pairs = Vec::with_capacity(source.slices().len());
        let mut at = 0;
        for mut rest in target.into_slices() {
            for (_, part) in source.parts(at..at + rest.len()) {
                let (near, far) = rest.split_at_mut(part.len());
                pairs.push((Some(part), near));
                (rest, at) = (far, at + part.len());
            }
        }
        Operands::new(pairs)
    }

    /// The number of bytes in the bucket.
    pub(crate) fn length(&self) -> usize {
        self.target.length()
    }

    /// The number of bytes of each tensor.
    pub(crate) fn lengths(&self) -> impl Iterator<Item = usize> {
        self.target.slices().iter().map(|slice| slice.len())
    }

    /// The input.
    pub(crate) fn source(&self) -> Row<'_> {
        let pairs = self.sources.iter().zip(self.target.slices());
        Row::new(pairs.map(|(source, target)| source.unwrap_or(target)).collect())
    }

    /// The memory of the results.
    pub(crate) fn target(&self) -> &RowMut<'a> {
        &self.target
    }

    /// The memory of the results, for writing.
    pub(crate) fn target_mut(&mut self) -> &mut RowMut<'a> {
        &mut self.target
    }

    /// The tensors that are reduced in place.
    pub(crate) fn own_targets(&mut self) -> Vec<Option<&mut [u8]>> {
        let pairs = self.sources.iter().zip(self.target.slices_mut());
        pairs.map(|(source, target)| source.is_none().then_some(&mut **target)).collect()
    }

    /// The operands without the tensors that are marked in `taken`.
    pub(crate) fn without(&mut self, taken: &[bool]) -> Operands<'_> {
        let pairs = self.sources.iter().zip(self.target.slices_mut()).zip(taken);
        let left = pairs.filter(|(_, taken)| !**taken);
        Operands::new(left.map(|((source, target), _)| (*source, &mut **target)))
    }

    /// The parts of the input in `range`, each with its position in the bucket.
    pub(crate) fn source_parts(&self, range: Range<usize>) -> impl Iterator<Item = (usize, &[u8])> {
        let (first, spans) = self.target.cuts().spans(range);
        let pairs = self.sources[first..].iter().zip(&self.target.slices()[first..]);
        pairs
            .zip(spans)
            .map(|((source, target), (at, span))| (at, &source.unwrap_or(target)[span]))
            .filter(|(_, part)| !part.is_empty())
    }

    /// The parts of `range`: each with its position in the bucket, its input unless that is in the
    /// target, and its target.
    pub(crate) fn pairs_mut(
        &mut self,
        range: Range<usize>,
    ) -> impl Iterator<Item = (usize, Option<&[u8]>, &mut [u8])> {
        let (cuts, slices) = self.target.cuts_and_slices();
        let (first, spans) = cuts.spans(range);
        let pairs = self.sources[first..].iter().zip(&mut slices[first..]);
        pairs
            .zip(spans)
            .map(|((source, target), (at, span))| {
                (at, source.map(|source| &source[span.clone()]), &mut target[span])
            })
            .filter(|(_, _, target)| !target.is_empty())
    }

    /// Switches to in-place operation: the target now holds the input.
    pub(crate) fn settle(&mut self) {
        self.sources.fill(None);
    }

    /// The operands in each of these ranges, which must not overlap.
    pub(crate) fn split(&mut self, ranges: &[Range<usize>]) -> Vec<Operands<'_>> {
        let sources = |range: &Range<usize>| {
            let (first, spans) = self.target.cuts().spans(range.clone());
            let parts = self.sources[first..].iter().zip(spans);
            let parts = parts.filter(|(_, (_, span))| !span.is_empty());
            parts.map(|(source, (_, span))| source.map(|source| &source[span])).collect()
        };
        let sources: Vec<Vec<Option<&[u8]>>> = ranges.iter().map(sources).collect();
        let targets = self.target.split(ranges).into_iter();
        targets.zip(sources).map(|(target, sources)| Operands { sources, target }).collect()
    }

    /// Copies `range` of the input to `target`, which has the same length.
    pub(crate) fn gather(&self, range: Range<usize>, target: &mut [u8]) {
        row::gather(self.source_parts(range.clone()), range, target);
    }

    /// Copies every tensor to its result.
    pub(crate) fn copy(&mut self) {
        for (source, target) in self.sources.iter().zip(self.target.slices_mut()) {
            if let Some(source) = source {
                target.copy_from_slice(source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separate_tensors_are_read_from_their_source_and_in_place_ones_from_their_target() {
        let (source, mut one, mut two) = ([1, 2, 3], [0; 3], [4, 5]);
        let mut operands = Operands::new([(Some(&source[..]), &mut one[..]), (None, &mut two[..])]);
        let mut seen = [0; 3];
        operands.gather(1..4, &mut seen);
        assert_eq!(seen, [2, 3, 4]);
        let pairs: Vec<_> = operands.pairs_mut(2..5).map(|(at, own, _)| (at, own)).collect();
        assert_eq!(pairs, [(2, Some(&[3][..])), (3, None)]);
        operands.copy();
        operands.settle();
        assert_eq!(operands.source().slices(), [&[1, 2, 3][..], &[4, 5]]);
    }

    #[test]
    fn splitting_operands_keeps_their_sources() {
        let (source, mut one, mut two) = ([1, 2, 3], [0; 3], [4, 5]);
        let mut operands = Operands::new([(Some(&source[..]), &mut one[..]), (None, &mut two[..])]);
        let parts = operands.split(&[2..4, 5..5, 0..2]);
        let sources: Vec<Vec<&[u8]>> =
            parts.iter().map(|part| part.source().slices().to_vec()).collect();
        assert_eq!(sources, [vec![&[3][..], &[4]], vec![], vec![&[1, 2]]]);
    }

    #[test]
    fn rows_with_different_boundaries_can_be_paired() {
        let (a, b, mut c, mut d) = ([1, 2, 3], [4, 5], [0; 1], [0; 4]);
        let (source, target) = (Row::new(vec![&a, &b]), RowMut::new(vec![&mut c, &mut d]));
        let mut operands = Operands::apart(&source, target);
        assert_eq!(operands.lengths().collect::<Vec<_>>(), [1, 2, 2]);
        operands.copy();
        assert_eq!((c, d), ([1], [2, 3, 4, 5]));
    }
}
