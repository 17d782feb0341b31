//! The environment of a rank.
//!
//! A rank inherits the launcher's environment and gets the variables of Horovod, of
//! torch.distributed and TensorFlow (so that scripts for these start unchanged) and of Ronde. The
//! job's key reaches a rank in no other way. On another host, variables that describe a host or a
//! login keep that host's values.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::ffi::OsStringExt;

use ronde_control::CUDA_VISIBLE_DEVICES;
use ronde_control::host_setup::HostPlan;
use ronde_control::job::Start;
use ronde_control::settings::{
    HOROVOD_CONTROLLER, HOROVOD_CROSS_RANK, HOROVOD_CROSS_SIZE, HOROVOD_ELASTIC, HOROVOD_HOSTNAME,
    HOROVOD_LOCAL_RANK, HOROVOD_LOCAL_SIZE, HOROVOD_RANK, HOROVOD_SIZE, RONDE_ADDRESSES,
    RONDE_ADVERTISE, RONDE_JOB_KEY, RONDE_LATECOMER, RONDE_PORT_RANGE, RONDE_RENDEZVOUS,
    RONDE_WORKER,
};
use ronde_control::wire::JobKey;

use super::cluster;
use crate::hosts::Slot;
use crate::supervise::MARK;

/// A process and its place in the job.
#[derive(Clone, Copy)]
pub(super) struct WorkerPlace<'a> {
    pub(super) slot: &'a Slot,
    pub(super) start: &'a Start,
    /// Whether it may outlive its world and get another rank in the next one.
    pub(super) is_elastic: bool,
    /// Where torch.distributed's own rendezvous would be.
    pub(super) master: (IpAddr, u16),
    /// The ranks as workers of TensorFlow's own strategies.
    pub(super) cluster: &'a [SocketAddr],
}

/// Variables that belong to a host or to a login there, and are not passed to other hosts.
const OWN: &[&str] = &[
    CUDA_VISIBLE_DEVICES,
    "DBUS_SESSION_BUS_ADDRESS",
    "DISPLAY",
    "HOME",
    "HOSTNAME",
    "LOGNAME",
    "MAIL",
    "OLDPWD",
    "PWD",
    RONDE_ADVERTISE.name,
    "SHELL",
    "SHLVL",
    "SSH_AUTH_SOCK",
    "SSH_CLIENT",
    "SSH_CONNECTION",
    "SSH_TTY",
    "TMPDIR",
    "USER",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "XDG_RUNTIME_DIR",
    "XDG_SESSION_ID",
    "_",
];

/// The names of the variables that a rank on another host takes from that host.
pub(super) fn own() -> Vec<Vec<u8>> {
    OWN.iter().map(|name| name.as_bytes().to_vec()).collect()
}

/// Whether a variable is passed to another host: not if it belongs to a host, and not if it is a
/// shell function.
pub(super) fn travels(name: &OsString) -> bool {
    let name = name.to_string_lossy();
    !OWN.contains(&name.as_ref()) && !name.starts_with("BASH_FUNC_")
}

