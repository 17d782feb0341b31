//! The control group of this process, of version 1 or 2: where its files are, and the limits in
//! them.

use std::fs;

/// The limits that a control group or one of those above it sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupLimits {
    /// CPU quota, in thousandths of a CPU.
    pub(crate) cpu_millis: Option<u64>,
    /// Memory, in bytes.
    pub(crate) memory_bytes: Option<u64>,
    /// Memory in use by the group whose limit that is, in bytes.
    pub(crate) memory_used: Option<u64>,
    /// Processes and threads.
    pub(crate) processes: Option<u64>,
}

/// A value that only means "no limit": version 1 writes the largest number of pages instead.
const NO_LIMIT: u64 = 1 << 60;

/// The limits of this process's group.
pub(crate) fn limits() -> GroupLimits {
    limits_from(&groups(), |path| fs::read_to_string(path).ok())
}

fn limits_from(groups: &str, read: impl Fn(&str) -> Option<String>) -> GroupLimits {
    let each = |controller: &str, of: &dyn Fn(&str) -> Option<u64>| {
        folders(groups, controller).iter().filter_map(|folder| of(folder)).min()
    };
    let number = |path: String| read(&path)?.trim().parse::<u64>().ok();
    let limit = |path: String| number(path).filter(|number| *number < NO_LIMIT);
    let cpu = |folder: &str| {
        let text = read(&format!("{folder}/cpu.max"));
        let words: Vec<u64> = text
            .iter()
            .flat_map(|text| text.split_whitespace())
            .map_while(|it| it.parse().ok())
            .collect();
        let (quota, period) = match words[..] {
            [quota, period] => (quota, period),
            _ => (
                number(format!("{folder}/cpu.cfs_quota_us"))?,
                number(format!("{folder}/cpu.cfs_period_us"))?,
            ),
        };
        (quota * 1000).checked_div(period)
    };
    let memory = |folder: &str| {
        let most = limit(format!("{folder}/memory.max"))
            .or_else(|| limit(format!("{folder}/memory.limit_in_bytes")))?;
        let used = number(format!("{folder}/memory.current"))
            .or_else(|| number(format!("{folder}/memory.usage_in_bytes")));
        Some((most, used))
    };
    let tightest = folders(groups, "memory").iter().filter_map(|folder| memory(folder)).min();
    GroupLimits {
        cpu_millis: each("cpu", &cpu),
        memory_bytes: tightest.map(|(most, _)| most),
        memory_used: tightest.and_then(|(_, used)| used),
        processes: each("pids", &|folder| limit(format!("{folder}/pids.max"))),
    }
}

/// `/proc/self/cgroup`.
pub(crate) fn groups() -> String {
    fs::read_to_string("/proc/self/cgroup").unwrap_or_default()
}

/// The folders of a controller, most specific first: that of this process's group and of those above
/// it. In a container the path may be the outer one; then the mounted root is the group.
pub(crate) fn folders(groups: &str, controller: &str) -> Vec<String> {
    let mut folders = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let root = match controllers {
            "" => "/sys/fs/cgroup".to_owned(),
            names if names.split(',').any(|name| name == controller) => {
                format!("/sys/fs/cgroup/{controller}")
            }
            _ => continue,
        };
        let mut path = path.trim_end_matches('/');
        while !path.is_empty() {
            folders.push(format!("{root}{path}"));
            path = path.rsplit_once('/').map_or("", |(above, _)| above);
        }
        folders.push(root);
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_both_versions_are_read_and_the_tightest_counts() {
        let files = |files: &'static [(&'static str, &'static str)]| {
            move |path: &str| {
                let found = files.iter().find(|(name, _)| *name == path);
                found.map(|(_, text)| (*text).to_owned())
            }
        };
        let second = files(&[
            ("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n"),
            ("/sys/fs/cgroup/a/cpu.max", "150000 100000\n"),
            ("/sys/fs/cgroup/a/b/memory.max", "1048576\n"),
            ("/sys/fs/cgroup/a/b/memory.current", "4096\n"),
            ("/sys/fs/cgroup/a/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/b/pids.max", "64\n"),
        ]);
        let expected = GroupLimits {
            cpu_millis: Some(1500),
            memory_bytes: Some(1 << 20),
            memory_used: Some(4096),
            processes: Some(64),
        };
        assert_eq!(limits_from("0::/a/b\n", second), expected);
        let first = files(&[
            ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
            ("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/pids/pids.max", "max\n"),
        ]);
        let groups = "3:pids:/\n2:cpu,cpuacct:/outer\n1:memory:/x\n0::/\n";
        let expected = GroupLimits { cpu_millis: Some(500), ..GroupLimits::default() };
        assert_eq!(limits_from(groups, first), expected);
        let none = files(&[("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")]);
        assert_eq!(limits_from(groups, none), GroupLimits::default());
    }

    #[test]
    fn folders_go_from_the_group_up_to_the_root() {
        let v2 = folders("0::/user.slice/x\n", "memory");
        let expected =
            ["/sys/fs/cgroup/user.slice/x", "/sys/fs/cgroup/user.slice", "/sys/fs/cgroup"];
        assert_eq!(v2, expected);
        let v1 = folders("5:cpu,cpuacct:/\n4:memory:/docker/ab\n", "memory");
        assert_eq!(v1[0], "/sys/fs/cgroup/memory/docker/ab");
        assert_eq!(v1.last().map(String::as_str), Some("/sys/fs/cgroup/memory"));
    }
}
