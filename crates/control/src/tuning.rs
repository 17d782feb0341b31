//! The numbers that decide between algorithms: one table, the same on all ranks.
//!
//! Ranks that choose differently would wait for each other for ever, so only what the coordinator
//! has counts: it tells everybody in the one order of its messages, and all change at the same place.
//! The text form is the value of `RONDE_TUNING` or the content of the file it names: `name=number`,
//! separated by commas or lines, with comments behind `#`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Where one algorithm ends and the next begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tuning {
    /// Bytes up to which an allreduce in shared memory takes one exchange instead of two.
    pub one_shot: u64,
    /// Bytes up to which sockets take the way with the fewest messages.
    pub few_messages: u64,
    /// Bytes up to which an allreduce over sockets halves and doubles; above, it goes round a ring.
    pub halving: u64,
    /// Bytes up to which one rank per host speaks for its host; above, every rank carries a slice.
    pub one_carrier: u64,
    /// Connections that a large tensor takes at the same time between two ranks.
    pub connections: u64,
}

/// One of these numbers.
#[derive(Clone, Copy, Debug)]
pub struct Knob {
    /// Its name in the text form.
    pub name: &'static str,
    /// What the number decides.
    pub meaning: &'static str,
    field: fn(&mut Tuning) -> &mut u64,
}

/// More connections between two ranks than this help nobody.
pub const MOST_CONNECTIONS: u64 = 16;

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            one_shot: 16 << 10,
            few_messages: 32 << 10,
            halving: 256 << 10,
            one_carrier: 64 << 10,
            connections: 1,
        }
    }
}

impl Tuning {
    /// [`Tuning::one_shot`].
    pub const ONE_SHOT: Knob = Knob {
        name: "one_shot",
        meaning: "bytes up to which an allreduce in shared memory takes one exchange instead of two",
        field: |tuning| &mut tuning.one_shot,
    };

    /// [`Tuning::few_messages`].
    pub const FEW_MESSAGES: Knob = Knob {
        name: "few_messages",
        meaning: "bytes up to which sockets take the way with the fewest messages",
        field: |tuning| &mut tuning.few_messages,
    };

    /// [`Tuning::halving`].
    pub const HALVING: Knob = Knob {
        name: "halving",
        meaning: "bytes up to which an allreduce over sockets halves and doubles instead of going round",
        field: |tuning| &mut tuning.halving,
    };

    /// [`Tuning::one_carrier`].
    pub const ONE_CARRIER: Knob = Knob {
        name: "one_carrier",
        meaning: "bytes up to which one rank of a host speaks for all of it to other hosts",
        field: |tuning| &mut tuning.one_carrier,
    };

    /// [`Tuning::connections`].
    pub const CONNECTIONS: Knob = Knob {
        name: "connections",
        meaning: "connections that a large tensor takes at the same time between two ranks",
        field: |tuning| &mut tuning.connections,
    };

    /// Everything that can be tuned.
    pub const TABLE: &[Knob] = &[
        Tuning::ONE_SHOT,
        Tuning::FEW_MESSAGES,
        Tuning::HALVING,
        Tuning::ONE_CARRIER,
        Tuning::CONNECTIONS,
    ];

    /// Reads the text form over the defaults; reports all mistakes.
    pub fn parse(text: &str) -> Result<Tuning, Vec<String>> {
        let mut tuning = Tuning::default();
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
        let parts = lines.flat_map(|line| line.split(',')).map(str::trim);
        let parts = parts.filter(|part| !part.is_empty());
        let mistakes: Vec<String> = parts.filter_map(|part| tuning.set(part).err()).collect();
        match mistakes.is_empty() {
            true => Ok(tuning),
            false => Err(mistakes),
        }
    }

    /// The value of a knob.
    pub fn value(mut self, knob: &Knob) -> u64 {
        *(knob.field)(&mut self)
    }

    /// The same with another value of one knob.
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
            .ok_or_else(|| format!("`{name}` is none of {}", names()))?;
        let number: u64 =
            value.parse().map_err(|_| format!("{name} is `{value}`, it must be a whole number"))?;
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
            false => Err(format!("connections is {number}, it must be 1 to {MOST_CONNECTIONS}")),
        }
    }
}

/// The text form, a line per knob.
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
    fn what_is_written_reads_back() {
        for (index, knob) in Tuning::TABLE.iter().enumerate() {
            let tuning = Tuning::default().with(knob, 3 + index as u64);
            assert_eq!(Tuning::parse(&tuning.to_string()), Ok(tuning));
        }
    }

    #[test]
    fn one_line_with_commas_will_do_and_the_rest_keeps_its_default() {
        let tuning = Tuning::parse("one_shot=0, connections=4,").unwrap();
        assert_eq!(tuning, Tuning { one_shot: 0, connections: 4, ..Tuning::default() });
    }

    #[test]
    fn all_mistakes_are_told_at_once() {
        let mistakes = Tuning::parse("one_shot=many\nring=1\nconnections=0\nhello").unwrap_err();
        assert_eq!(mistakes.len(), 4, "{mistakes:?}");
        assert!(mistakes[1].contains("few_messages"), "{mistakes:?}");
    }
}
