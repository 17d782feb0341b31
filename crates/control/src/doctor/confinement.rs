//! What a container leaves a process: which one it is in, its limits, and what it may not do.

use serde::{Deserialize, Serialize};

use super::{Finding, HostReport};
use crate::counted;

/// Threads and processes of a rank with a framework and data loaders.
const PROCESSES_OF_A_RANK: u64 = 256;

/// The capabilities of an unconfined root; the kernel may know more, or fewer.
const ALL_CAPABILITIES: u64 = (1 << 41) - 1;

/// Names of capabilities, by their numbers.
const CAPABILITIES: [&str; 41] = [
    "chown",
    "dac_override",
    "dac_read_search",
    "fowner",
    "fsetid",
    "kill",
    "setgid",
    "setuid",
    "setpcap",
    "linux_immutable",
    "net_bind_service",
    "net_broadcast",
    "net_admin",
    "net_raw",
    "ipc_lock",
    "ipc_owner",
    "sys_module",
    "sys_rawio",
    "sys_chroot",
    "sys_ptrace",
    "sys_pacct",
    "sys_admin",
    "sys_boot",
    "sys_nice",
    "sys_resource",
    "sys_time",
    "sys_tty_config",
    "mknod",
    "lease",
    "audit_write",
    "audit_control",
    "setfcap",
    "mac_override",
    "mac_admin",
    "syslog",
    "wake_alarm",
    "block_suspend",
    "audit_read",
    "perfmon",
    "bpf",
    "checkpoint_restore",
];

/// What a process on a host may use and do, besides its resource limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// The kind of container that it is in, if it is in one.
    pub container: Option<String>,
    /// Number of the user.
    pub user: u32,
    /// CPU quota of the control group, in thousandths of a CPU.
    pub cpu_quota_millis: Option<u64>,
    /// Memory limit of the control group.
    pub memory_limit_bytes: Option<u64>,
    /// How many processes and threads the control group may have.
    pub process_limit: Option<u64>,
    /// The effective capabilities, as the kernel's bit mask.
    pub capabilities: u64,
    /// Whether a seccomp filter limits system calls.
    pub seccomp: bool,
    /// Whether the root file system cannot be written.
    pub read_only_root: bool,
    /// Why ranks cannot share memory, if so.
    pub no_shared_memory: Option<String>,
}

/// Traces that containers leave.
#[derive(Clone, Debug, Default)]
pub struct ContainerSigns {
    /// Those of these files that exist: `/.dockerenv`, `/run/.containerenv`.
    pub files: Vec<String>,
    /// Value of the variable `container` of the first process.
    pub variable: Option<String>,
    /// Whether Kubernetes has set the variables of its API server.
    pub has_kubernetes_variables: bool,
    /// Whether Apptainer or Singularity has set its variable.
    pub has_apptainer_variable: bool,
    /// `/proc/self/cgroup`.
    pub cgroups: String,
    /// Whether this process has a PID namespace other than the machine's first.
    pub has_own_processes: bool,
}

/// The kind of container that leaves these signs, for people.
pub fn container(signs: &ContainerSigns) -> Option<String> {
    let file = |name: &str| signs.files.iter().any(|file| file == name);
    let group = |part: &str| signs.cgroups.contains(part);
    let kind = if signs.has_kubernetes_variables || group("kubepods") {
        "Kubernetes"
    } else if file("/.dockerenv") || group("/docker/") || group("docker-") {
        "Docker"
    } else if file("/run/.containerenv") || group("libpod") {
        "Podman"
    } else if signs.has_apptainer_variable {
        "Apptainer"
    } else if let Some(kind) = &signs.variable {
        kind
    } else if signs.has_own_processes {
        "a container"
    } else {
        return None;
    };
    Some(kind.to_owned())
}

impl Confinement {
    /// The CPU quota, for people: `1.5`.
    pub fn cpu_quota(&self) -> Option<String> {
        let millis = self.cpu_quota_millis?;
        let text = format!("{}.{:03}", millis / 1000, millis % 1000);
        Some(text.trim_end_matches('0').trim_end_matches('.').to_owned())
    }

    /// The capabilities, for people: `all`, `none`, or their names.
    pub fn capability_names(&self) -> String {
        let has = |number: usize| self.capabilities & (1 << number) != 0;
        let lacking = (0..CAPABILITIES.len()).filter(|number| !has(*number)).count();
        let names = |wanted: &dyn Fn(usize) -> bool| {
            let named = CAPABILITIES.iter().enumerate().filter(|(number, _)| wanted(*number));
            named.map(|(_, name)| *name).collect::<Vec<_>>().join(" ")
        };
        match self.capabilities & ALL_CAPABILITIES {
            0 => "none".into(),
            ALL_CAPABILITIES => "all".into(),
            _ if lacking <= 3 => format!("all but {}", names(&|number| !has(number))),
            _ => names(&has),
        }
    }

