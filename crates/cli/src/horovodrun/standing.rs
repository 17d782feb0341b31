//! Hosts whose standing agents `HOROVOD_HOSTNAME` names, as in `pc1:29508,pc2:29508`: each says how
//! many slots its host has. Whoever lists hosts without numbers wants all of them to take part, so
//! the ranks of a fixed job are spread over them.

use std::time::Duration;

use ronde_control::settings::{HOROVOD_HOSTNAME, hosts_with_ports};
use ronde_control::wire::standing::StandingInfo;
use ronde_launch::hosts::{self, Host};
use ronde_launch::interfaces;
use ronde_launch::reach::standing::{self, StandingAgent};
use ronde_launch::reach::{HostProblem, ReachMethod};

use super::Arguments;
use crate::messages::UserError;
use crate::processes::Processes;

/// The hosts and ports that the variable names, unless the command line says where the hosts come
/// from.
pub(super) fn named(arguments: &Arguments) -> Option<Vec<(String, u16)>> {
    let has_source = arguments.hosts.is_some()
        || arguments.hostfile.is_some()
        || arguments.elastic.discovers()
        || arguments.agents.are_wanted();
    let text = std::env::var(HOROVOD_HOSTNAME.name).ok().filter(|_| !has_source)?;
    hosts_with_ports(&text)
}

/// Those hosts with their slots, and how to reach them. Waits for late ones.
pub(super) fn find(
    arguments: &Arguments,
    time_limit: Duration,
) -> Result<Option<Vec<(Host, ReachMethod)>>, UserError> {
    let Some(named) = named(arguments) else { return Ok(None) };
    let access = arguments.reach.agents(time_limit)?;
    // Without a network, only loopback addresses work.
    let has_network = !interfaces::for_others().is_empty();
    let agent = |(host, port): (String, u16)| {
        let is_here =
            !has_network && hosts::is_here(&Host { name: host.clone(), ..Host::local(1) });
        StandingAgent { port, is_here, ..access.to(&host) }
    };
    let agents: Vec<StandingAgent> = named.into_iter().map(agent).collect();
    let (mut found, mut errors, mut hints) = (Vec::new(), Vec::new(), Vec::new());
    for (agent, answer) in agents.iter().zip(standing::survey(agents.clone())) {
        match answer {
            Ok(info) => found.push(host(agent, &info, &found)),
            Err(failure) => {
                let HostProblem { reason, hint } = failure.problem();
                errors.push(reason);
                hints.push(hint);
            }
        }
    }
    if let (Some(Processes::Number(ranks)), false) =
        (arguments.num_proc, arguments.elastic.is_wanted())
    {
        let offered: Vec<u32> = found.iter().map(|(host, _)| host.slots).collect();
        for ((host, _), slots) in found.iter_mut().zip(spread(ranks, &offered)) {
            host.slots = slots;
        }
    }
    match hints.pop() {
        None => Ok(Some(found)),
        Some(hint) => Err(UserError { errors, hint }),
    }
}

/// How many of the offered slots each host keeps so that the ranks are spread evenly: as if one host
/// after the other took one more, as often as needed. Hosts keep at least one slot, and all of them
/// if there are too few for the ranks.
fn spread(ranks: u32, offered: &[u32]) -> Vec<u32> {
    let kept = |limit: u32| offered.iter().map(move |slots| *slots.min(&limit));
    let most = offered.iter().copied().max().unwrap_or(0);
    let enough = |limit: &u32| kept(*limit).sum::<u32>() >= ranks;
    let limit = (1..most).find(enough).unwrap_or(most);
    // Only the first hosts need the last round.
    let mut excess = kept(limit).sum::<u32>().saturating_sub(ranks);
    let mut slots: Vec<u32> = kept(limit).collect();
    for slots in slots.iter_mut().rev().filter(|slots| **slots == limit && limit > 1) {
        if excess > 0 {
            *slots -= 1;
            excess -= 1;
        }
    }
    slots
}

/// A host under a name that no other has: several standing agents may run on one machine.
fn host(
    agent: &StandingAgent,
    info: &StandingInfo,
    others: &[(Host, ReachMethod)],
) -> (Host, ReachMethod) {
    let is_taken = |name: &String| others.iter().any(|(host, _)| host.name == *name);
    let numbered = (2..).map(|number| format!("{}-{number}", agent.host));
    let mut names = std::iter::once(agent.host.clone()).chain(numbered);
    let name = names.find(|name| !is_taken(name)).unwrap_or_default();
    let host = Host { name, user: None, slots: info.slots };
    (host, ReachMethod::Standing(agent.clone()))
}

#[cfg(test)]
mod tests {
    use super::spread;

    #[test]
    fn ranks_are_spread_over_all_hosts() {
        for (ranks, offered, expected) in [
            (3, &[2, 2, 2][..], &[1, 1, 1][..]),
            (4, &[2, 2, 2], &[2, 1, 1]),
            (5, &[2, 2, 2], &[2, 2, 1]),
            (5, &[1, 64, 2], &[1, 2, 2]),
            (8, &[1, 64, 2], &[1, 5, 2]),
            (2, &[4, 4, 4], &[1, 1, 1]),
            (9, &[2, 2], &[2, 2]),
            (1, &[], &[]),
        ] {
            assert_eq!(spread(ranks, offered), expected, "{ranks} ranks on {offered:?}");
        }
    }
}
