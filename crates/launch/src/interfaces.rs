//! The network interfaces of this machine and their addresses.

use std::net::{IpAddr, Ipv4Addr};

use nix::ifaddrs::getifaddrs;

/// Interfaces that cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InterfaceError {
    /// None of the names belongs to an interface with an address.
    #[error("no interface named {} has an IPv4 address", .asked.join(" or "))]
    NoAddress {
        /// The names that were given.
        asked: Vec<String>,
        /// The names that would do.
        known: Vec<String>,
    },
    /// The machine would not say which interfaces it has.
    #[error("the network interfaces cannot be listed: {0}")]
    Unknown(String),
}

/// The first IPv4 address of the first of these interfaces that has one.
pub fn address_of(names: &[String]) -> Result<IpAddr, InterfaceError> {
    let all = all().map_err(|error| InterfaceError::Unknown(error.to_string()))?;
    pick(names, &all)
}

fn all() -> nix::Result<Vec<(String, Ipv4Addr)>> {
    let address = |interface: nix::ifaddrs::InterfaceAddress| {
        let address = interface.address?.as_sockaddr_in()?.ip();
        Some((interface.interface_name, address))
    };
    Ok(getifaddrs()?.filter_map(address).collect())
}

fn pick(names: &[String], all: &[(String, Ipv4Addr)]) -> Result<IpAddr, InterfaceError> {
    let of = |name: &String| all.iter().find(|(known, _)| known == name);
    let found = names.iter().find_map(of).map(|(_, address)| IpAddr::V4(*address));
    found.ok_or_else(|| InterfaceError::NoAddress {
        asked: names.iter().map(|name| format!("`{name}`")).collect(),
        known: all.iter().map(|(name, _)| format!("`{name}`")).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_with_an_address_counts_and_others_are_listed() {
        let all = [
            ("lo".to_owned(), Ipv4Addr::LOCALHOST),
            ("eth1".to_owned(), Ipv4Addr::new(10, 0, 0, 1)),
        ];
        let names = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(pick(&names("ib0,eth1,lo"), &all), Ok(Ipv4Addr::new(10, 0, 0, 1).into()));
        let error = pick(&names("ib0,ib1"), &all).unwrap_err();
        assert_eq!(error.to_string(), "no interface named `ib0` or `ib1` has an IPv4 address");
        assert!(matches!(error, InterfaceError::NoAddress { known, .. } if known.len() == 2));
    }

    #[test]
    fn every_machine_has_a_loopback() {
        assert!(all().unwrap().iter().any(|(_, address)| address.is_loopback()));
    }
}
