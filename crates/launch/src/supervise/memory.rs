//! Counts the kernel's out-of-memory kills in this process's cgroup.

use std::fs;

use crate::cgroup;

/// Number of kills so far, zero without cgroups. Compare two values to know whether one happened in
/// between.
pub fn out_of_memory_kills() -> u64 {
    let count =
        paths(&cgroup::groups()).iter().find_map(|path| count(&fs::read_to_string(path).ok()?));
    count.unwrap_or(0)
}

/// The files with the count, for cgroup v1 and v2, most specific first.
fn paths(groups: &str) -> Vec<String> {
    let folders = cgroup::folders(groups, "memory");
    let files = |folder: &String| {
        ["memory.events", "memory.oom_control"].map(|file| format!("{folder}/{file}"))
    };
    folders.iter().flat_map(files).collect()
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
        assert_eq!(v1[1], "/sys/fs/cgroup/memory/docker/ab/memory.oom_control");
        assert_eq!(count("low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\n"), Some(2));
        assert_eq!(count("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"), Some(1));
        assert_eq!(count(""), None);
    }
}
