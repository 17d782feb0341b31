//! Which jobs of this user run on this machine: a file for each, in a directory that only the user may
//! enter, with what it takes to ask the job how it stands.
//!
//! The file holds the job's key, so the directory must belong to the user and be closed to everybody
//! else; otherwise no file is written, and the job runs without one. The driver removes its file when it
//! ends. What a driver that was killed has left is removed by the next who looks: its process is
//! gone, or another has its number.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ronde_control::wire::JobKey;
use rustix::process::getuid;

/// A job that runs.
#[derive(Clone)]
pub struct Entry {
    /// Its driver.
    pub pid: u32,
    /// Where its rendezvous listens.
    pub address: SocketAddr,
    /// Its key.
    pub key: JobKey,
    /// How many ranks it has.
    pub ranks: u32,
    /// What they run.
    pub command: String,
}

/// The directory of this user: in the one that the system made for such things, `runtime`, or in the
/// one for temporary files.
pub fn folder(runtime: Option<PathBuf>, temporary: &Path) -> PathBuf {
    match runtime.filter(|path| path.is_absolute() && path.is_dir()) {
        Some(runtime) => runtime.join("ronde"),
        None => temporary.join(format!("ronde-{}", getuid().as_raw())),
    }
}

/// A job's own file; it is gone when this is dropped.
pub struct Registration(PathBuf);

impl Registration {
    /// Writes the file.
    pub fn new(folder: &Path, entry: &Entry) -> io::Result<Registration> {
        if let Err(error) = DirBuilder::new().mode(0o700).create(folder)
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(error);
        }
        require_private(folder)?;
        let born = born(entry.pid).ok_or(io::ErrorKind::NotFound)?;
        let path = folder.join(format!("{}-{born}", entry.pid));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let registration = Registration(path);
        let address = match entry.address {
            SocketAddr::V4(it) if it.ip().is_unspecified() => {
                (Ipv4Addr::LOCALHOST, it.port()).into()
            }
            SocketAddr::V6(it) if it.ip().is_unspecified() => {
                (Ipv6Addr::LOCALHOST, it.port()).into()
            }
            address => address,
        };
        let command = entry.command.replace(['\n', '\r'], " ");
        let text = format!(
            "{}\n{address}\n{}\n{}\n{command}\n",
            process_space(),
            entry.key.to_hex(),
            entry.ranks
        );
        file.write_all(text.as_bytes())?;
        Ok(registration)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The jobs that run, oldest first. Files of jobs that are gone are removed.
pub fn jobs(folder: &Path) -> io::Result<Vec<Entry>> {
    match require_private(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    }
    let mut found = Vec::new();
    for file in fs::read_dir(folder)?.flatten() {
        let name = file.file_name().to_string_lossy().into_owned();
        let Some((pid, since)) = name.split_once('-') else { continue };
        let (Ok(pid), Ok(since)) = (pid.parse::<u32>(), since.parse::<u64>()) else { continue };
        let Ok(text) = fs::read_to_string(file.path()) else { continue };
        let mut lines = text.lines();
        // In another container the same number means another process, and nobody here can tell.
        if lines.next() != Some(process_space().as_str()) {
            continue;
        }
        if born(pid) != Some(since) {
            let _ = fs::remove_file(file.path());
            continue;
        }
        found.extend(read(pid, &mut lines).map(|entry| (since, entry)));
    }
    found.sort_by_key(|(since, entry)| (*since, entry.pid));
    Ok(found.into_iter().map(|(_, entry)| entry).collect())
}

fn read<'a>(pid: u32, lines: &mut impl Iterator<Item = &'a str>) -> Option<Entry> {
    let address = lines.next()?.parse().ok()?;
    let key = JobKey::from_hex(lines.next()?).ok()?;
    let ranks = lines.next()?.parse().ok()?;
    Some(Entry { pid, address, key, ranks, command: lines.next()?.to_owned() })
}

/// Refuses a directory that is not the user's alone: somebody else may have made it first.
fn require_private(folder: &Path) -> io::Result<()> {
    let meta = fs::symlink_metadata(folder)?;
    if meta.is_dir() && meta.uid() == getuid().as_raw() && meta.mode() & 0o077 == 0 {
        return Ok(());
    }
    let folder = folder.display();
    Err(io::Error::other(format!("`{folder}` is not a directory that only you may enter")))
}

/// When a living process began, in the system's ticks: together with its number it means one process.
fn born(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let start = fields.nth(18)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(start)
}

/// The world of process numbers that this process lives in.
fn process_space() -> String {
    let link = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    link.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn entry(pid: u32) -> Entry {
        Entry {
            pid,
            address: "0.0.0.0:7".parse().unwrap(),
            key: JobKey::from_entropy([5; 32]),
            ranks: 4,
            command: "python\ntrain.py".into(),
        }
    }

    #[test]
    fn a_job_is_found_while_it_runs_and_only_its_user_can_read_of_it() {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("ronde");
        assert_eq!(jobs(&folder).unwrap().len(), 0);
        let registration = Registration::new(&folder, &entry(std::process::id())).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(&registration.0).unwrap().mode() & 0o777, 0o600);
        let found = jobs(&folder).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].address, "127.0.0.1:7".parse().unwrap());
        assert_eq!((found[0].ranks, found[0].command.as_str()), (4, "python train.py"));
        assert_eq!(found[0].key.to_hex(), entry(1).key.to_hex());
        drop(registration);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    }

    #[test]
    fn what_a_killed_driver_left_is_removed_and_other_containers_are_left_alone() {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("ronde");
        let own = Registration::new(&folder, &entry(std::process::id())).unwrap();
        let text = fs::read_to_string(&own.0).unwrap();
        fs::write(folder.join("4194304-1"), &text).unwrap();
        fs::write(folder.join(format!("{}-1", std::process::id())), &text).unwrap();
        fs::write(folder.join("4194304-2"), text.replace("pid:", "other:")).unwrap();
        fs::write(folder.join("nonsense"), "x").unwrap();
        assert_eq!(jobs(&folder).unwrap().len(), 1);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 3);
    }

    #[test]
    fn a_directory_that_others_may_enter_is_refused() {
        let outer = tempfile::tempdir().unwrap();
        let open = outer.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
        let link = outer.path().join("link");
        std::os::unix::fs::symlink(outer.path(), &link).unwrap();
        for folder in [open, link] {
            assert!(Registration::new(&folder, &entry(std::process::id())).is_err());
            assert!(jobs(&folder).is_err());
        }
    }

    #[test]
    fn the_directory_is_the_systems_or_one_by_user() {
        let there = tempfile::tempdir().unwrap();
        let temporary = Path::new("/t");
        assert_eq!(folder(Some(there.path().into()), temporary), there.path().join("ronde"));
        for none in [None, Some("relative".into()), Some("/no/such/place".into())] {
            assert!(folder(none, temporary).starts_with("/t/"));
        }
    }
}
