//! A selection of ranks, such as `0,2` or `0-3,8`.

use std::collections::BTreeSet;

use ronde_control::Rank;

/// The largest rank that a list can name.
const LARGEST: u32 = 1 << 20;

/// Some ranks of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RankSet {
    /// No rank.
    None,
    /// All ranks.
    All,
    /// The listed ranks.
    Listed(BTreeSet<u32>),
}

impl RankSet {
    /// Parses `all`, `none` or a list of ranks and ranges.
    pub fn parse(text: &str) -> Result<RankSet, String> {
        match text {
            "all" => return Ok(RankSet::All),
            "none" => return Ok(RankSet::None),
            _ => {}
        }
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|rank| *rank < LARGEST);
        let mut ranks = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            match (number(first), number(last)) {
                (Some(first), Some(last)) if first <= last => ranks.extend(first..=last),
                _ => return Err("expected ranks, as in `0`, `0,2` or `0-3`, or `all`".into()),
            }
        }
        Ok(RankSet::Listed(ranks))
    }

    /// Whether the set contains a rank.
    pub fn contains(&self, rank: Rank) -> bool {
        match self {
            RankSet::None => false,
            RankSet::All => true,
            RankSet::Listed(ranks) => ranks.contains(&rank.0),
        }
    }

    /// The lowest rank that is in both sets.
    pub fn lowest_of_both(&self, other: &RankSet) -> Option<Rank> {
        match (self, other) {
            (RankSet::None, _) | (_, RankSet::None) => None,
            (RankSet::All, RankSet::All) => Some(Rank(0)),
            (RankSet::Listed(ranks), other) | (other, RankSet::Listed(ranks)) => {
                ranks.iter().map(|rank| Rank(*rank)).find(|rank| other.contains(*rank))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges_are_parsed() {
        let listed = |ranks: &[u32]| Ok(RankSet::Listed(ranks.iter().copied().collect()));
        assert_eq!(RankSet::parse("0"), listed(&[0]));
        assert_eq!(RankSet::parse("2,0, 7"), listed(&[0, 2, 7]));
        assert_eq!(RankSet::parse("0-2,5"), listed(&[0, 1, 2, 5]));
        assert_eq!(RankSet::parse("all"), Ok(RankSet::All));
        assert_eq!(RankSet::parse("none"), Ok(RankSet::None));
        for wrong in ["", "x", "1,", "3-1", "-1", "1-", "0-4294967295", "auto"] {
            assert!(RankSet::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_lowest_of_two_sets_is_in_both() {
        let set = |text| RankSet::parse(text).unwrap();
        for (one, other, lowest) in [
            ("all", "all", Some(0)),
            ("all", "3,2", Some(2)),
            ("1-3", "0,3", Some(3)),
            ("1", "0", None),
            ("none", "all", None),
        ] {
            assert_eq!(set(one).lowest_of_both(&set(other)), lowest.map(Rank), "{one} {other}");
            assert_eq!(set(other).lowest_of_both(&set(one)), lowest.map(Rank), "{other} {one}");
        }
    }
}
