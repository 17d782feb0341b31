//! What the container of this process leaves it, for `ronde doctor`.

use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use ronde_control::doctor::{Confinement, ContainerSigns, container};
use rustix::fs::{MemfdFlags, StatVfsMountFlags, memfd_create, statvfs};
use rustix::process::geteuid;

use crate::cgroup;

/// The PID namespace of a machine's first process, as the kernel numbers it.
const FIRST_PROCESSES: &str = "pid:[4026531836]";

pub(super) fn find() -> Confinement {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let limits = cgroup::limits();
    let root = statvfs("/").map(|root| root.f_flag);
    Confinement {
        container: container(&signs()),
        user: geteuid().as_raw(),
        cpu_quota_millis: limits.cpu_millis,
        memory_limit_bytes: limits.memory_bytes,
        process_limit: limits.processes,
        capabilities: field(&status, "CapEff:")
            .and_then(|mask| u64::from_str_radix(mask, 16).ok())
            .unwrap_or(0),
        seccomp: field(&status, "Seccomp:").is_some_and(|mode| mode != "0"),
        read_only_root: root.is_ok_and(|flags| flags.contains(StatVfsMountFlags::RDONLY)),
        no_shared_memory: no_shared_memory(),
    }
}

fn signs() -> ContainerSigns {
    let exists = |file: &&str| Path::new(file).exists();
    let files = ["/.dockerenv", "/run/.containerenv"].into_iter().filter(exists);
    let first = fs::read("/proc/1/environ").unwrap_or_default();
    let first = String::from_utf8_lossy(&first).into_owned();
    let set = |name: &str| std::env::var_os(name).is_some();
    ContainerSigns {
        files: files.map(str::to_owned).collect(),
        variable: first.split('\0').find_map(|it| it.strip_prefix("container=")).map(str::to_owned),
        has_kubernetes_variables: set("KUBERNETES_SERVICE_HOST")
            || first.contains("KUBERNETES_SERVICE_HOST="),
        has_apptainer_variable: set("APPTAINER_CONTAINER") || set("SINGULARITY_CONTAINER"),
        cgroups: cgroup::groups(),
        has_own_processes: fs::read_link("/proc/self/ns/pid")
            .is_ok_and(|own| own.as_os_str() != FIRST_PROCESSES),
    }
}

/// Why ranks cannot share memory here, if so: what they do at the start is tried.
fn no_shared_memory() -> Option<String> {
    if let Err(error) = memfd_create("ronde", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING) {
        return Some(format!("memfd_create: {error}"));
    }
    let name = format!("ronde-doctor-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(name);
    let bound = address.and_then(|address| UnixListener::bind_addr(&address));
    bound.err().map(|error| format!("abstract unix sockets: {error}"))
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_may_share_memory_and_knows_its_user() {
        let found = find();
        assert_eq!(found.user, geteuid().as_raw());
        assert_eq!(found.no_shared_memory, None);
    }

    #[test]
    fn fields_of_the_status_are_read() {
        let status = "Name:\tx\nCapEff:\t00000000a80425fb\nSeccomp:\t2\n";
        assert_eq!(field(status, "CapEff:"), Some("00000000a80425fb"));
        assert_eq!(field(status, "Seccomp:"), Some("2"));
        assert_eq!(field(status, "Seccomp_filters:"), None);
    }
}
