//! Checks whether a file can be written, without writing it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// Why a file cannot be written or created; `None` if it can. Changes nothing.
pub fn unwritable(path: &Path) -> Option<String> {
    match fs::metadata(path) {
        Ok(there) if there.is_dir() => Some("it is a directory".into()),
        Ok(_) => Some(io::Error::from(access(path, Access::WRITE_OK).err()?).to_string()),
        Err(_) => unusable(&folder(path)),
    }
}

/// Why no file can be created next to this one; `None` if one can.
pub fn without_neighbors(path: &Path) -> Option<String> {
    unusable(&folder(path))
}

fn folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Why no file can be created in a folder; `None` if one can.
fn unusable(folder: &Path) -> Option<String> {
    let name = folder.display();
    match fs::metadata(folder) {
        Ok(there) if !there.is_dir() => Some(format!("`{name}` is not a directory")),
        Ok(_) => {
            let error = io::Error::from(access(folder, Access::WRITE_OK).err()?);
            Some(format!("`{name}`: {error}"))
        }
        Err(error) => Some(format!("`{name}`: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unwritable_files_are_detected_without_creating_any() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("file"), "").unwrap();
        for (name, expected) in [
            ("new.json", None),
            ("file", None),
            ("", Some("it is a directory")),
            ("no/such/t.json", Some("No such file or directory (os error 2)")),
            ("file/t.json", Some("is not a directory")),
        ] {
            let why = unwritable(&path(name));
            assert_eq!(why.is_some(), expected.is_some(), "{name}: {why:?}");
            assert!(why.unwrap_or_default().ends_with(expected.unwrap_or_default()), "{name}");
        }
        assert_eq!(unwritable(Path::new("/dev/stderr")), None);
        assert_eq!(without_neighbors(&path("file")), None);
        assert!(without_neighbors(&path("no/such")).is_some());
        assert_eq!(unwritable(Path::new("t.json")), None);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
