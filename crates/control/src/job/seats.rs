//! Who gets which number when a world is formed: those who had one keep it where that can be.

use std::collections::BTreeSet;

/// Numbers for a row of people of whom some had one before, all different. Whoever's old number is
/// still there keeps it; the others get what is free, in order. The person at `first`, if anybody, gets
/// number 0 whatever the others had.
pub(super) fn number(before: &[Option<u32>], first: Option<usize>) -> Vec<u32> {
    let mut free: BTreeSet<u32> = (0..before.len() as u32).collect();
    let mut numbers: Vec<Option<u32>> = vec![None; before.len()];
    let wishes = before.iter().enumerate().filter_map(|(index, old)| Some((index, (*old)?)));
    for (index, wish) in first.map(|first| (first, 0)).into_iter().chain(wishes) {
        if numbers[index].is_none() && free.remove(&wish) {
            numbers[index] = Some(wish);
        }
    }
    // Those who had a number come before those who never had one.
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
    fn numbers_are_kept_where_they_can_be() {
        assert_eq!(number(&[None, None, None], None), [0, 1, 2]);
        assert_eq!(number(&[Some(0), Some(1), Some(3)], Some(0)), [0, 1, 2]);
        assert_eq!(number(&[Some(0), Some(2), Some(3)], Some(0)), [0, 2, 1]);
        assert_eq!(number(&[Some(2), Some(3)], Some(0)), [0, 1]);
        assert_eq!(number(&[Some(1), Some(3), None], Some(0)), [0, 1, 2]);
        assert_eq!(number(&[None, Some(2), Some(1)], Some(2)), [1, 2, 0]);
    }

    #[test]
    fn every_number_is_given_once() {
        let pasts: &[&[Option<u32>]] =
            &[&[Some(9), Some(0), None, Some(4)], &[Some(1)], &[], &[None, Some(0)]];
        for before in pasts {
            let mut numbers = number(before, before.len().checked_sub(1));
            numbers.sort_unstable();
            assert_eq!(numbers, (0..before.len() as u32).collect::<Vec<_>>());
        }
    }
}
