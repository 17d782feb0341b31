//! The processes of this machine, from `/proc`.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::process::{Pid, geteuid};

use super::{MARK, Scope};

/// A process at one moment. Its start time distinguishes it from a later one with the same ID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) command: String,
    /// As in `/proc/PID/stat`: `R`, `S`, `D`, `T` and so on.
    pub(crate) state: char,
    parent: i32,
    pub(crate) session: i32,
    flags: u64,
    pub(crate) started: u64,
}

impl Process {
    /// The process with this ID, if it is alive.
    pub(crate) fn of(pid: i32) -> Option<Process> {
        // Its name may contain any bytes.
        parse(pid, &String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/stat")).ok()?))
    }

    /// Whether it is exiting: it closes its files before it is gone.
    pub(crate) fn is_ending(&self) -> bool {
        const PF_EXITING: u64 = 4;
        self.flags & PF_EXITING != 0
    }
}

/// All live processes.
pub(crate) fn living() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()?.parse().ok());
    pids.filter_map(Process::of).collect()
}

/// All live processes, except `root`, that match the mark or the scope.
pub(super) fn find(mark: &str, scope: Scope, root: Pid) -> Vec<Process> {
    let all = living();
    let root = root.as_raw_nonzero().get();
    let family = match scope {
        Scope::Marked => HashSet::new(),
        Scope::Family => descendants(&all, root),
    };
    let entry = format!("{MARK}={mark}");
    let wanted = |process: &Process| {
        process.pid != root && (family.contains(&process.pid) || is_marked(process.pid, &entry))
    };
    all.into_iter().filter(wanted).collect()
}

/// The nearest ancestor of this process without this variable, and its start time: the process that
/// set the variable for us, however many shells are in between.
pub(crate) fn origin(variable: &str) -> Option<(i32, u64)> {
    let mut process = Process::of(std::process::id() as i32)?;
    let start = format!("{variable}=");
    loop {
        process = Process::of(process.parent)?;
        // We cannot read the environment of another user's process, which is not part of the job.
        let environment = fs::read(format!("/proc/{}/environ", process.pid)).unwrap_or_default();
        let mut entries = environment.split(|byte| *byte == 0);
        if !entries.any(|entry| entry.starts_with(start.as_bytes())) {
            return Some((process.pid, process.started));
        }
    }
}

/// Parses a line of `/proc/PID/stat`; `None` if the process is dead.
fn parse(pid: i32, stat: &str) -> Option<Process> {
    // The name, in parentheses, may itself contain spaces and parentheses.
    let (front, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let state = fields.first()?.chars().next()?;
    if matches!(state, 'Z' | 'X' | 'x') {
        return None;
    }
    Some(Process {
        pid,
        command: front.split_once('(')?.1.to_owned(),
        state,
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        flags: fields.get(6)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

fn descendants(all: &[Process], root: i32) -> HashSet<i32> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for process in all {
        children.entry(process.parent).or_default().push(process.pid);
    }
    let mut found = HashSet::new();
    let mut open = vec![root];
    while let Some(pid) = open.pop() {
        for child in children.remove(&pid).unwrap_or_default() {
            found.insert(child);
            open.push(child);
        }
    }
    found
}

fn is_marked(pid: i32, entry: &str) -> bool {
    let own = fs::metadata(format!("/proc/{pid}"))
        .is_ok_and(|metadata| metadata.uid() == geteuid().as_raw());
    own && fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|item| item == entry.as_bytes()))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    const STAT: &str = "77 (a) b (c) S 5 77 77 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 1234 9 9";

    #[test]
    fn parentheses_in_a_name_are_parsed() {
        let seen = parse(77, STAT).unwrap();
        assert_eq!((seen.pid, seen.parent, seen.session), (77, 5, 77));
        assert_eq!((seen.state, seen.started, seen.is_ending()), ('S', 1234, false));
        assert_eq!(seen.command, "a) b (c");
        assert_eq!(parse(77, &STAT.replace(" S 5", " Z 5")), None);
        assert_eq!(parse(77, "77 (x"), None);
    }

    #[test]
    fn a_process_whose_name_is_not_utf8_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join(OsStr::from_bytes(b"x\xff"));
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
        let mut child = std::process::Command::new(&program).arg("100").spawn().unwrap();
        let seen = Process::of(child.id() as i32).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(seen.command, "x\u{fffd}");
    }

    #[test]
    fn descendants_of_all_generations_are_found_and_cycles_end() {
        let process = |pid, parent| Process { pid, parent, ..parse(77, STAT).unwrap() };
        let all = [process(2, 1), process(3, 2), process(4, 3), process(9, 8), process(8, 9)];
        assert_eq!(descendants(&all, 2), HashSet::from([3, 4]));
        assert_eq!(descendants(&all, 8), HashSet::from([9, 8]));
    }

    #[test]
    fn this_process_is_alive_but_never_selected() {
        let own = rustix::process::getpid();
        assert!(Process::of(own.as_raw_nonzero().get()).is_some_and(|own| !own.is_ending()));
        assert_eq!(Process::of(i32::MAX), None);
        let found = find("no such mark", Scope::Marked, own);
        assert_eq!(found, []);
    }
}
