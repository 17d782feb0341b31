//! The directory for a user's files with job keys; it belongs to the user, and nobody else may
//! enter it.
//!
//! Anyone may create a directory in `/tmp`, under any name. So there is a list of candidates, and
//! one that someone else has taken is skipped, neither trusted nor waited for. Writers and readers
//! both use the first candidate that is private or free, so they find each other.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ronde_control::wire::JobKey;
use rustix::fs::OFlags;
use rustix::process::geteuid;

/// Directories of this user in which the private one may be created.
#[derive(Clone, Debug)]
pub struct PrivateDirs {
    /// The runtime directory of the user's login, if the system has one.
    pub runtime: Option<PathBuf>,
    /// The directory for temporary files, which all users share.
    pub temporary: PathBuf,
    /// The home directory, if there is one.
    pub home: Option<PathBuf>,
}

impl PrivateDirs {
    /// The directories that the environment of this process names.
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

    /// The private directory, if it exists.
    pub fn existing(&self) -> Option<PathBuf> {
        let is_free = |path: &PathBuf| path.symlink_metadata().is_err();
        let mut places = self.candidates().into_iter();
        let first = places.find(|path| is_free(path) || require(path).is_ok());
        first.filter(|path| !is_free(path))
    }

    /// The private directory, created if necessary; otherwise the reason.
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

/// We read no more than this of a key file: the digits and a newline need less.
const LONGEST_KEY: u64 = 1024;

/// Reads the key from a file that only this user may read, or returns why not.
pub fn read_key(path: &Path) -> Result<JobKey, String> {
    let show = path.display();
    let unreadable = |error: io::Error| format!("`{show}` cannot be read: {error}");
    let file = open(path, OFlags::NONBLOCK).map_err(unreadable)?;
    require_file(&file).map_err(|why| format!("`{show}` {why}"))?;
    key_of(file).map_err(|why| format!("`{show}`: {why}"))
}

/// Reads the key from an open descriptor of this process.
pub fn read_key_from(descriptor: u32) -> Result<JobKey, String> {
    let path = PathBuf::from(format!("/proc/self/fd/{descriptor}"));
    let file = File::open(path).map_err(|error| format!("cannot open it: {error}"))?;
    key_of(file)
}

/// Writes a job's key to a file in the private directory.
pub fn write_key(places: &PrivateDirs, key: &JobKey) -> Result<PrivateFile, String> {
    let path = places.make()?.join(format!("key-{}", std::process::id()));
    let show = path.display().to_string();
    PrivateFile::write(path, &format!("{}\n", key.to_hex()))
        .map_err(|error| format!("`{show}`: {error}"))
}

/// A file that only this user may read; dropping it removes the file.
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

/// Writes a new file that only this user may read. An existing file was left by a killed process
/// with the same process ID, and is replaced.
pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    let _ = fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

/// Opens a file for reading, with extra `flags`. With `NONBLOCK`, a pipe in its place does not
/// block.
pub(crate) fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)
}

/// Checks that only this user, or root, could have written or read the open file; otherwise the
/// reason, without the file's name.
pub(crate) fn require_file(file: &File) -> Result<(), String> {
    let about = file.metadata().map_err(|error| format!("cannot be inspected: {error}"))?;
    if !about.is_file() {
        return Err("is not a regular file".into());
    }
    if ![0, geteuid().as_raw()].contains(&about.uid()) {
        return Err(format!("belongs to another user (uid {})", about.uid()));
    }
    match about.mode() & 0o077 {
        0 => Ok(()),
        _ => {
            Err("is not private: other users may read it or write to it; run `chmod 600` on it"
                .into())
        }
    }
}

fn key_of(file: File) -> Result<JobKey, String> {
    let mut text = String::new();
    file.take(LONGEST_KEY).read_to_string(&mut text).map_err(|error| error.to_string())?;
    JobKey::from_hex(text.trim_end()).map_err(|error| error.to_string())
}

/// Creates a directory that only its owner may enter, unless it exists.
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
        _ => Err(format!("other users may enter `{show}`; run `chmod 700` on it")),
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
    fn a_directory_that_is_not_private_is_skipped() {
        let outer = tempfile::tempdir().unwrap();
        let places = places(outer.path());
        assert_eq!(places.existing(), None);
        let usual = places.make().unwrap();
        assert!(usual.starts_with(&places.temporary));
        assert_eq!(fs::metadata(&usual).unwrap().mode() & 0o777, 0o700);
        assert_eq!(places.existing(), Some(usual.clone()));

        // What another user may put there first.
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
    fn a_key_is_read_only_from_a_private_file() {
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
        assert!(read_key_from(4_000_000).unwrap_err().contains("cannot open it"));
    }

    #[test]
    fn the_runtime_directory_comes_first_if_it_exists() {
        let outer = tempfile::tempdir().unwrap();
        let runtime = outer.path().join("run");
        let places = PrivateDirs { runtime: Some(runtime.clone()), ..places(outer.path()) };
        assert!(places.make().unwrap().starts_with(&places.temporary));
        fs::create_dir(&runtime).unwrap();
        assert_eq!(places.existing(), None, "nothing was written there yet");
        assert_eq!(places.make().unwrap(), runtime.join("ronde"));
        assert_eq!(places.existing(), Some(runtime.join("ronde")));
        let set = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| PathBuf::from("relative"));
        assert_eq!(PrivateDirs::of(set).runtime, None);
    }
}
