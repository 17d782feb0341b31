//! The thresholds between algorithms: one table, the same on all ranks.
//!
//! Ranks that choose different algorithms would deadlock, so all use the coordinator's table: it
//! announces a change in the ordered stream of its messages, and all ranks switch at the same
//! point. The text form is the value of `RONDE_TUNING` or the content of the file it names:
//! `name=number`, separated by commas or newlines, with comments after `#`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Up to which size each algorithm is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tuning {
    /// Bytes of a rank up to which a collective on its own, in shared memory, is not negotiated.
    pub express: u64,
    /// Bytes up to which an allreduce in shared memory uses one exchange instead of two.
    pub one_shot: u64,
    /// Bytes up to which sockets use the algorithm with the fewest messages.
    pub few_messages: u64,
    /// Bytes up to which an allreduce over sockets uses halving and doubling; above, a ring.
    pub halving: u64,
    /// Bytes up to which one rank per host exchanges all data with other hosts; above, every rank
    /// exchanges a slice.
    pub one_carrier: u64,
    /// Connections between two ranks that a large tensor uses in parallel.
    pub connections: u64,
}

/// One number of a [`Tuning`].
#[derive(Clone, Copy, Debug)]
pub struct Knob {
    /// The name in the text form.
    pub name: &'static str,
    /// What the number decides.
    pub meaning: &'static str,
    field: fn(&mut Tuning) -> &mut u64,
}

/// Maximum number of connections between two ranks; more do not help.
pub const MOST_CONNECTIONS: u64 = 16;

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            express: 16 << 10,
            one_shot: 16 << 10,
            few_messages: 32 << 10,
            halving: 256 << 10,
            one_carrier: 64 << 10,
            connections: 1,
        }
    }
}

impl Tuning {
    /// [`Tuning::express`].
    pub const EXPRESS: Knob = Knob {
        name: "express",
        meaning: "bytes up to which a tensor on its own, in shared memory, travels with its announcement",
        field: |tuning| &mut tuning.express,
    };

    /// [`Tuning::one_shot`].
    pub const ONE_SHOT: Knob = Knob {
        name: "one_shot",
        meaning: "bytes up to which an allreduce in shared memory uses one exchange instead of two",
        field: |tuning| &mut tuning.one_shot,
    };

    /// [`Tuning::few_messages`].
    pub const FEW_MESSAGES: Knob = Knob {
        name: "few_messages",
        meaning: "bytes up to which sockets use the algorithm with the fewest messages",
        field: |tuning| &mut tuning.few_messages,
    };

    /// [`Tuning::halving`].
    pub const HALVING: Knob = Knob {
        name: "halving",
        meaning: "bytes up to which an allreduce over sockets uses halving and doubling instead of a ring",
        field: |tuning| &mut tuning.halving,
    };

    /// [`Tuning::one_carrier`].
    pub const ONE_CARRIER: Knob = Knob {
        name: "one_carrier",
        meaning: "bytes up to which one rank per host exchanges all data with other hosts",
        field: |tuning| &mut tuning.one_carrier,
    };

    /// [`Tuning::connections`].
    pub const CONNECTIONS: Knob = Knob {
        name: "connections",
        meaning: "connections between two ranks that a large tensor uses in parallel",
        field: |tuning| &mut tuning.connections,
    };

    /// All numbers that can be tuned.
    pub const TABLE: &[Knob] = &[
        Tuning::EXPRESS,
        Tuning::ONE_SHOT,
        Tuning::FEW_MESSAGES,
        Tuning::HALVING,
        Tuning::ONE_CARRIER,
        Tuning::CONNECTIONS,
    ];

    /// Parses the text form; missing numbers keep their defaults. Reports all errors.
    pub fn parse(text: &str) -> Result<Tuning, Vec<String>> {
        let mut tuning = Tuning::default();
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
        let parts = lines.flat_map(|line| line.split(',')).map(str::trim);
        let parts = parts.filter(|part| !part.is_empty());
        let errors: Vec<String> = parts.filter_map(|part| tuning.set(part).err()).collect();
        match errors.is_empty() {
            true => Ok(tuning),
            false => Err(errors),
        }
    }

    /// The value of a knob.
    pub fn value(mut self, knob: &Knob) -> u64 {
        *(knob.field)(&mut self)
    }

    /// A copy with another value of one knob.
    pub fn with(mut self, knob: &Knob, value: u64) -> Tuning {
        *(knob.field)(&mut self) = value;
        self
    }

    fn set(&mut self, part: &str) -> Result<(), String> {
        let names = || Tuning::TABLE.iter().map(|knob| knob.name).collect::<Vec<_>>().join(", ");
        let (name, value) =
            part.split_once('=').ok_or_else(|| format!("`{part}` is not `name=number`"))?;
        let (name, value) = (name.trim(), value.trim());
        let knob = Tuning::TABLE
            .iter()
            .find(|knob| knob.name == name)
            .ok_or_else(|| format!("`{name}` is not one of {}", names()))?;
        let number: u64 = value
            .parse()
            .map_err(|_| format!("{name} is `{value}`, but must be a whole number"))?;
        let tuned = self.with(knob, number);
        tuned.check()?;
        *self = tuned;
        Ok(())
    }

    /// Refuses numbers that no algorithm can work with.
    pub(crate) fn check(&self) -> Result<(), String> {
        let number = self.connections;
        match (1..=MOST_CONNECTIONS).contains(&number) {
            true => Ok(()),
            false => Err(format!("connections is {number}, but must be 1 to {MOST_CONNECTIONS}")),
        }
    }
}

/// The text form, with one line per knob.
impl fmt::Display for Tuning {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for knob in Tuning::TABLE {
            writeln!(out, "{}={}  # {}", knob.name, self.value(knob), knob.meaning)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_can_be_parsed() {
        for (index, knob) in Tuning::TABLE.iter().enumerate() {
            let tuning = Tuning::default().with(knob, 3 + index as u64);
            assert_eq!(Tuning::parse(&tuning.to_string()), Ok(tuning));
        }
    }

    #[test]
    fn commas_separate_numbers_and_missing_ones_keep_their_defaults() {
        let tuning = Tuning::parse("one_shot=0, connections=4,").unwrap();
        assert_eq!(tuning, Tuning { one_shot: 0, connections: 4, ..Tuning::default() });
    }

    #[test]
    fn all_errors_are_reported_at_once() {
        let errors = Tuning::parse("one_shot=many\nring=1\nconnections=0\nhello").unwrap_err();
        assert_eq!(errors.len(), 4, "{errors:?}");
        assert!(errors[1].contains("few_messages"), "{errors:?}");
    }
}
