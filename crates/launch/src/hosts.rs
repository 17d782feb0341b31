//! Hosts as the user writes them, and the assignment of ranks to their slots.
//!
//! `-H node-a:4,me@node-b:4` lists hosts and their slots; ranks fill all slots of one host before
//! the next. This module does not check whether a host is reachable, only whether a name means this
//! machine.

use std::collections::BTreeMap;
use std::net::{IpAddr, ToSocketAddrs, UdpSocket};

use ronde_control::Rank;

use crate::reach::{ReachMethod, ReachOptions, ReachWay, ssh, standing};

/// One host and its number of slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Name or address, as the user wrote it.
    pub name: String,
    /// The user to log in as, if given.
    pub user: Option<String>,
    /// Number of ranks that it can run.
    pub slots: u32,
}

impl Host {
    /// This machine.
    pub fn local(slots: u32) -> Host {
        Host { name: "localhost".into(), user: None, slots }
    }

    /// Merges another entry for the same host: the slots add up.
    pub(crate) fn add(&mut self, again: &Host) {
        self.slots = self.slots.saturating_add(again.slots);
    }
}

/// A rank's place, in Horovod's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The rank in this slot.
    pub rank: Rank,
    /// The name of its host.
    pub host: String,
    /// Index among the ranks of its host.
    pub local_rank: u32,
    /// Number of ranks on its host.
    pub local_size: u32,
    /// Index of its host among the hosts that have this local rank.
    pub cross_rank: u32,
    /// Number of hosts that have this local rank.
    pub cross_size: u32,
}

/// Why the hosts cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostsError {
    /// The text is not a host with a number of slots.
    #[error(
        "Invalid host input, please make sure it has format as : worker-0:2,worker-1:2. (in `{0}`)"
    )]
    Invalid(String),
    /// The host has zero slots.
    #[error("`{0}` has no slots")]
    NoSlot(String),
    /// The hosts have too few slots.
    #[error("Requested more processes ({requested}) than there are available slots ({available})")]
    TooFew {
        /// Number of ranks requested.
        requested: u32,
        /// Number of slots on all hosts.
        available: u32,
    },
}

/// Parses `host:slots,host:slots`. A host without a number has one slot, as with `mpirun`; the
/// slots of a host that is listed twice add up.
pub fn parse(text: &str) -> Result<Vec<Host>, HostsError> {
    let mut hosts: Vec<Host> = Vec::new();
    for part in text.split(',').map(str::trim) {
        let host = match part.contains(':') && !part.ends_with(']') {
            true => parse_one(part)?,
            false => {
                parse_one(&format!("{part}:1")).map_err(|_| HostsError::Invalid(part.to_owned()))?
            }
        };
        match hosts.iter_mut().find(|known| known.name == host.name) {
            Some(known) => known.add(&host),
            None => hosts.push(host),
        }
    }
    Ok(hosts)
}

pub(crate) fn parse_one(part: &str) -> Result<Host, HostsError> {
    let invalid = || HostsError::Invalid(part.to_owned());
    let (name, slots) = part.rsplit_once(':').ok_or_else(invalid)?;
    let (user, name) = match name.split_once('@') {
        Some((user, name)) => (Some(user), name),
        None => (None, name),
    };
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let is_word = |text: &str| {
        let allowed = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_');
        // ssh would take a leading dash for an option.
        !text.is_empty() && !text.starts_with('-') && text.chars().all(allowed)
    };
    let valid = bare.parse::<IpAddr>().is_ok() || is_word(bare);
    if !valid || !user.is_none_or(is_word) || !slots.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(invalid());
    }
    match slots.parse().map_err(|_| invalid())? {
        0 => Err(HostsError::NoSlot(bare.to_owned())),
        slots => Ok(Host { name: bare.to_owned(), user: user.map(str::to_owned), slots }),
    }
}

/// Assigns `count` ranks to slots, filling all slots of one host before the next.
pub fn assign(hosts: &[Host], count: u32) -> Result<Vec<Slot>, HostsError> {
    assign_shared(hosts, &BTreeMap::new(), count)
}