    /// Whether there is anything to say about it.
    pub fn is_noteworthy(&self) -> bool {
        let Confinement { container, seccomp, read_only_root, .. } = self;
        let limits = [self.cpu_quota_millis, self.memory_limit_bytes];
        container.is_some() || *seccomp || *read_only_root || limits.iter().any(Option::is_some)
    }
}

pub(super) fn findings(host: &HostReport, confinement: &Confinement) -> Vec<Finding> {
    let mut found = Vec::new();
    let needed = PROCESSES_OF_A_RANK * u64::from(host.slots).max(1);
    if let Some(limit) = confinement.process_limit.filter(|limit| *limit < needed) {
        found.push(Finding::warning(
            &host.name,
            format!(
                "its container may have only {limit} processes and threads; {} may need {needed}",
                counted(host.slots, "rank")
            ),
            "raise it: `--pids-limit` of `docker run`, or `podPidsLimit` of the kubelet",
        ));
    }
    if let Some(reason) = &confinement.no_shared_memory {
        found.push(Finding::warning(
            &host.name,
            format!("ranks there cannot share memory and use TCP instead: {reason}"),
            "allow `memfd_create` and abstract unix sockets in the container's security profile",
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_recognized_by_what_they_leave() {
        let signs = ContainerSigns::default;
        let docker = || ContainerSigns { files: vec!["/.dockerenv".into()], ..signs() };
        let pod = ContainerSigns { has_kubernetes_variables: true, ..docker() };
        let cgroups = "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-2.scope".to_owned();
        let old = ContainerSigns { cgroups: "4:memory:/docker/ab12\n".into(), ..signs() };
        let nspawn = ContainerSigns { variable: Some("systemd-nspawn".into()), ..signs() };
        for (signs, expected) in [
            (docker(), Some("Docker")),
            (pod, Some("Kubernetes")),
            (ContainerSigns { cgroups, ..signs() }, Some("Kubernetes")),
            (old, Some("Docker")),
            (
                ContainerSigns { files: vec!["/run/.containerenv".into()], ..signs() },
                Some("Podman"),
            ),
            (ContainerSigns { has_apptainer_variable: true, ..signs() }, Some("Apptainer")),
            (nspawn, Some("systemd-nspawn")),
            (ContainerSigns { has_own_processes: true, ..signs() }, Some("a container")),
            (ContainerSigns { cgroups: "0::/user.slice\n".into(), ..signs() }, None),
        ] {
            assert_eq!(container(&signs).as_deref(), expected, "{signs:?}");
        }
    }

    #[test]
    fn limits_and_capabilities_are_shown_in_words() {
        let of = |capabilities| Confinement { capabilities, ..Confinement::default() };
        assert_eq!(of(0).capability_names(), "none");
        assert_eq!(of(u64::MAX).capability_names(), "all");
        assert_eq!(of(ALL_CAPABILITIES & !(1 << 24)).capability_names(), "all but sys_resource");
        assert_eq!(of(1 << 5 | 1 << 13).capability_names(), "kill net_raw");
        for (millis, expected) in [(500, "0.5"), (2000, "2"), (1250, "1.25")] {
            let quota = Confinement { cpu_quota_millis: Some(millis), ..Confinement::default() };
            assert_eq!(quota.cpu_quota().as_deref(), Some(expected));
            assert!(quota.is_noteworthy());
        }
        assert!(!Confinement::default().is_noteworthy());
    }

    #[test]
    fn a_container_that_is_too_tight_is_named_with_what_to_do() {
        let host = HostReport { name: "pod".into(), slots: 4, ..HostReport::default() };
        let tight = Confinement {
            process_limit: Some(100),
            no_shared_memory: Some("memfd_create: Operation not permitted".into()),
            ..Confinement::default()
        };
        let found = findings(&host, &tight);
        assert_eq!(found.len(), 2);
        assert!(found[0].what.contains("only 100 processes and threads; 4 ranks may need 1024"));
        assert!(found[1].what.ends_with("use TCP instead: memfd_create: Operation not permitted"));
        assert!(findings(&host, &Confinement::default()).is_empty());
    }
}
