//! Counts the kernel's out-of-memory kills in this process's cgroup.

use std::fs;

/// Number of kills so far, zero without cgroups. Compare two values to know whether one happened in
/// between.
pub fn out_of_memory_kills() -> u64 {
    let group = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let count = paths(&group).iter().find_map(|path| count(&fs::read_to_string(path).ok()?));
    count.unwrap_or(0)
}

/// The files with the count, for cgroup v1 and v2, most specific first. In a container the path may
/// be the outer one; then the mounted root is the group.
fn paths(group: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for line in group.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        if controllers.is_empty() {
            paths.push(format!("/sys/fs/cgroup{path}/memory.events"));
            paths.push("/sys/fs/cgroup/memory.events".into());
        } else if controllers.split(',').any(|name| name == "memory") {
            paths.push(format!("/sys/fs/cgroup/memory{path}/memory.oom_control"));
            paths.push("/sys/fs/cgroup/memory/memory.oom_control".into());
        }
    }
    paths
}

fn count(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_cgroup_versions_are_understood() {
        let v2 = paths("0::/user.slice/x\n");
        assert_eq!(v2[0], "/sys/fs/cgroup/user.slice/x/memory.events");
        let v1 = paths("5:cpu,cpuacct:/\n4:memory:/docker/ab\n");
        assert_eq!(v1[0], "/sys/fs/cgroup/memory/docker/ab/memory.oom_control");
        assert_eq!(count("low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\n"), Some(2));
        assert_eq!(count("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"), Some(1));
        assert_eq!(count(""), None);
    }
}
