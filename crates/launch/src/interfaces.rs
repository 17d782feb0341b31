//! The network interfaces of this machine and their addresses.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv6Addr};

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use ronde_control::doctor::Address;

use crate::reach::HostProblem;

/// The first address of the first of these interfaces that has one.
pub fn address_of(names: &[String]) -> Result<IpAddr, HostProblem> {
    let unknown =
        |error: io::Error| HostProblem::new(error.to_string(), "remove `--network-interfaces`");
    pick(names, &all().map_err(unknown)?)
}

/// All addresses of all interfaces that are up, IPv4 first.
pub fn all() -> io::Result<Vec<Address>> {
    let found = getifaddrs().map_err(|error| {
        io::Error::other(format!("cannot list the network interfaces: {error}"))
    })?;
    let mut all: Vec<Address> = found.filter_map(read).collect();
    all.sort_by_key(|interface| interface.address.is_ipv6());
    Ok(all)
}

/// Addresses that another host might use to reach this one: no loopback addresses, and no
/// link-local ones, which are valid only with an interface. Other addresses on the loopback
/// interface count, because some networks route to them.
pub fn for_others() -> Vec<Address> {
    reachable(all().unwrap_or_default())
}

fn reachable(all: Vec<Address>) -> Vec<Address> {
    let local = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_unspecified(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unspecified() || v6.is_unicast_link_local(),
    };
    all.into_iter().filter(|each| !local(each.address)).collect()
}

/// Addresses of the interfaces with these names, in the order of the names; all of them if `names`
/// is empty.
pub fn named(all: &[Address], names: &[String]) -> Vec<Address> {
    match names {
        [] => all.to_vec(),
        names => names
            .iter()
            .flat_map(|name| all.iter().filter(move |each| each.interface == *name))
            .cloned()
            .collect(),
    }
}

fn read(interface: InterfaceAddress) -> Option<Address> {
    if !interface.flags.contains(InterfaceFlags::IFF_UP) {
        return None;
    }
    let address = interface.address?;
    let address = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
        (Some(v4), _) => IpAddr::V4(v4.ip()),
        (None, Some(v6)) => IpAddr::V6(Ipv6Addr::from(v6.ip().octets())),
        (None, None) => return None,
    };
    Some(Address { interface: interface.interface_name, address })
}

fn pick(names: &[String], all: &[Address]) -> Result<IpAddr, HostProblem> {
    let found = named(all, names).first().map(|interface| interface.address);
    found.ok_or_else(|| {
        let mut known: Vec<String> =
            all.iter().map(|each| format!("`{}`", each.interface)).collect();
        // The entries of one interface are not adjacent, because IPv4 addresses come first.
        let mut seen = BTreeSet::new();
        known.retain(|name| seen.insert(name.clone()));
        let asked: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        HostProblem::new(
            format!("no interface named {} has an address", asked.join(" or ")),
            format!("this machine has {}", known.join(", ")),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, address: &str) -> Address {
        Address { interface: name.into(), address: address.parse().unwrap() }
    }

    fn some() -> Vec<Address> {
        vec![
            interface("lo", "127.0.0.1"),
            interface("lo", "10.9.9.9"),
            interface("eth1", "10.0.0.1"),
            interface("docker0", "172.17.0.1"),
            interface("eth1", "fe80::1"),
            interface("eth1", "fd00::1"),
        ]
    }

    fn names(text: &str) -> Vec<String> {
        text.split(',').map(str::to_owned).collect()
    }

    #[test]
    fn the_first_name_with_an_address_wins_and_an_error_lists_all_interfaces() {
        assert_eq!(pick(&names("ib0,eth1,lo"), &some()), Ok("10.0.0.1".parse().unwrap()));
        let error = pick(&names("ib0,ib1"), &some()).unwrap_err();
        assert_eq!(error.reason, "no interface named `ib0` or `ib1` has an address");
        assert_eq!(error.hint, "this machine has `lo`, `eth1`, `docker0`");
    }

    #[test]
    fn loopback_and_link_local_addresses_are_left_out() {
        let addresses: Vec<String> =
            reachable(some()).iter().map(|each| each.address.to_string()).collect();
        assert_eq!(addresses, ["10.9.9.9", "10.0.0.1", "172.17.0.1", "fd00::1"]);
        assert_eq!(named(&reachable(some()), &names("docker0")).len(), 1);
    }

    #[test]
    fn the_loopback_address_is_listed() {
        assert!(all().unwrap().iter().any(|interface| interface.address.is_loopback()));
    }
}
