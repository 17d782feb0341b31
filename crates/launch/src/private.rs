//! Where a user's files with job keys live: a directory that belongs to the user and that nobody
//! else may enter.
//!
//! Anybody may create a directory in `/tmp`, under any name. So there is a list of places, and one
//! that somebody else took first is skipped rather than trusted or waited for. Writers and readers
//! take the first place that is private or free, so that they meet there.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

/// The directories of this user in which a private one may be made.
#[derive(Clone, Debug)]
pub struct Places {
    /// What the system gives each user for the time of a login, if it does.
    pub runtime: Option<PathBuf>,
    /// Where everybody may put files.
    pub temporary: PathBuf,
    /// The home directory, if there is one.
    pub home: Option<PathBuf>,
}

impl Places {
    /// The places that this process's environment names.
    pub fn here() -> Places {
        Places::of(|name| std::env::var_os(name).map(PathBuf::from))
    }

    fn of(variable: impl Fn(&str) -> Option<PathBuf>) -> Places {
        let absolute = |name: &str| variable(name).filter(|path| path.is_absolute());
        Places {
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

    fn places(outer: &Path) -> Places {
        let below = |name: &str| {
            let path = outer.join(name);
            fs::create_dir_all(&path).unwrap();
            path
        };
        Places { runtime: None, temporary: below("tmp"), home: Some(below("home")) }
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
        let homeless = Places { home: None, ..places };
        assert!(homeless.make().unwrap_err().contains("is not a directory; remove it"));
    }

    #[test]
    fn the_directory_of_the_login_comes_first_if_there_is_one() {
        let outer = tempfile::tempdir().unwrap();
        let runtime = outer.path().join("run");
        let places = Places { runtime: Some(runtime.clone()), ..places(outer.path()) };
        assert!(places.make().unwrap().starts_with(&places.temporary));
        fs::create_dir(&runtime).unwrap();
        assert_eq!(places.existing(), None, "nobody has written anything there yet");
        assert_eq!(places.make().unwrap(), runtime.join("ronde"));
        assert_eq!(places.existing(), Some(runtime.join("ronde")));
        let set = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| PathBuf::from("relative"));
        assert_eq!(Places::of(set).runtime, None);
    }
}