/// Like [`assign`], for hosts of which several may be one machine: `machines` has the machine of
/// each host that shares one. Such hosts follow each other in the list, and their ranks are numbered
/// together.
pub(crate) fn assign_shared(
    hosts: &[Host],
    machines: &BTreeMap<String, String>,
    count: u32,
) -> Result<Vec<Slot>, HostsError> {
    let available = hosts.iter().fold(0u32, |sum, host| sum.saturating_add(host.slots));
    if count > available {
        return Err(HostsError::TooFew { requested: count, available });
    }
    let places = hosts.iter().flat_map(|host| (0..host.slots).map(move |_| host));
    let places: Vec<&Host> = places.take(count as usize).collect();
    let is_shared = |a: &Host, b: &Host| {
        a.name == b.name
            || machines.get(&a.name).is_some_and(|it| machines.get(&b.name) == Some(it))
    };
    let groups: Vec<&[&Host]> = places.chunk_by(|a, b| is_shared(a, b)).collect();
    let mut slots = Vec::with_capacity(count as usize);
    for (index, group) in groups.iter().enumerate() {
        for (local_rank, host) in group.iter().enumerate() {
            let having = |groups: &[&[&Host]]| {
                groups.iter().filter(|group| group.len() > local_rank).count() as u32
            };
            slots.push(Slot {
                rank: Rank(slots.len() as u32),
                host: host.name.clone(),
                local_rank: local_rank as u32,
                local_size: group.len() as u32,
                cross_rank: having(&groups[..index]),
                cross_size: having(&groups),
            });
        }
    }
    Ok(slots)
}

/// The hosts that have ranks, with one slot per rank, and how to reach them from this machine,
/// whose name is `hostname`.
pub fn methods(
    hosts: &[Host],
    slots: &[Slot],
    hostname: &str,
    options: &ReachOptions,
) -> Vec<(Host, ReachMethod)> {
    let used = |host: &Host| {
        let used = slots.iter().filter(|slot| slot.host == host.name).count() as u32;
        Host { slots: used, ..host.clone() }
    };
    let used: Vec<Host> = hosts.iter().map(used).filter(|host| host.slots > 0).collect();
    reached(used, hostname, options)
}

/// These hosts, and how to reach each from this machine, whose name is `hostname`. May query the
/// name service, and asks which hosts have a standing agent if either way will do.
pub fn reached(
    hosts: Vec<Host>,
    hostname: &str,
    options: &ReachOptions,
) -> Vec<(Host, ReachMethod)> {
    let is_here = |host: &Host| match options.way {
        // Only the command needs to know what the name of another host means.
        ReachWay::Rsh(_) => host.user.is_none() && is_plainly_here(&host.name, hostname),
        _ => is_this(host, hostname),
    };
    let method = |host: &Host| match &options.way {
        _ if is_here(host) => ReachMethod::Local,
        ReachWay::Rsh(command) => ReachMethod::Rsh(command.clone(), host.name.clone()),
        ReachWay::Agent(access) | ReachWay::AgentOrSsh(access) => {
            ReachMethod::Standing(access.to(&host.name))
        }
        ReachWay::Ssh => by_ssh(host, options),
    };
    let mut all: Vec<(Host, ReachMethod)> =
        hosts.into_iter().map(|host| (host.clone(), method(&host))).collect();
    if let ReachWay::AgentOrSsh(_) = options.way {
        let standing = all.iter_mut().filter_map(|(host, method)| match method {
            ReachMethod::Standing(agent) => Some((agent.clone(), host, method)),
            _ => None,
        });
        let (agents, rest): (Vec<_>, Vec<_>) =
            standing.map(|(agent, host, method)| (agent, (host, method))).unzip();
        for (answers, (host, method)) in standing::answering(agents).into_iter().zip(rest) {
            if !answers {
                *method = by_ssh(host, options);
            }
        }
    }
    all
}

fn by_ssh(host: &Host, options: &ReachOptions) -> ReachMethod {
    ReachMethod::Ssh(destination(host, &options.ssh))
}

/// Where ssh finds a host.
pub(crate) fn destination(host: &Host, options: &ssh::SshOptions) -> ssh::Destination {
    let login = match &host.user {
        Some(user) => format!("{user}@{}", host.name),
        None => host.name.clone(),
    };
    ssh::Destination { login, options: options.clone() }
}

/// Whether a host is this machine.
pub fn is_here(host: &Host) -> bool {
    is_this(host, &hostname())
}

fn is_this(host: &Host, hostname: &str) -> bool {
    host.user.is_none() && is_local(&host.name, hostname)
}

/// The name of this machine.
pub fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Whether a name means this machine, without asking the name service.
fn is_plainly_here(name: &str, hostname: &str) -> bool {
    name == "localhost" || name.eq_ignore_ascii_case(hostname) || name.parse().is_ok_and(is_own)
}

