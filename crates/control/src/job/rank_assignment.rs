//! Assigns ranks when a world is formed: workers keep their old ranks where possible.

use std::collections::BTreeSet;

/// Numbers for a list of workers, some of which had a number before, all different. A worker keeps
/// its old number if that is still in range; the others get the free ones, in order. The worker at
/// index `first`, if given, gets number 0 in any case.
pub(super) fn number(before: &[Option<u32>], first: Option<usize>) -> Vec<u32> {
    let mut free: BTreeSet<u32> = (0..before.len() as u32).collect();
    let mut numbers: Vec<Option<u32>> = vec![None; before.len()];
    let wanted = before.iter().enumerate().filter_map(|(index, old)| Some((index, (*old)?)));
    for (index, old) in first.map(|first| (first, 0)).into_iter().chain(wanted) {
        if numbers[index].is_none() && free.remove(&old) {
            numbers[index] = Some(old);
        }
    }
    // Workers that had a number come before those that never had one.
    let mut rest: Vec<usize> = (0..before.len()).filter(|it| numbers[*it].is_none()).collect();
    rest.sort_by_key(|index| before[*index].is_none());
    for (index, number) in rest.into_iter().zip(free) {
        numbers[index] = Some(number);
    }
    numbers.into_iter().map(Option::unwrap_or_default).collect()
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn numbers_are_kept_where_possible() {
        assert_eq!(number(&[None, None, None], None), [0, 1, 2]);
        assert_eq!(number(&[Some(0), Some(1), Some(3)], Some(0)), [0, 1, 2]);
        assert_eq!(number(&[Some(0), Some(2), Some(3)], Some(0)), [0, 2, 1]);
        assert_eq!(number(&[Some(2), Some(3)], Some(0)), [0, 1]);
        assert_eq!(number(&[Some(1), Some(3), None], Some(0)), [0, 1, 2]);
        assert_eq!(number(&[None, Some(2), Some(1)], Some(2)), [1, 2, 0]);
    }

    #[test]
    fn every_number_is_assigned_once() {
        let pasts: &[&[Option<u32>]] =
            &[&[Some(9), Some(0), None, Some(4)], &[Some(1)], &[], &[None, Some(0)]];
        for before in pasts {
            let mut numbers = number(before, before.len().checked_sub(1));
            numbers.sort_unstable();
            assert_eq!(numbers, (0..before.len() as u32).collect::<Vec<_>>());
        }
    }
}
