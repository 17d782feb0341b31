//! The key of the standing agents on this machine: read, or made if there is none. An existing key
//! is never replaced.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ronde_control::wire::JobKey;

use crate::private::read_key;
use crate::reach::HostProblem;

/// Reads the key, if the file exists.
pub(super) fn existing(path: &Path) -> Result<Option<JobKey>, HostProblem> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        _ => read_key(path).map(Some).map_err(|why| {
            let hint = "it is left alone; if nothing uses it, move it away, and `ronde up` makes \
                        another";
            HostProblem::new(format!("the agents' key {why}"), hint)
        }),
    }
}

/// The folders above a file that do not exist yet, innermost first.
pub(super) fn missing_folders(path: &Path) -> Vec<PathBuf> {
    let missing = path.ancestors().skip(1).take_while(|folder| !folder.exists());
    missing.map(Path::to_owned).collect()
}

/// Makes a key. Fails if there is one by now.
pub(super) fn make(path: &Path) -> Result<JobKey, HostProblem> {
    let key =
        crate::new_key().map_err(|error| HostProblem::new(error.to_string(), error.hint()))?;
    let written = write(path, &key);
    written.map(|()| key).map_err(|error| {
        HostProblem::new(
            format!("`{}` cannot be written: {error}", path.display()),
            "check the free space and the permissions of that folder",
        )
    })
}

fn write(path: &Path, key: &JobKey) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(format!("{}\n", key.to_hex()).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config/ronde/agent.key");
        assert_eq!(existing(&path), Ok(None));
        let folders = ["config/ronde", "config"].map(|name| folder.path().join(name));
        assert_eq!(missing_folders(&path), folders);
        let key = make(&path).unwrap();
        assert_eq!(existing(&path), Ok(Some(key)));
        let before = fs::read(&path).unwrap();
        assert!(make(&path).unwrap_err().reason.contains("cannot be written"));
        assert_eq!(fs::read(&path).unwrap(), before);
        fs::write(&path, "odd").unwrap();
        assert!(existing(&path).unwrap_err().hint.contains("left alone"));
    }
}
