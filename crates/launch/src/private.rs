//! Where a user's files with job keys live: a directory that belongs to the user and that nobody
//! else may enter.
//!
//! Anybody may create a directory in `/tmp`, under any name. So there is a list of places, and one
//! that somebody else took first is skipped rather than trusted or waited for. Writers and readers
//! take the first place that is private or free, so that they meet there.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ronde_control::wire::JobKey;
use rustix::fs::OFlags;
use rustix::process::geteuid;

/// The directories of this user in which a private one may be made.
#[derive(Clone, Debug)]
pub struct PrivateDirs {
    /// What the system gives each user for the time of a login, if it does.
    pub runtime: Option<PathBuf>,
    /// Where everybody may put files.
    pub temporary: PathBuf,
    /// The home directory, if there is one.
    pub home: Option<PathBuf>,
}

impl PrivateDirs {
    /// The places that this process's environment names.
    pub fn here() -> PrivateDirs {
        PrivateDirs::of(|name| std::env::var_os(name).map(PathBuf::from))
    }

    fn of(variable: impl Fn(&str) -> Option<PathBuf>) -> PrivateDirs {
        let absolute = |name: &str| variable(name).filter(|path| path.is_absolute());
        PrivateDirs {
            runtime: absolute("XDG_RUNTIME_DIR"),
            temporary: absolute("TMPDIR").unwrap_or_else(|| PathBuf::from("/tmp")),
            home: absolute("HOME"),
        }
    }

    /// The private directory, if it is there already.
    pub fn existing(&self) -> Option<PathBuf> {
        let is_free = |path: &PathBuf| path.symlink_metadata().is_err();
        let mut places = self.candidates().into_iter();
        let first = places.find(|path| is_free(path) || require(path).is_ok());
        first.filter(|path| !is_free(path))
    }

    /// The private directory, made if need be; why there is none otherwise.
    pub fn make(&self) -> Result<PathBuf, String> {
        let mut reasons = Vec::new();
        for path in self.candidates() {
            match make(&path) {
                Ok(()) => return Ok(path),
                Err(reason) => reasons.push(reason),
            }
        }
        Err(reasons.join("; "))
    }

    fn candidates(&self) -> Vec<PathBuf> {
        let runtime = self.runtime.iter().filter(|path| path.is_dir());
        let temporary = self.temporary.join(format!("ronde-{}", geteuid().as_raw()));
        let home = self.home.iter().map(|home| home.join(".ronde"));
        runtime.map(|path| path.join("ronde")).chain([temporary]).chain(home).collect()
    }
}

/// The longest file with a key: its digits and the end of a line, or somebody's mistake.
const LONGEST_KEY: u64 = 1024;

/// The key in a file that nobody but this user may read, or why it is not taken from there.
pub fn read_key(path: &Path) -> Result<JobKey, String> {
    let show = path.display();
    let unreadable = |error: io::Error| format!("`{show}` cannot be read: {error}");
    let file = open(path, OFlags::NONBLOCK).map_err(unreadable)?;
    require_file(&file).map_err(|why| format!("`{show}` {why}"))?;
    key_of(file).map_err(|why| format!("`{show}`: {why}"))
}

/// The key that somebody has put into an open descriptor of this process.
pub fn read_key_from(descriptor: u32) -> Result<JobKey, String> {
    let path = PathBuf::from(format!("/proc/self/fd/{descriptor}"));
    let file = File::open(path).map_err(|error| format!("it cannot be read: {error}"))?;
    key_of(file)
}

/// Writes a job's key into a file of the private directory.
pub fn write_key(places: &PrivateDirs, key: &JobKey) -> Result<PrivateFile, String> {
    let path = places.make()?.join(format!("key-{}", std::process::id()));
    let show = path.display().to_string();
    PrivateFile::write(path, &format!("{}\n", key.to_hex()))
        .map_err(|error| format!("`{show}`: {error}"))
}

/// A file that only this user may read; it goes with this.
#[derive(Debug)]
pub struct PrivateFile(PathBuf);

impl PrivateFile {
    pub(crate) fn write(path: PathBuf, text: &str) -> io::Result<PrivateFile> {
        let file = PrivateFile(path);
        write(&file.0, text)?;
        Ok(file)
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PrivateFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Writes a new file that only this user may read. What lies there was left by a process that had the
/// same number and was killed.
pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    let _ = fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

/// Opens a file to read it; `flags` say what else is not to happen. A pipe in its place is not waited
/// for if they have `NONBLOCK`.
pub(crate) fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)
}

