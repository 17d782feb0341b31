//! What there is to copy: everything below the files and folders that the user names.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ronde_control::wire::copy::{EntryKind, FileEntry};

/// A file, folder or link of this machine, and what it becomes there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceEntry {
    /// Path on this machine.
    pub path: PathBuf,
    /// What is sent.
    pub entry: FileEntry,
}

impl SourceEntry {
    /// Whether it has content.
    pub fn is_file(&self) -> bool {
        matches!(self.entry.kind, EntryKind::File { .. })
    }

    /// Bytes of its content.
    pub fn size(&self) -> u64 {
        match self.entry.kind {
            EntryKind::File { size, .. } => size,
            EntryKind::Folder { .. } | EntryKind::Link { .. } => 0,
        }
    }
}

/// Lists everything below the sources, parents first. Each source is copied under its own name.
/// Returns all that cannot be copied, if there is anything.
pub fn walk(sources: &[PathBuf]) -> Result<Vec<SourceEntry>, Vec<String>> {
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    for source in sources {
        let show = source.display();
        // A link that the user names is followed, and `.` has the name of its folder.
        let real = match fs::canonicalize(source) {
            Ok(real) => real,
            Err(error) => {
                errors.push(format!("`{show}`: {error}"));
                continue;
            }
        };
        let is_nameless = source.file_name().is_none();
        match if is_nameless { real.file_name() } else { source.file_name() } {
            Some(name) => add(&real, Path::new(name), &mut found, &mut errors),
            None => errors.push(format!("`{show}` has no name to be copied under")),
        }
    }
    if errors.is_empty() { Ok(found) } else { Err(errors) }
}

fn add(path: &Path, place: &Path, found: &mut Vec<SourceEntry>, errors: &mut Vec<String>) {
    let result = kind(path).and_then(|kind| {
        let entry = FileEntry { path: place.as_os_str().as_bytes().to_vec(), kind };
        entry.check().map_err(io::Error::other)?;
        let is_folder = matches!(entry.kind, EntryKind::Folder { .. });
        found.push(SourceEntry { path: path.to_owned(), entry });
        if !is_folder {
            return Ok(());
        }
        let mut names: Vec<_> =
            fs::read_dir(path)?.map(|child| Ok(child?.file_name())).collect::<io::Result<_>>()?;
        names.sort_unstable();
        for name in names {
            add(&path.join(&name), &place.join(&name), found, errors);
        }
        Ok(())
    });
    if let Err(error) = result {
        errors.push(match error.get_ref() {
            Some(own) => own.to_string(),
            None => format!("`{}`: {error}", path.display()),
        });
    }
}

fn kind(path: &Path) -> io::Result<EntryKind> {
    let about = fs::symlink_metadata(path)?;
    let mode = about.mode();
    match about.file_type() {
        kind if kind.is_dir() => Ok(EntryKind::Folder { mode }),
        kind if kind.is_symlink() => {
            let target = fs::read_link(path)?.into_os_string().into_encoded_bytes();
            Ok(EntryKind::Link { target })
        }
        kind if kind.is_file() => Ok(file(&about)),
        _ => Err(io::Error::other(format!("`{}` is not a file, folder or link", path.display()))),
    }
}

fn file(about: &Metadata) -> EntryKind {
    let modified = (about.mtime(), about.mtime_nsec() as u32);
    EntryKind::File { mode: about.mode(), size: about.len(), modified }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(found: &[SourceEntry]) -> Vec<String> {
        let name = |it: &SourceEntry| String::from_utf8_lossy(&it.entry.path).into_owned();
        found.iter().map(name).collect()
    }

    #[test]
    fn a_source_is_copied_under_its_own_name_parents_first() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("data");
        fs::create_dir_all(folder.join("b/c")).unwrap();
        fs::write(folder.join("b/c/x"), "12").unwrap();
        fs::write(folder.join("a"), "1").unwrap();
        symlink("b/c/x", folder.join("l")).unwrap();
        let found = walk(&[folder.clone(), folder.join("a")]).unwrap();
        let expected = ["data", "data/a", "data/b", "data/b/c", "data/b/c/x", "data/l", "a"];
        assert_eq!(names(&found), expected);
        assert_eq!(found.iter().map(SourceEntry::size).sum::<u64>(), 4);
        assert_eq!(names(&walk(&[folder.join("b/.")]).unwrap())[0], "b");
    }

    #[test]
    fn everything_that_cannot_be_copied_is_reported_at_once() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("data");
        fs::create_dir_all(&folder).unwrap();
        symlink("/etc/passwd", folder.join("absolute")).unwrap();
        symlink("../../out", folder.join("up")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(folder.join("socket")).unwrap();
        let errors = walk(&[folder, place.path().join("missing")]).unwrap_err();
        assert_eq!(errors.len(), 4, "{errors:?}");
        assert_eq!(
            errors[0],
            "`data/absolute` is a link to `/etc/passwd`, outside the folder that is copied"
        );
        assert!(errors[1].ends_with("socket` is not a file, folder or link"), "{errors:?}");
        assert!(errors[3].ends_with("No such file or directory (os error 2)"), "{errors:?}");
    }
}
