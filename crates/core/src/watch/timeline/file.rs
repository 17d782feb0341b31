//! A file that holds a growing JSON array and is valid at every moment, no matter when it is read
//! and how this process ends.
//!
//! Overwriting the closing bracket in place is not enough: a reader may see the old bracket and
//! then the bytes after it, and a signal may interrupt a write. So there are two copies. The
//! visible one is never touched; the other one, under a hidden name next to it, is brought up to
//! date, and then the two swap names atomically. The cost is that every byte is written twice.
//! Where names cannot be swapped (some network file systems), the file is written in place, with
//! one call per batch.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};

const HEAD: &str = "[\n";
const TAIL: &str = "\n]\n";

pub(super) struct ArrayFile {
    path: PathBuf,
    shown: FileCopy,
    /// `None` where names cannot be swapped.
    hidden: Option<Hidden>,
}

struct FileCopy {
    file: File,
    /// Offset of the tail.
    end: u64,
}

struct Hidden {
    path: PathBuf,
    copy: FileCopy,
    /// Elements that the copy now hidden does not have yet.
    lag: String,
}

impl ArrayFile {
    /// Creates the file with these first elements.
    pub(super) fn create(path: &Path, first: &str) -> io::Result<ArrayFile> {
        let path = match fs::canonicalize(path) {
            Ok(real) if !real.is_file() => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "it is not a regular file",
                ));
            }
            Ok(real) => real,
            // The program may change its directory while the file grows.
            Err(_) => std::path::absolute(path)?,
        };
        let partner = partner(&path)?;
        let shown = FileCopy::create(&partner, first)?;
        fs::rename(&partner, &path)?;
        let copy = FileCopy::create(&partner, first)?;
        let hidden = Some(Hidden { path: partner, copy, lag: String::new() });
        Ok(ArrayFile { path, shown, hidden })
    }

    /// Current length in bytes.
    pub(super) fn length(&self) -> u64 {
        self.shown.end + TAIL.len() as u64
    }

    /// Appends elements, each with a comma in front; readers see all of them or none.
    pub(super) fn append(&mut self, elements: String) -> io::Result<()> {
        let Some(hidden) = &mut self.hidden else {
            return self.shown.append(&elements);
        };
        let lag = std::mem::take(&mut hidden.lag);
        hidden.copy.append(&(lag + &elements))?;
        match renameat_with(CWD, &hidden.path, CWD, &self.path, RenameFlags::EXCHANGE) {
            Ok(()) => {
                std::mem::swap(&mut self.shown, &mut hidden.copy);
                hidden.lag = elements;
                Ok(())
            }
            Err(error) if is_impossible(error) => {
                fs::remove_file(&hidden.path)?;
                self.hidden = None;
                self.shown.append(&elements)
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for ArrayFile {
    fn drop(&mut self) {
        if let Some(hidden) = &self.hidden {
            let _ = fs::remove_file(&hidden.path);
        }
    }
}

impl FileCopy {
    fn create(path: &Path, first: &str) -> io::Result<FileCopy> {
        let _ = fs::remove_file(path);
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        file.write_all_at(format!("{HEAD}{first}{TAIL}").as_bytes(), 0)?;
        Ok(FileCopy { file, end: (HEAD.len() + first.len()) as u64 })
    }

    fn append(&mut self, elements: &str) -> io::Result<()> {
        self.file.write_all_at(format!("{elements}{TAIL}").as_bytes(), self.end)?;
        self.end += elements.len() as u64;
        Ok(())
    }
}

/// The hidden name; always the same, so that a killed process leaves at most one file behind.
fn partner(path: &Path) -> io::Result<PathBuf> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path has no file name"))?;
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(".partner");
    Ok(path.with_file_name(hidden))
}

fn is_impossible(error: rustix::io::Errno) -> bool {
    use rustix::io::Errno;
    matches!(error, Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("ronde-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        folder
    }

    /// The number of elements in a file that must be an array of `{"n": 0}`, `{"n": 1}`, and so on.
    fn count(text: &str) -> usize {
        let body = text.strip_prefix("[\n").and_then(|rest| rest.strip_suffix("\n]\n"));
        let body = body.unwrap_or_else(|| panic!("not an array: {:?}", &text[text.len() - 40..]));
        for (index, line) in body.split(",\n").enumerate() {
            assert_eq!(line, format!("{{\"n\": {index}}}"));
        }
        body.split(",\n").count()
    }

    #[test]
    fn a_reader_at_any_moment_sees_a_whole_array() {
        let folder = folder("array");
        let path = folder.join("timeline.json");
        let mut file = ArrayFile::create(&path, "{\"n\": 0}").unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut most = 0;
                while !over.load(Ordering::SeqCst) {
                    let begin = Instant::now();
                    let text = fs::read_to_string(&path).unwrap();
                    // A copy is written to again two swaps later; the timeline swaps every 50 ms.
                    if begin.elapsed() < Duration::from_millis(1) {
                        let seen = count(&text);
                        assert!(seen >= most, "{seen} after {most}");
                        most = seen;
                    }
                }
                most
            });
            let mut next = 1;
            for batch in 0..150 {
                let end = next + 1 + batch * 7 % 100;
                let elements = (next..end).map(|n| format!(",\n{{\"n\": {n}}}")).collect();
                file.append(elements).unwrap();
                next = end;
                let pause = Instant::now();
                while pause.elapsed() < Duration::from_millis(2) {
                    std::thread::yield_now();
                }
            }
            over.store(true, Ordering::SeqCst);
            assert!(reader.join().unwrap() > 1, "the reader has seen it grow");
            assert_eq!(count(&fs::read_to_string(&path).unwrap()), next);
        });
        drop(file);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "only the file itself remains");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_path_that_is_not_a_file_is_refused() {
        assert!(ArrayFile::create(Path::new("/dev/null"), "").is_err());
        assert!(ArrayFile::create(&std::env::temp_dir(), "").is_err());
        assert!(ArrayFile::create(Path::new("no-such-folder/x"), "").is_err());
    }
}