fn is_local(name: &str, hostname: &str) -> bool {
    if is_plainly_here(name, hostname) {
        return true;
    }
    if name.parse::<IpAddr>().is_ok() {
        return false;
    }
    let Ok(addresses) = (name, 0).to_socket_addrs() else { return false };
    let mut addresses = addresses.peekable();
    addresses.peek().is_some() && addresses.all(|address| is_own(address.ip()))
}

/// Whether this machine has the address: only then can it be bound.
pub(crate) fn is_own(address: IpAddr) -> bool {
    !address.is_unspecified() && UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, slots: u32) -> Host {
        Host { name: name.into(), user: None, slots }
    }

    #[test]
    fn hosts_are_parsed_as_in_horovod_and_the_number_is_optional() {
        for (text, expected) in [
            ("localhost:4", vec![host("localhost", 4)]),
            ("node-a.x_y:2,10.0.0.7:1", vec![host("node-a.x_y", 2), host("10.0.0.7", 1)]),
            ("a:1, b:2", vec![host("a", 1), host("b", 2)]),
            ("a:1,a:2", vec![host("a", 3)]),
            ("[::1]:2", vec![host("::1", 2)]),
            ("a:2, b", vec![host("a", 2), host("b", 1)]),
            ("[::1]", vec![host("::1", 1)]),
            ("me@b:2", vec![Host { user: Some("me".into()), ..host("b", 2) }]),
        ] {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
        for text in
            ["", "a:", ":2", "a:x", "a:-1", "a:+1", "a b:1", "a:1,,b:1", "a:99999999999", "-oX:1"]
        {
            assert!(matches!(parse(text), Err(HostsError::Invalid(_))), "{text}");
        }
        assert_eq!(parse("a:0"), Err(HostsError::NoSlot("a".into())));
    }

    #[test]
    fn ranks_fill_one_host_after_another() {
        let slots = assign(&[host("a", 2), host("b", 1), host("c", 4)], 5).unwrap();
        let places: Vec<_> = slots
            .iter()
            .map(|s| (s.host.as_str(), s.local_rank, s.local_size, s.cross_rank, s.cross_size))
            .collect();
        let expected = [
            ("a", 0, 2, 0, 3),
            ("a", 1, 2, 0, 2),
            ("b", 0, 1, 1, 3),
            ("c", 0, 2, 2, 3),
            ("c", 1, 2, 1, 2),
        ];
        assert_eq!(places, expected);
        assert_eq!(slots[4].rank, Rank(4));
    }

    #[test]
    fn ranks_of_hosts_that_are_one_machine_are_numbered_together() {
        let hosts = [host("a", 2), host("a-2", 1), host("b", 1), host("c", 1)];
        let machines = [("a", "m"), ("a-2", "m"), ("c", "n")];
        let machines = machines.map(|(host, machine)| (host.to_owned(), machine.to_owned())).into();
        let slots = assign_shared(&hosts, &machines, 5).unwrap();
        let places: Vec<_> = slots
            .iter()
            .map(|s| (s.host.as_str(), s.local_rank, s.local_size, s.cross_rank, s.cross_size))
            .collect();
        let expected = [
            ("a", 0, 3, 0, 3),
            ("a", 1, 3, 0, 1),
            ("a-2", 2, 3, 0, 1),
            ("b", 0, 1, 1, 3),
            ("c", 0, 1, 2, 3),
        ];
        assert_eq!(places, expected);
    }

    #[test]
    fn too_few_slots_are_reported_in_horovods_words() {
        let error = assign(&[host("a", 4)], 5).unwrap_err();
        let text = "Requested more processes (5) than there are available slots (4)";
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn this_machine_is_recognized_by_its_names_and_addresses() {
        for name in ["localhost", "127.0.0.1", "127.0.0.2", "::1", "Me"] {
            assert!(is_local(name, "me") || name == "::1", "{name}");
        }
        for name in ["192.0.2.1", "0.0.0.0", "no-such-host.invalid"] {
            assert!(!is_local(name, "me"), "{name}");
        }
        let hosts = parse("me:1,192.0.2.1:1,root@me:1,unused:4").unwrap();
        // The same name twice is one host.
        assert_eq!(hosts.len(), 3);
        let slots = assign(&hosts, 3).unwrap();
        let methods = methods(&hosts, &slots, "me", &ReachOptions::default());
        assert_eq!(methods.len(), 2);
        assert!(methods[0].1 == ReachMethod::Local && methods[1].1 != ReachMethod::Local);
    }
}