/// The environment of one process, which inherits `inherited`. `mark` marks the processes of its
/// host; `plan` is what host set-up found out about the host.
pub(super) fn of(
    inherited: impl Iterator<Item = (OsString, OsString)>,
    (key, mark): (&JobKey, &str),
    plan: &HostPlan,
    part: WorkerPlace<'_>,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let WorkerPlace { slot, start, .. } = part;
    let nowhere = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let meeting = plan.rendezvous.first();
    let address = meeting.map_or(nowhere, |address| address.ip()).to_string();
    let port = meeting.map_or(0, |address| address.port()).to_string();
    let list =
        |addresses: &mut dyn Iterator<Item = String>| addresses.collect::<Vec<_>>().join(",");
    let rendezvous = list(&mut plan.rendezvous.iter().map(ToString::to_string));
    let listen = list(&mut plan.listen.iter().map(ToString::to_string));
    let size = start.size.to_string();
    let own = [
        (HOROVOD_RANK.name, slot.rank.0.to_string()),
        (HOROVOD_SIZE.name, size.clone()),
        (HOROVOD_LOCAL_RANK.name, slot.local_rank.to_string()),
        (HOROVOD_LOCAL_SIZE.name, slot.local_size.to_string()),
        (HOROVOD_CROSS_RANK.name, slot.cross_rank.to_string()),
        (HOROVOD_CROSS_SIZE.name, slot.cross_size.to_string()),
        (HOROVOD_HOSTNAME.name, slot.host.clone()),
        (HOROVOD_CONTROLLER.name, "gloo".into()),
        ("HOROVOD_CPU_OPERATIONS", "gloo".into()),
        ("HOROVOD_GLOO_RENDEZVOUS_ADDR", address),
        ("HOROVOD_GLOO_RENDEZVOUS_PORT", port),
        ("PYTHONUNBUFFERED", "1".into()),
        ("RANK", slot.rank.0.to_string()),
        ("WORLD_SIZE", size),
        ("LOCAL_RANK", slot.local_rank.to_string()),
        ("LOCAL_WORLD_SIZE", slot.local_size.to_string()),
        ("MASTER_ADDR", part.master.0.to_string()),
        ("MASTER_PORT", part.master.1.to_string()),
        (RONDE_RENDEZVOUS.name, rendezvous),
        (RONDE_ADDRESSES.name, listen),
        (RONDE_JOB_KEY.name, key.to_hex()),
        (MARK, mark.to_owned()),
    ];
    let mut all: BTreeMap<Vec<u8>, Vec<u8>> =
        inherited.map(|(name, value)| (name.into_vec(), value.into_vec())).collect();
    all.extend(own.map(|(name, value)| (name.as_bytes().to_vec(), value.into_bytes())));
    // A job started by a worker of an elastic job is a separate job.
    let late = part.is_elastic && start.late;
    for (setting, value) in [
        (HOROVOD_ELASTIC, part.is_elastic.then(|| "1".to_owned())),
        (RONDE_WORKER, part.is_elastic.then(|| start.worker.0.to_string())),
        (RONDE_LATECOMER, late.then(|| "1".to_owned())),
        (RONDE_PORT_RANGE, (!plan.range.is_any()).then(|| plan.range.to_string())),
    ] {
        match value {
            Some(value) => all.insert(setting.name.into(), value.into_bytes()),
            None => all.remove(setting.name.as_bytes()),
        };
    }
    // A cluster that the user has described takes precedence.
    if let Some(config) = cluster::config(part.cluster, slot.rank) {
        all.entry(b"TF_CONFIG".to_vec()).or_insert_with(|| config.into_bytes());
    }
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ronde_control::job::AgentId;
    use ronde_control::{Rank, Worker};

    fn start(worker: u32) -> Start {
        Start {
            worker: Worker(worker),
            agent: AgentId(0),
            host: "node".into(),
            slot: 1,
            rank: Rank(3),
            size: 4,
            late: false,
        }
    }

    #[test]
    fn what_describes_a_host_or_a_login_stays_there() {
        for (name, expected) in [
            ("HOME", false),
            ("CUDA_VISIBLE_DEVICES", false),
            ("BASH_FUNC_module%%", false),
            ("RONDE_NCCL", true),
            ("PYTHONPATH", true),
        ] {
            assert_eq!(travels(&name.into()), expected, "{name}");
        }
    }

    #[test]
    fn a_rank_finds_its_place_and_what_the_user_set() {
        let slot = Slot {
            rank: Rank(3),
            host: "node".into(),
            local_rank: 1,
            local_size: 2,
            cross_rank: 1,
            cross_size: 2,
        };
        let inherited = [
            ("HOME", "/root"),
            ("HOROVOD_RANK", "77"),
            ("RONDE_JOB", "outer"),
            ("RONDE_WORKER", "4"),
        ]
        .map(|(name, value)| (name.into(), value.into()));
        let key = JobKey::from_entropy([1; 32]);
        let part = WorkerPlace {
            slot: &slot,
            start: &start(3),
            is_elastic: false,
            master: ("10.0.0.7".parse().unwrap(), 666),
            cluster: &["10.0.0.2:7".parse().unwrap()],
        };
        let plan = HostPlan {
            rendezvous: ["10.0.0.1:555", "[fd00::1]:555"].map(|at| at.parse().unwrap()).into(),
            listen: ["10.0.0.2", "fd00::2"].map(|at| at.parse().unwrap()).into(),
            ..HostPlan::default()
        };
        let env = of(inherited.into_iter(), (&key, "mark"), &plan, part);
        let value = |name: &str| {
            let found: Vec<_> = env.iter().filter(|(key, _)| key == name.as_bytes()).collect();
            assert_eq!(found.len(), 1, "{name}");
            String::from_utf8(found[0].1.clone()).unwrap()
        };
        for (name, expected) in [
            ("HOME", "/root"),
            ("HOROVOD_RANK", "3"),
            ("HOROVOD_CROSS_SIZE", "2"),
            ("WORLD_SIZE", "4"),
            ("MASTER_PORT", "666"),
            ("MASTER_ADDR", "10.0.0.7"),
            ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "10.0.0.1"),
            ("RONDE_RENDEZVOUS", "10.0.0.1:555,[fd00::1]:555"),
            ("RONDE_ADDRESSES", "10.0.0.2,fd00::2"),
            ("RONDE_JOB", "mark"),
            (
                "TF_CONFIG",
                r#"{"cluster":{"worker":["10.0.0.2:7"]},"task":{"index":3,"type":"worker"}}"#,
            ),
        ] {
            assert_eq!(value(name), expected, "{name}");
        }
        assert_eq!(value("RONDE_JOB_KEY").len(), 64);
        assert!(!env.iter().any(|(name, _)| name == b"RONDE_WORKER"), "it is another job's");
        let inherited = [("TF_CONFIG".into(), "{}".into())];
        let part = WorkerPlace { start: &start(9), is_elastic: true, ..part };
        let env = of(inherited.into_iter(), (&key, "mark"), &plan, part);
        for (name, value) in [("TF_CONFIG", "{}"), ("HOROVOD_ELASTIC", "1"), ("RONDE_WORKER", "9")]
        {
            assert!(env.contains(&(name.into(), value.into())), "{name}");
        }
    }
}
