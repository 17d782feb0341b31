//! The note by which rank 0 tells the other ranks of its user where to meet, and with which key.
//!
//! A file that only its owner can read, put in place whole or not at all. A reader believes it only if
//! it belongs to the same user and nobody else can read it, and only after the one whom it names has
//! proved that it holds the key: so neither a stranger's file nor one left over from an earlier job
//! leads anybody astray. It is removed once all have met.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ronde_control::launcher::{Invitation, Launcher, Started, Way};
use rustix::fs::OFlags;
use rustix::process::geteuid;

use crate::supervise;

/// Where this user keeps things.
#[derive(Clone, Debug)]
pub struct Folders {
    /// What the system gives each user for the time of a session, if it does.
    pub runtime: Option<PathBuf>,
    /// Where everybody may put files.
    pub temporary: PathBuf,
    /// The home directory, if there is one.
    pub home: Option<PathBuf>,
}

/// The note of one job.
#[derive(Clone, Debug)]
pub struct Note {
    path: PathBuf,
}

impl Note {
    /// The note of this job; makes the directory for it if it must be private.
    pub(super) fn of(started: &Started, way: &Way, folders: &Folders) -> Result<Note, String> {
        let folder = match way {
            Way::SharedNote { directory: Some(directory) } => PathBuf::from(directory),
            Way::SharedNote { directory: None } => {
                let Some(home) = &folders.home else {
                    return Err("there is no home directory; set RONDE_RENDEZVOUS_DIR".into());
                };
                private(&home.join(".ronde"))?
            }
            _ => match &folders.runtime {
                Some(runtime) if is_private(runtime).is_ok() => private(&runtime.join("ronde"))?,
                _ => {
                    let name = format!("ronde-{}", geteuid().as_raw());
                    private(&folders.temporary.join(name))?
                }
            },
        };
        Ok(Note { path: folder.join(name(started)?) })
    }

    /// Puts the note in place, whole, instead of what may be there.
    pub(super) fn write(&self, invitation: &Invitation) -> Result<(), String> {
        let failed = |error: io::Error| format!("`{}`: {error}", self.path.display());
        let mut draft = self.path.clone().into_os_string();
        draft.push(format!(".{}", std::process::id()));
        let draft = PathBuf::from(draft);
        // Left by a process that had this number before and ended here.
        let _ = fs::remove_file(&draft);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&draft)
            .map_err(failed)?;
        file.write_all(invitation.to_text().as_bytes()).map_err(failed)?;
        fs::rename(&draft, &self.path).map_err(failed)
    }

    /// What the note says, or why nothing can be learned from it yet.
    pub(super) fn read(&self) -> Result<Invitation, String> {
        let place = self.path.display();
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::NOFOLLOW.bits() as i32)
            .open(&self.path);
        let file = match file {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(format!("it has left no note at `{place}`"));
            }
            Err(error) => return Err(format!("its note at `{place}` cannot be read: {error}")),
        };
        check_owner(&file).map_err(|why| format!("the note at `{place}` {why}"))?;
        let mut text = String::new();
        file.take(Invitation::LONGEST as u64)
            .read_to_string(&mut text)
            .map_err(|error| format!("its note at `{place}` cannot be read: {error}"))?;
        let unreadable = || format!("its note at `{place}` is none that this version can read");
        Invitation::from_text(&text).ok_or_else(unreadable)
    }

    /// Takes the note away.
    pub(super) fn remove(&self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(%error, "the note by which the ranks met could not be removed");
        }
    }
}

fn check_owner(file: &File) -> Result<(), String> {
    let about = file.metadata().map_err(|error| format!("cannot be looked at: {error}"))?;
    if !about.is_file() || about.uid() != geteuid().as_raw() || about.mode() & 0o077 != 0 {
        return Err("belongs to another user, or others may read it".into());
    }
    Ok(())
}

/// Makes a directory that only its owner may enter, unless it is there already.
fn private(path: &Path) -> Result<PathBuf, String> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(format!("`{}` cannot be made: {error}", path.display())),
    }
    is_private(path)?;
    Ok(path.to_owned())
}

fn is_private(path: &Path) -> Result<(), String> {
    let show = path.display();
    let about = fs::symlink_metadata(path).map_err(|error| format!("`{show}`: {error}"))?;
    if about.is_dir() && about.uid() == geteuid().as_raw() && about.mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(format!(
        "`{show}` is not a directory of this user that nobody else may enter; remove it, or `chmod \
         700` it if it is yours"
    ))
}

/// A name that no other job of this user has at the same time.
fn name(started: &Started) -> Result<String, String> {
    let job = match (&started.job, started.launcher) {
        (Some(job), _) => job.clone(),
        // MPICH's launcher tells no name, but it is the same process for all ranks of a host.
        (None, Launcher::Mpich) => supervise::origin("PMI_RANK")
            .map(|(pid, since)| format!("{pid}-{since}"))
            .ok_or("the launcher's process is not to be seen; set RONDE_SECRET")?,
        (None, launcher) => return Err(format!("{} has not named the job", launcher.name())),
    };
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-.".contains(c) { c } else { '_' };
    let short: String = job.chars().map(plain).take(80).collect();
    let mut hasher = DefaultHasher::new();
    (started.launcher.name(), &job).hash(&mut hasher);
    Ok(format!("job-{short}-{:016x}", hasher.finish()))
}
