//! The cluster that TensorFlow's own strategies read from `TF_CONFIG`: every rank is a worker, with
//! an address and a free port of its own.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ronde_control::Rank;
use ronde_control::host_setup::HostPlan;
use serde_json::json;

use crate::hosts::Slot;

/// Largest value that fits into a process's environment, in bytes.
const LONGEST: usize = 100 << 10;

/// The workers in rank order, the same for every rank; empty if a port is missing. `hosts` holds
/// each host's name and the plan from host set-up; the first port of a host is torch.distributed's.
pub(super) fn workers(slots: &[Slot], hosts: &[(&str, &HostPlan)]) -> Vec<SocketAddr> {
    let worker = |(index, slot): (usize, &Slot)| {
        let (_, plan) = hosts.iter().find(|(name, _)| *name == slot.host)?;
        // Several hosts may be one machine, whose ranks are numbered together.
        let before = slots[..index].iter().filter(|other| other.host == slot.host).count();
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let address = plan.listen.first().copied().unwrap_or(loopback);
        Some(SocketAddr::new(address, *plan.ports.get(1 + before)?))
    };
    slots.iter().enumerate().map(worker).collect::<Option<Vec<_>>>().unwrap_or_default()
}

/// Value of `TF_CONFIG` for one rank; `None` if there is no cluster or the value is too large.
pub(super) fn config(workers: &[SocketAddr], rank: Rank) -> Option<String> {
    let text = json!({
        "cluster": { "worker": workers },
        "task": { "type": "worker", "index": rank.0 },
    })
    .to_string();
    (!workers.is_empty() && text.len() <= LONGEST).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::{self, assign};

    fn plan(listen: &[&str], ports: &[u16]) -> HostPlan {
        let listen = listen.iter().map(|address| address.parse().unwrap()).collect();
        HostPlan { listen, ports: ports.to_vec(), ..HostPlan::default() }
    }

    #[test]
    fn every_rank_is_a_worker_at_an_address_and_port_of_its_own() {
        let slots = assign(&hosts::parse("a:2,b:1").unwrap(), 3).unwrap();
        let (a, b) = (plan(&["10.0.0.1", "10.9.9.9"], &[1, 2, 3]), plan(&["fd00::2"], &[4, 5]));
        let workers = workers(&slots, &[("a", &a), ("b", &b)]);
        assert_eq!(
            config(&workers, Rank(2)).unwrap(),
            r#"{"cluster":{"worker":["10.0.0.1:2","10.0.0.1:3","[fd00::2]:5"]},"task":{"index":2,"type":"worker"}}"#
        );
    }

    #[test]
    fn workers_of_a_single_host_use_loopback() {
        let slots = assign(&hosts::parse("a:2").unwrap(), 2).unwrap();
        let found = workers(&slots, &[("a", &plan(&[], &[1, 2, 3]))]);
        assert_eq!(found, ["127.0.0.1:2", "127.0.0.1:3"].map(|at| at.parse().unwrap()));
        assert_eq!(workers(&slots, &[("a", &plan(&[], &[1, 2]))]), []);
        assert_eq!(config(&[], Rank(0)), None);
    }

    #[test]
    fn a_cluster_too_large_for_the_environment_is_left_out() {
        let worker: SocketAddr = "10.0.0.1:2".parse().unwrap();
        assert!(config(&vec![worker; 4096], Rank(7)).is_some());
        assert_eq!(config(&vec![worker; 20_000], Rank(7)), None);
    }
}
