//! Who has lent how much to whom: double entry, so that the books always add up to zero.
//!
//! The unit is the node-second: a second of a node of the network's median speed. It is counted in
//! thousandths, in whole numbers. Only the hub writes entries, from what it has measured.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Moment, NodeId, PersonId};

/// Thousandths of a node-second.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Credit(pub i64);

impl Credit {
    /// What `seconds` on a node are worth that is `speed` times as fast as the median.
    pub fn of(seconds: u64, speed: f64) -> Credit {
        /// A measurement that is far off must not make anybody rich.
        const MOST: f64 = 100.0;
        let speed = if speed.is_finite() { speed.clamp(0.0, MOST) } else { 0.0 };
        Credit((seconds as f64 * speed * 1000.0).round().min(1e15) as i64)
    }
}

/// As hours of a node, with the sign of a debt.
impl fmt::Display for Credit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} node-hours", self.0 as f64 / 3_600_000.0)
    }
}

/// A transfer from the account of a borrower to that of a lender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// When it was booked.
    pub at: Moment,
    /// Whose balance falls.
    pub from: PersonId,
    /// Whose balance rises.
    pub to: PersonId,
    /// By how much; never negative.
    pub amount: Credit,
    /// The node that was used.
    pub node: NodeId,
    /// The reservation that it was used for.
    pub reservation: u64,
}

/// The use of one node in a reservation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Use {
    /// Whose reservation it is.
    pub borrower: PersonId,
    /// Who owns the node.
    pub lender: PersonId,
    /// The node.
    pub node: NodeId,
    /// The reservation.
    pub reservation: u64,
    /// How long it was reserved and online.
    pub seconds: u64,
    /// Its speed relative to the median of the network.
    pub speed: f64,
    /// Whether the node's fault ended the reservation.
    pub is_at_fault: bool,
}

/// What a use is booked as; nothing if it was the borrower's own node, or the node failed.
pub fn book(used: &Use, at: Moment) -> Option<Entry> {
    let Use { borrower, lender, node, reservation, seconds, speed, is_at_fault } = *used;
    let amount = Credit::of(seconds, speed);
    let is_free = borrower == lender || is_at_fault || amount == Credit(0);
    (!is_free).then_some(Entry { at, from: borrower, to: lender, amount, node, reservation })
}

/// What somebody has lent and borrowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Balance {
    /// What others have used of theirs.
    pub lent: Credit,
    /// What they have used of others.
    pub borrowed: Credit,
}

impl Balance {
    /// What is left to borrow, or owed if it is negative.
    pub fn net(&self) -> Credit {
        Credit(self.lent.0.saturating_sub(self.borrowed.0))
    }
}

/// The balances that follow from all entries.
pub fn balances<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> BTreeMap<PersonId, Balance> {
    let mut balances: BTreeMap<PersonId, Balance> = BTreeMap::new();
    for entry in entries {
        let borrower = balances.entry(entry.from).or_default();
        borrower.borrowed.0 = borrower.borrowed.0.saturating_add(entry.amount.0);
        let lender = balances.entry(entry.to).or_default();
        lender.lent.0 = lender.lent.0.saturating_add(entry.amount.0);
    }
    balances
}

/// The standing of a borrower, from 0 to 1: the share of what they have used that they have given
/// back, where everybody starts with a loan of some node-hours.
pub fn standing(balance: &Balance) -> f64 {
    const LOAN: f64 = 4.0 * 3_600_000.0;
    let (lent, borrowed) = (balance.lent.0 as f64, balance.borrowed.0 as f64);
    ((lent + LOAN) / (lent + borrowed + 2.0 * LOAN)).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn used(borrower: u64, lender: u64, seconds: u64, speed: f64) -> Use {
        Use {
            borrower: PersonId(borrower),
            lender: PersonId(lender),
            node: NodeId(1),
            reservation: 1,
            seconds,
            speed,
            is_at_fault: false,
        }
    }

    #[test]
    fn fast_nodes_are_worth_more() {
        let amount = |speed| book(&used(1, 2, 3600, speed), Moment(0)).unwrap().amount;
        assert_eq!(amount(1.0).to_string(), "1.00 node-hours");
        assert_eq!(amount(2.5).to_string(), "2.50 node-hours");
        assert_eq!(book(&used(1, 2, 3600, f64::NAN), Moment(0)), None);
        assert_eq!(amount(1e30), amount(100.0));
    }

    #[test]
    fn own_nodes_and_nodes_that_failed_cost_nothing() {
        assert_eq!(book(&used(1, 1, 3600, 1.0), Moment(0)), None);
        let failed = Use { is_at_fault: true, ..used(1, 2, 3600, 1.0) };
        assert_eq!(book(&failed, Moment(0)), None);
    }

    #[test]
    fn standing_rises_by_lending_and_falls_by_borrowing() {
        let standing = |lent: i64, borrowed: i64| {
            let hours = |hours: i64| Credit(hours * 3_600_000);
            standing(&Balance { lent: hours(lent), borrowed: hours(borrowed) })
        };
        assert!((standing(0, 0) - 0.5).abs() < 1e-9, "a newcomer is in the middle");
        assert!(standing(100, 0) > 0.9 && standing(0, 100) < 0.1);
        assert!((standing(50, 50) - 0.5).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn the_books_add_up_to_zero(
            uses in prop::collection::vec((0u64..5, 0u64..5, 0u64..1_000_000, 0.0f64..50.0), 0..50)
        ) {
            let booked = uses
                .iter()
                .filter_map(|(from, to, seconds, speed)| {
                    book(&used(*from, *to, *seconds, *speed), Moment(7))
                });
            let entries: Vec<Entry> = booked.collect();
            let sum: i64 = balances(&entries).values().map(|balance| balance.net().0).sum();
            prop_assert_eq!(sum, 0);
        }
    }
}
