//! The ports on which a job listens: any that are free, or only those of some ranges.
//!
//! Firewalls and published ports of containers leave only a few ports open. Everything of a job
//! that listens takes its port from here: `RONDE_PORT_RANGE` says which ones it may use, and
//! [`PortRange::find`] which one is tried next.

use std::fmt;
use std::io;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::counted;
use crate::settings::RONDE_PORT_RANGE;

/// What to do when a range has no free port left.
pub const WIDEN: &str = "use a wider range: a host needs two ports for each of its ranks and two \
                         more, and the launcher one; jobs that run at the same time share the range";

/// The ports that may be used. By default the system chooses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRange(Vec<(u16, u16)>);

impl PortRange {
    /// Whether the system chooses the ports.
    pub fn is_any(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of ports; 0 if the system chooses.
    pub fn count(&self) -> usize {
        self.0.iter().map(|(low, high)| usize::from(high - low) + 1).sum()
    }

    /// Calls `bind` with one port after the other until one is free. Where to start is random, so
    /// that jobs with the same range rarely try the same ports. Port 0 lets the system choose.
    pub fn find<T>(
        &self,
        random: u64,
        mut bind: impl FnMut(u16) -> io::Result<T>,
    ) -> io::Result<T> {
        if self.is_any() {
            return bind(0);
        }
        let ports: Vec<u16> = self.0.iter().flat_map(|(low, high)| *low..=*high).collect();
        let (before, after) = ports.split_at((random % ports.len() as u64) as usize);
        for port in after.iter().chain(before) {
            match bind(*port) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                bound => return bound,
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, self.all_taken()))
    }

    /// The range without these ports, which others will use.
    pub fn without(&self, taken: &[u16]) -> PortRange {
        let mut left = self.0.clone();
        for port in taken {
            let split = |(low, high): (u16, u16)| {
                let is_inside = (low..=high).contains(port);
                let below = (is_inside && low < *port).then(|| (low, port - 1));
                let above = (is_inside && *port < high).then(|| (port + 1, high));
                let whole = (!is_inside).then_some((low, high));
                below.into_iter().chain(above).chain(whole)
            };
            left = left.into_iter().flat_map(split).collect();
        }
        // An empty list would mean any port.
        if left.is_empty() { self.clone() } else { PortRange(left) }
    }

    /// That no port is left, in words.
    fn all_taken(&self) -> String {
        let name = RONDE_PORT_RANGE.name;
        match self.count() {
            // It may come from another setting.
            1 => format!("port {self} is taken"),
            count => format!("all {} of {name} ({self}) are taken", counted(count, "port")),
        }
    }
}

impl From<u16> for PortRange {
    /// Only this port.
    fn from(port: u16) -> PortRange {
        PortRange(vec![(port, port)])
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (low, high)) in self.0.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            match low == high {
                true => write!(f, "{comma}{low}")?,
                false => write!(f, "{comma}{low}-{high}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for PortRange {
    type Err = String;

    /// Reads `LOW-HIGH`, or several ranges and ports, separated by commas; nothing means any port.
    fn from_str(text: &str) -> Result<PortRange, String> {
        let parts = text.split(',').map(str::trim).filter(|_| !text.trim().is_empty());
        let range = |part: &str| {
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
            match (port(low), port(high)) {
                (Some(low), Some(high)) if low <= high => Ok((low, high)),
                (Some(low), Some(high)) => {
                    Err(format!("`{part}`, which ends before it begins: write `{high}-{low}`"))
                }
                _ => Err(format!("`{part}`, which is not a range of ports such as `29600-29700`")),
            }
        };
        parts.map(range).collect::<Result<_, _>>().map(PortRange)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> PortRange {
        text.parse().unwrap()
    }

    #[test]
    fn ranges_are_read_and_written_alike() {
        for text in ["", "29600", "29600-29700", "29600-29700,30000,30010-30011"] {
            assert_eq!(range(text).to_string(), text);
        }
        assert_eq!(range(" 5 - 7 , 9 ").to_string(), "5-7,9");
        assert_eq!(range("29600-29700,30000").count(), 102);
        for (text, word) in [
            ("29700-29600", "write `29600-29700`"),
            ("0-5", "not a range of ports"),
            ("1-70000", "not a range of ports"),
            ("5,", "not a range of ports"),
            ("all", "not a range of ports"),
        ] {
            let error = text.parse::<PortRange>().unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn every_port_is_tried_once_wherever_the_search_begins() {
        for random in 0..7 {
            let mut tried = Vec::new();
            let error = range("100-102,200").find(random, |port| -> io::Result<()> {
                tried.push(port);
                Err(io::ErrorKind::AddrInUse.into())
            });
            assert_eq!(tried[0], [100, 101, 102, 200][random as usize % 4]);
            tried.sort_unstable();
            assert_eq!(tried, [100, 101, 102, 200]);
            let text = "all 4 ports of RONDE_PORT_RANGE (100-102,200) are taken";
            assert_eq!(error.unwrap_err().to_string(), text);
        }
        assert_eq!(range("100-102").find(1, Ok).unwrap(), 101);
    }

    #[test]
    fn only_a_taken_port_makes_the_search_go_on() {
        let denied = range("1-9")
            .find(0, |_| -> io::Result<()> { Err(io::ErrorKind::PermissionDenied.into()) });
        assert_eq!(denied.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(PortRange::default().find(5, Ok).unwrap(), 0, "the system chooses");
    }

    #[test]
    fn reserved_ports_are_left_out() {
        let all = range("100-104,200");
        assert_eq!(all.without(&[102, 200]).to_string(), "100-101,103-104");
        assert_eq!(all.without(&[100, 104, 9]).to_string(), "101-103,200");
        assert_eq!(range("7").without(&[7]).to_string(), "7", "never any port instead");
        assert!(PortRange::default().without(&[7]).is_any());
    }
}
