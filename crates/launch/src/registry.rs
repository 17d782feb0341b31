//! The user's running jobs on this machine: one file per job, in a directory that only the user may
//! enter, with everything needed to ask the job for its status.
//!
//! The file holds the job's key, so the directory must belong to the user and be closed to everyone
//! else; without such a directory (`private`) no file is written, and the job runs without one. The
//! driver removes its file when it exits. A file left by a killed driver is removed by the guardian
//! of its host, if the job had ranks there, and by the next process that lists jobs: the driver's
//! process is gone, or another one has its process ID.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use ronde_control::wire::JobKey;
use serde::{Deserialize, Serialize};

use crate::private::{PrivateDirs, PrivateFile};
use crate::supervise::Process;

/// A running job.
#[derive(Clone, Serialize, Deserialize)]
pub struct Entry {
    /// Process ID of its driver.
    pub pid: u32,
    /// Address of its rendezvous.
    pub address: SocketAddr,
    /// The job key.
    pub key: JobKey,
    /// Number of ranks.
    pub ranks: u32,
    /// The command that the ranks run.
    pub command: String,
}

/// Writes a job's file, and removes those of jobs that are gone.
pub fn register(places: &PrivateDirs, entry: &Entry) -> io::Result<PrivateFile> {
    let folder = places.make().map_err(io::Error::other)?;
    jobs(places);
    let start_time = start_time(entry.pid).ok_or(io::ErrorKind::NotFound)?;
    let address = match entry.address {
        SocketAddr::V4(it) if it.ip().is_unspecified() => (Ipv4Addr::LOCALHOST, it.port()).into(),
        SocketAddr::V6(it) if it.ip().is_unspecified() => (Ipv6Addr::LOCALHOST, it.port()).into(),
        address => address,
    };
    let command = entry.command.replace(['\n', '\r'], " ");
    let entry = Entry { address, command, ..entry.clone() };
    let text = serde_json::to_string(&(process_namespace(), &entry))?;
    PrivateFile::write(folder.join(format!("{}-{start_time}", entry.pid)), &text)
}

/// The running jobs, oldest first. Removes the files of jobs that are gone.
pub fn jobs(places: &PrivateDirs) -> Vec<Entry> {
    let files = places.existing().and_then(|folder| fs::read_dir(folder).ok());
    let mut found = Vec::new();
    for file in files.into_iter().flatten().flatten() {
        let name = file.file_name().to_string_lossy().into_owned();
        let Some((pid, since)) = name.split_once('-') else { continue };
        let (Ok(pid), Ok(since)) = (pid.parse::<u32>(), since.parse::<u64>()) else { continue };
        let Ok(text) = fs::read_to_string(file.path()) else { continue };
        let Ok((space, entry)) = serde_json::from_str::<(String, Entry)>(&text) else { continue };
        // In another container or on another machine, the same process ID means another process,
        // which we cannot see.
        if space != process_namespace() {
            continue;
        }
        if start_time(pid) != Some(since) {
            let _ = fs::remove_file(file.path());
            continue;
        }
        found.push((since, entry));
    }
    found.sort_by_key(|(since, entry)| (*since, entry.pid));
    found.into_iter().map(|(_, entry)| entry).collect()
}

/// Start time of a live process, in clock ticks: together with its ID it identifies the process.
fn start_time(pid: u32) -> Option<u64> {
    let process = Process::of(i32::try_from(pid).ok()?)?;
    (!process.is_ending()).then_some(process.started)
}

/// Identifies the namespace of process IDs: this boot of this machine, and the container on it.
fn process_namespace() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let link = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {}", boot.trim(), link.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::PathBuf;

    use super::*;

    /// An empty temporary directory, and the directory of jobs in it.
    fn place() -> (tempfile::TempDir, PrivateDirs, PathBuf) {
        let outer = tempfile::tempdir().unwrap();
        let places = PrivateDirs { runtime: None, temporary: outer.path().to_owned(), home: None };
        let folder = places.make().unwrap();
        (outer, places, folder)
    }

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
    fn a_running_job_is_listed_and_its_file_is_private() {
        let (_outer, places, folder) = place();
        assert_eq!(jobs(&places).len(), 0);
        let registration = register(&places, &entry(std::process::id())).unwrap();
        assert_eq!(fs::metadata(registration.path()).unwrap().mode() & 0o777, 0o600);
        let found = jobs(&places);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].address, "127.0.0.1:7".parse().unwrap());
        assert_eq!((found[0].ranks, found[0].command.as_str()), (4, "python train.py"));
        assert_eq!(found[0].key.to_hex(), entry(1).key.to_hex());
        drop(registration);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    }

    #[test]
    fn files_of_killed_drivers_are_removed_and_those_of_other_containers_kept() {
        let (_outer, places, folder) = place();
        let own = register(&places, &entry(std::process::id())).unwrap();
        let text = fs::read_to_string(own.path()).unwrap();
        fs::write(folder.join("4194304-1"), &text).unwrap();
        fs::write(folder.join(format!("{}-1", std::process::id())), &text).unwrap();
        fs::write(folder.join("4194304-2"), text.replace("pid:", "other:")).unwrap();
        fs::write(folder.join("garbage"), "x").unwrap();
        assert_eq!(jobs(&places).len(), 1);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 3);
    }

    #[test]
    fn nothing_is_written_to_a_directory_that_is_not_private() {
        let (_outer, places, folder) = place();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(register(&places, &entry(std::process::id())).is_err());
        assert_eq!(jobs(&places).len(), 0);
    }
}
