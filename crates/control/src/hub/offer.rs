//! What a lender offers: how much of a machine, when, and to whom.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Moment, PersonId};

/// What an owner offers of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// CPUs.
    pub cpus: u32,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// GPUs.
    pub gpus: u32,
    /// Disk, in bytes.
    pub disk_bytes: u64,
    /// When; `None` for always.
    pub hours: Option<Hours>,
    /// Only while nobody uses the machine.
    pub when_idle: bool,
    /// To whom.
    pub to: Audience,
}

/// To whom a machine is offered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Audience {
    /// Everybody on the hub.
    #[default]
    Everybody,
    /// Its owner and these people.
    People(Vec<PersonId>),
}

impl Audience {
    /// Whether somebody may use the machine of `owner`.
    pub fn includes(&self, person: PersonId, owner: PersonId) -> bool {
        match self {
            Audience::Everybody => true,
            Audience::People(people) => person == owner || people.contains(&person),
        }
    }
}

/// Hours of the day, as in `20-08` or `22:30-6`; they may cross midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hours {
    /// The first minute, as a minute of the day in UTC.
    from: u16,
    /// The minute after the last one.
    to: u16,
}

const DAY: u16 = 24 * 60;

impl Hours {
    /// These hours as those of UTC, if they are of a place that is so many minutes ahead of it.
    pub fn to_utc(self, minutes_ahead: i16) -> Hours {
        let shift = |minute: u16| {
            (i32::from(minute) - i32::from(minutes_ahead)).rem_euclid(i32::from(DAY)) as u16
        };
        Hours { from: shift(self.from), to: shift(self.to) }
    }

    /// Whether a time is within these hours.
    pub fn contain(self, at: Moment) -> bool {
        self.left(at) > 0
    }

    /// How many seconds of these hours are left from a time on; 0 if it is outside.
    pub fn left(self, at: Moment) -> u64 {
        let (from, minute) = (i32::from(self.from), i32::from(at.minute_of_day()));
        let length = (i32::from(self.to) - from).rem_euclid(i32::from(DAY));
        let passed = (minute - from).rem_euclid(i32::from(DAY));
        match passed < length {
            true => (length - passed) as u64 * 60 - at.0 % 60,
            false => 0,
        }
    }

    /// When they next begin, from a time outside of them on.
    pub fn next(self, at: Moment) -> Moment {
        let (from, minute) = (i32::from(self.from), i32::from(at.minute_of_day()));
        let wait = (from - minute).rem_euclid(i32::from(DAY)) as u64;
        Moment(at.0 - at.0 % 60 + wait * 60)
    }
}

impl FromStr for Hours {
    type Err = String;

    fn from_str(text: &str) -> Result<Hours, String> {
        let invalid =
            || format!("`{text}` is not a range of hours such as `20-08` or `22:30-6:00`");
        let (from, to) = text.trim().split_once('-').ok_or_else(invalid)?;
        let minute = |text: &str| {
            let (hours, minutes) = text.trim().split_once(':').unwrap_or((text.trim(), "0"));
            let (hours, minutes) = (hours.parse::<u16>().ok()?, minutes.parse::<u16>().ok()?);
            (hours <= 24 && minutes < 60 && hours * 60 + minutes <= DAY)
                .then_some((hours * 60 + minutes) % DAY)
        };
        let (from, to) = (minute(from).ok_or_else(invalid)?, minute(to).ok_or_else(invalid)?);
        match from == to {
            true => Err(format!("`{text}` is an empty range; leave the hours out to lend all day")),
            false => Ok(Hours { from, to }),
        }
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (self.from, self.to);
        write!(f, "{:02}:{:02}-{:02}:{:02}", from / 60, from % 60, to / 60, to % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(hour: u64, minute: u64, second: u64) -> Moment {
        Moment(9 * 86_400 + hour * 3600 + minute * 60 + second)
    }

    #[test]
    fn hours_may_cross_midnight() {
        let night: Hours = "20-08".parse().unwrap();
        assert!(night.contain(at(23, 59, 59)) && night.contain(at(7, 59, 0)));
        assert!(!night.contain(at(8, 0, 0)) && !night.contain(at(19, 59, 59)));
        assert_eq!(night.left(at(7, 58, 30)), 90);
        assert_eq!(night.next(at(9, 30, 12)), at(20, 0, 0));
        assert_eq!(night.to_string(), "20:00-08:00");
    }

    #[test]
    fn hours_of_another_place_are_those_of_utc_shifted() {
        let night: Hours = "22:30-6".parse().unwrap();
        assert_eq!(night.to_utc(120).to_string(), "20:30-04:00");
        assert_eq!(night.to_utc(-480).to_string(), "06:30-14:00");
    }

    #[test]
    fn what_is_no_range_is_refused_with_an_example() {
        for text in ["", "8", "8-", "25-3", "8:60-9", "-1-3", "8-9-10"] {
            assert!(text.parse::<Hours>().unwrap_err().contains("such as `20-08`"), "{text}");
        }
        assert!("8-8".parse::<Hours>().unwrap_err().contains("all day"));
        assert_eq!(
            "0-24".parse::<Hours>().unwrap_err(),
            "`0-24` is an empty range; leave the hours out to lend all day"
        );
    }

    #[test]
    fn a_machine_for_some_people_is_always_for_its_owner() {
        let to = Audience::People(vec![PersonId(3)]);
        let allowed = [1, 2, 3].map(|person| to.includes(PersonId(person), PersonId(1)));
        assert_eq!(allowed, [true, false, true]);
    }
}
