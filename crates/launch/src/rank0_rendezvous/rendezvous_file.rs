//! The rendezvous file, with which rank 0 tells the other ranks of its user where to connect, and
//! with which key.
//!
//! Only its owner can read it, and it is put in place atomically. A reader trusts it only if it
//! belongs to the same user and nobody else can read it, and only after the process it names has
//! proved that it holds the key. So neither another user's file nor one left over from an earlier
//! job misleads a rank. It is removed once all ranks have joined.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::path::PathBuf;

use ronde_control::launcher::{Invitation, LaunchedProcess, LauncherKind, RendezvousMethod};
use rustix::fs::OFlags;

use crate::private::{self, PrivateDirs};
use crate::supervise;

/// The rendezvous file of one job.
#[derive(Clone, Debug)]
pub struct RendezvousFile {
    path: PathBuf,
}

impl RendezvousFile {
    /// The rendezvous file of this job; creates its directory if that must be private.
    pub(super) fn of(
        started: &LaunchedProcess,
        rendezvous_method: &RendezvousMethod,
        places: &PrivateDirs,
    ) -> Result<RendezvousFile, String> {
        let folder = match rendezvous_method {
            RendezvousMethod::SharedFile { directory: Some(directory) } => PathBuf::from(directory),
            RendezvousMethod::SharedFile { directory: None } => {
                let Some(home) = &places.home else {
                    return Err("there is no home directory; set RONDE_RENDEZVOUS_DIR".into());
                };
                let folder = home.join(".ronde");
                private::make(&folder)?;
                folder
            }
            _ => places.make()?,
        };
        Ok(RendezvousFile { path: folder.join(name(started)?) })
    }

    /// Puts the file in place atomically, replacing any other.
    pub(super) fn write(&self, invitation: &Invitation) -> Result<(), String> {
        let path = &self.path;
        let failed = |error: io::Error| format!("`{}`: {error}", path.display());
        let mut draft = path.clone().into_os_string();
        draft.push(format!(".{}", std::process::id()));
        let draft = PathBuf::from(draft);
        private::write(&draft, &invitation.to_text()).map_err(failed)?;
        fs::rename(&draft, path).map_err(failed)
    }

    /// Reads the invitation, or returns why it is not available yet.
    pub(super) fn read(&self) -> Result<Invitation, String> {
        let place = self.path.display();
        let unreadable =
            |error: io::Error| format!("cannot read the rendezvous file at `{place}`: {error}");
        // In a shared directory, anyone may put a pipe or a link under this name: we neither wait
        // for one nor follow it.
        let file = match private::open(&self.path, OFlags::NOFOLLOW | OFlags::NONBLOCK) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(format!("there is no rendezvous file at `{place}`"));
            }
            Err(error) => return Err(unreadable(error)),
        };
        private::require_file(&file)
            .map_err(|why| format!("the rendezvous file at `{place}` {why}"))?;
        let mut text = String::new();
        file.take(Invitation::LONGEST as u64).read_to_string(&mut text).map_err(unreadable)?;
        Invitation::from_text(&text)
            .ok_or_else(|| format!("this version cannot read the rendezvous file at `{place}`"))
    }

    /// Removes the file.
    pub(super) fn remove(&self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(%error, "could not remove the rendezvous file");
        }
    }
}

/// A name that no other job of this user has at the same time.
fn name(started: &LaunchedProcess) -> Result<String, String> {
    let job = match (&started.job, started.launcher) {
        (Some(job), _) => job.clone(),
        // MPICH's launcher gives the job no name, but it is one process for all ranks of a host.
        (None, LauncherKind::Mpich) => supervise::origin("PMI_RANK")
            .map(|(pid, since)| format!("{pid}-{since}"))
            .ok_or("cannot see the launcher's process; set RONDE_SECRET")?,
        (None, launcher) => return Err(format!("{launcher} gave the job no name")),
    };
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-.".contains(c) { c } else { '_' };
    let short: String = job.chars().map(plain).take(80).collect();
    let mut hasher = DefaultHasher::new();
    (started.launcher.to_string(), &job).hash(&mut hasher);
    Ok(format!("job-{short}-{:016x}", hasher.finish()))
}
