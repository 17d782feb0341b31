//! The note by which rank 0 tells the other ranks of its user where to meet, and with which key.
//!
//! A file that only its owner can read, put in place whole or not at all. A reader believes it only if
//! it belongs to the same user and nobody else can read it, and only after the one whom it names has
//! proved that it holds the key: so neither a stranger's file nor one left over from an earlier job
//! leads anybody astray. It is removed once all have met.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::path::PathBuf;

use ronde_control::launcher::{Invitation, LaunchedProcess, LauncherKind, RendezvousMethod};
use rustix::fs::OFlags;

use crate::private::{self, PrivateDirs};
use crate::supervise;

/// The note of one job.
#[derive(Clone, Debug)]
pub struct RendezvousFile {
    path: PathBuf,
}

impl RendezvousFile {
    /// The note of this job; makes the directory for it if it must be private.
    pub(super) fn of(
        started: &LaunchedProcess,
        rendezvous_method: &RendezvousMethod,
        places: &PrivateDirs,
    ) -> Result<RendezvousFile, String> {
        let folder = match rendezvous_method {
            RendezvousMethod::SharedNote { directory: Some(directory) } => PathBuf::from(directory),
            RendezvousMethod::SharedNote { directory: None } => {
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

    /// Puts the note in place, whole, instead of what may be there.
    pub(super) fn write(&self, invitation: &Invitation) -> Result<(), String> {
        let path = &self.path;
        let failed = |error: io::Error| format!("`{}`: {error}", path.display());
        let mut draft = path.clone().into_os_string();
        draft.push(format!(".{}", std::process::id()));
        let draft = PathBuf::from(draft);
        private::write(&draft, &invitation.to_text()).map_err(failed)?;
        fs::rename(&draft, path).map_err(failed)
    }

    /// What the note says, or why nothing can be learned from it yet.
    pub(super) fn read(&self) -> Result<Invitation, String> {
        let place = self.path.display();
        let unreadable =
            |error: io::Error| format!("its note at `{place}` cannot be read: {error}");
        // In a folder that others share, anybody may put a pipe or a link under this name: neither
        // is waited for or followed.
        let file = match private::open(&self.path, OFlags::NOFOLLOW | OFlags::NONBLOCK) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(format!("it has left no note at `{place}`"));
            }
            Err(error) => return Err(unreadable(error)),
        };
        private::require_file(&file).map_err(|why| format!("the note at `{place}` {why}"))?;
        let mut text = String::new();
        file.take(Invitation::LONGEST as u64).read_to_string(&mut text).map_err(unreadable)?;
        Invitation::from_text(&text)
            .ok_or_else(|| format!("this version cannot read the rendezvous file at `{place}`"))
    }

    /// Takes the note away.
    pub(super) fn remove(&self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(%error, "the note by which the ranks met could not be removed");
        }
    }
}

/// A name that no other job of this user has at the same time.
fn name(started: &LaunchedProcess) -> Result<String, String> {
    let job = match (&started.job, started.launcher) {
        (Some(job), _) => job.clone(),
        // MPICH's launcher tells no name, but it is the same process for all ranks of a host.
        (None, LauncherKind::Mpich) => supervise::origin("PMI_RANK")
            .map(|(pid, since)| format!("{pid}-{since}"))
            .ok_or("cannot see the launcher's process; set RONDE_SECRET")?,
        (None, launcher) => return Err(format!("{launcher} has not named the job")),
    };
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-.".contains(c) { c } else { '_' };
    let short: String = job.chars().map(plain).take(80).collect();
    let mut hasher = DefaultHasher::new();
    (started.launcher.to_string(), &job).hash(&mut hasher);
    Ok(format!("job-{short}-{:016x}", hasher.finish()))
}
