//! What `ronde up` remembers on this machine: the hosts it has prepared, how to log in there, and
//! whether it made the agents' key. `ronde up --status` and `ronde down` need no options then.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::packages::RequirementsLock;
use crate::hosts::Host;
use crate::private;
use crate::reach::ssh::{SshOptions, Strictness};

/// The record of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRecord {
    /// The hosts, in the order in which they were named.
    pub hosts: Vec<RecordedHost>,
    /// Port of the agents.
    pub port: u16,
    /// The image, if the agents run in containers.
    pub image: Option<String>,
    /// The bind mounts of the containers, in Docker's syntax.
    #[serde(default)]
    pub mounts: Vec<String>,
    /// The requirements that were installed.
    pub lock: Option<RequirementsLock>,
    /// Whether the agents' key on this machine was made by `ronde up`.
    pub made_key: bool,
    /// The folders that were made for it, innermost first.
    pub made_folders: Vec<PathBuf>,
}

/// A host that was prepared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedHost {
    /// Name or address.
    pub name: String,
    /// The user to log in as, if given.
    pub user: Option<String>,
    /// Number of slots that the user gave it.
    pub slots: u32,
    /// ssh port, if given.
    pub ssh_port: Option<u16>,
    /// File of the private key, if given.
    pub ssh_identity: Option<PathBuf>,
    /// Whether unknown host keys are refused.
    pub ssh_strict: bool,
}

impl RecordedHost {
    /// Remembers how a host was reached.
    pub fn new(host: &Host, ssh: &SshOptions) -> RecordedHost {
        RecordedHost {
            name: host.name.clone(),
            user: host.user.clone(),
            slots: host.slots,
            ssh_port: ssh.port,
            ssh_identity: ssh.identity.clone(),
            ssh_strict: ssh.strict == Strictness::Strict,
        }
    }

    /// The host, and the options of its ssh.
    pub fn host(&self, time_limit: u64) -> (Host, SshOptions) {
        let host = Host { name: self.name.clone(), user: self.user.clone(), slots: self.slots };
        let strict = if self.ssh_strict { Strictness::Strict } else { Strictness::FirstUse };
        let (port, identity) = (self.ssh_port, self.ssh_identity.clone());
        (host, SshOptions { port, identity, strict, time_limit })
    }
}

impl ClusterRecord {
    /// Adds hosts; one that is known already is replaced.
    pub fn add(&mut self, hosts: Vec<RecordedHost>) {
        for host in hosts {
            match self.hosts.iter_mut().find(|known| known.name == host.name) {
                Some(known) => *known = host,
                None => self.hosts.push(host),
            }
        }
    }

    /// Reads the record; an empty one if there is none.
    pub fn read(path: &Path) -> io::Result<ClusterRecord> {
        match fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(ClusterRecord::default()),
            Err(error) => Err(error),
        }
    }

    /// Writes the record, or removes it if there is no host left.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        if self.hosts.is_empty() {
            return match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        let text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        let part = path.with_extension("part");
        private::write(&part, &format!("{text}\n"))?;
        fs::rename(part, path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_kept_until_its_last_host_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("up.json");
        let mut record = ClusterRecord::read(&path).unwrap();
        assert_eq!(record, ClusterRecord::default());
        let ssh = SshOptions { port: Some(2222), ..SshOptions::default() };
        let host = |name: &str, slots| Host { name: name.into(), user: None, slots };
        record.add(vec![RecordedHost::new(&host("a", 1), &ssh)]);
        record.add(vec![
            RecordedHost::new(&host("a", 4), &ssh),
            RecordedHost::new(&host("b", 1), &ssh),
        ]);
        record.write(&path).unwrap();
        let again = ClusterRecord::read(&path).unwrap();
        assert_eq!((again.hosts.len(), again.hosts[0].slots), (2, 4));
        assert_eq!(again.hosts[1].host(5).1, SshOptions { time_limit: 5, ..ssh });
        ClusterRecord::default().write(&path).unwrap();
        assert!(!path.exists());
        fs::write(&path, "not a record").unwrap();
        assert!(ClusterRecord::read(&path).is_err());
    }
}