/// Whether a file is one that only this user, or the superuser, could have written or read; why not.
/// Reads behind its name.
pub(crate) fn require_file(file: &File) -> Result<(), String> {
    let about = file.metadata().map_err(|error| format!("cannot be looked at: {error}"))?;
    if !about.is_file() {
        return Err("is not a regular file".into());
    }
    if ![0, geteuid().as_raw()].contains(&about.uid()) {
        return Err(format!("belongs to another user (uid {})", about.uid()));
    }
    match about.mode() & 0o077 {
        0 => Ok(()),
        _ => Err("is not private: others may read it or write to it; run `chmod 600` on it".into()),
    }
}

fn key_of(file: File) -> Result<JobKey, String> {
    let mut text = String::new();
    file.take(LONGEST_KEY).read_to_string(&mut text).map_err(|error| error.to_string())?;
    JobKey::from_hex(text.trim_end()).map_err(|error| error.to_string())
}

/// Makes a directory that only its owner may enter, unless it is there already.
pub(crate) fn make(path: &Path) -> Result<(), String> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(format!("`{}` cannot be created: {error}", path.display()))
        }
        _ => require(path),
    }
}

fn require(path: &Path) -> Result<(), String> {
    let show = path.display();
    let about = fs::symlink_metadata(path).map_err(|error| format!("`{show}`: {error}"))?;
    if !about.is_dir() {
        return Err(format!("`{show}` is not a directory; remove it"));
    }
    if about.uid() != geteuid().as_raw() {
        return Err(format!("`{show}` belongs to another user (uid {})", about.uid()));
    }
    match about.mode() & 0o077 {
        0 => Ok(()),
        _ => Err(format!("others may enter `{show}`; run `chmod 700` on it")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn places(outer: &Path) -> PrivateDirs {
        let below = |name: &str| {
            let path = outer.join(name);
            fs::create_dir_all(&path).unwrap();
            path
        };
        PrivateDirs { runtime: None, temporary: below("tmp"), home: Some(below("home")) }
    }

    #[test]
    fn a_place_that_is_not_the_users_alone_is_skipped() {
        let outer = tempfile::tempdir().unwrap();
        let places = places(outer.path());
        assert_eq!(places.existing(), None);
        let usual = places.make().unwrap();
        assert!(usual.starts_with(&places.temporary));
        assert_eq!(fs::metadata(&usual).unwrap().mode() & 0o777, 0o700);
        assert_eq!(places.existing(), Some(usual.clone()));

        // What somebody else may do to that name first.
        let spoil: [&dyn Fn(); 3] = [
            &|| {
                fs::create_dir(&usual).unwrap();
                fs::set_permissions(&usual, fs::Permissions::from_mode(0o777)).unwrap();
            },
            &|| symlink(outer.path(), &usual).unwrap(),
            &|| fs::write(&usual, "").unwrap(),
        ];
        let home = outer.path().join("home/.ronde");
        for spoil in spoil {
            fs::remove_dir(&usual).or_else(|_| fs::remove_file(&usual)).unwrap();
            spoil();
            assert_eq!(places.make().unwrap(), home);
            assert_eq!(places.existing(), Some(home.clone()));
        }
        let homeless = PrivateDirs { home: None, ..places };
        assert!(homeless.make().unwrap_err().contains("is not a directory; remove it"));
    }

    #[test]
    fn a_key_is_taken_from_a_file_that_nobody_else_may_read() {
        let outer = tempfile::tempdir().unwrap();
        let places = places(outer.path());
        let key = JobKey::from_entropy([7; 32]);
        let file = write_key(&places, &key).unwrap();
        let path = file.path().to_owned();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(read_key(&path), Ok(key.clone()));
        let opened = File::open(&path).unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&opened).unsigned_abs();
        assert_eq!(read_key_from(number), Ok(key));
        for mode in [0o640, 0o604, 0o620] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert!(read_key(&path).unwrap_err().contains("run `chmod 600` on it"), "{mode:o}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "not a key").unwrap();
        assert!(read_key(&path).unwrap_err().contains("64 hexadecimal digits"));
        drop(file);
        assert!(read_key(&path).unwrap_err().contains("cannot be read: No such file"));
        assert!(read_key(outer.path()).unwrap_err().contains("is not a regular file"));
        assert!(read_key_from(4_000_000).unwrap_err().contains("cannot be read"));
    }

    #[test]
    fn the_directory_of_the_login_comes_first_if_there_is_one() {
        let outer = tempfile::tempdir().unwrap();
        let runtime = outer.path().join("run");
        let places = PrivateDirs { runtime: Some(runtime.clone()), ..places(outer.path()) };
        assert!(places.make().unwrap().starts_with(&places.temporary));
        fs::create_dir(&runtime).unwrap();
        assert_eq!(places.existing(), None, "nobody has written anything there yet");
        assert_eq!(places.make().unwrap(), runtime.join("ronde"));
        assert_eq!(places.existing(), Some(runtime.join("ronde")));
        let set = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| PathBuf::from("relative"));
        assert_eq!(PrivateDirs::of(set).runtime, None);
    }
}
