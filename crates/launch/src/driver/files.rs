//! Saves each rank's output in files: `rank.N/stdout` and `rank.N/stderr` in a directory, the
//! number padded so that names sort. The lines are the same as on the screen, with their prefixes.
//!
//! If a file can no longer be written, as on a full disk, it is left as it is and the job
//! continues: the output is still on the screen, and hours of training are worth more than a copy
//! of it. Only the first such file is reported; the others would only repeat the message.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ronde_control::Rank;
use ronde_control::wire::agent::OutputStream;

use crate::LaunchError;

/// The files of one job.
pub(super) struct OutputFiles {
    folder: PathBuf,
    digits: usize,
    /// How many ranks already have their files.
    made: usize,
    /// Opened when a rank first writes; `None` once writing has failed.
    open: HashMap<(Rank, OutputStream), Option<File>>,
    reported: bool,
}

impl OutputFiles {
    /// Creates the directories and empties the files of this many ranks; for other ranks that
    /// happens when they first write.
    pub(super) fn create(folder: &Path, ranks: usize) -> Result<OutputFiles, LaunchError> {
        let digits = ranks.saturating_sub(1).to_string().len();
        let (path, open) = (folder.display().to_string(), HashMap::new());
        let folder = folder.to_owned();
        let files = OutputFiles { folder, digits, made: ranks, open, reported: false };
        for rank in (0..ranks).map(|rank| Rank(rank as u32)) {
            for stream in [OutputStream::Stdout, OutputStream::Stderr] {
                make(&files.path(rank, stream))
                    .map_err(|source| LaunchError::Files { path: path.clone(), source })?;
            }
        }
        Ok(files)
    }

    /// Appends to a rank's file. Returns a message about the first file that can no longer be
    /// written.
    pub(super) fn write(
        &mut self,
        rank: Rank,
        stream: OutputStream,
        bytes: &[u8],
    ) -> Option<String> {
        let path = self.path(rank, stream);
        let made = rank.index() < self.made;
        let open = || match made {
            true => OpenOptions::new().append(true).open(&path),
            false => make(&path),
        };
        let result = match self.open.get_mut(&(rank, stream)) {
            Some(None) => return None,
            Some(Some(file)) => file.write_all(bytes),
            None => open().and_then(|mut file| {
                let result = file.write_all(bytes);
                self.open.insert((rank, stream), Some(file));
                result
            }),
        };
        let error = result.err()?;
        self.open.insert((rank, stream), None);
        if std::mem::replace(&mut self.reported, true) {
            return None;
        }
        Some(format!(
            "can no longer write to `{}`: {error}; the job continues, with its output on \
             the screen only",
            path.display()
        ))
    }

    fn path(&self, rank: Rank, stream: OutputStream) -> PathBuf {
        let digits = self.digits;
        let name = match stream {
            OutputStream::Stdout => "stdout",
            OutputStream::Stderr => "stderr",
        };
        self.folder.join(format!("rank.{:0digits$}", rank.0)).join(name)
    }
}

fn make(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    File::create(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_padded_as_horovod_pads_them() {
        for (ranks, last, name) in [(1, 0, "rank.0"), (10, 9, "rank.9"), (11, 3, "rank.03")] {
            let folder = tempfile::tempdir().unwrap();
            let mut files = OutputFiles::create(&folder.path().join("a/b"), ranks).unwrap();
            files.write(Rank(last), OutputStream::Stderr, b"one\n");
            files.write(Rank(last), OutputStream::Stderr, b"two\n");
            let path = folder.path().join("a/b").join(name);
            assert_eq!(fs::read(path.join("stderr")).unwrap(), b"one\ntwo\n");
            assert_eq!(fs::read(path.join("stdout")).unwrap(), b"");
        }
    }

    #[test]
    fn an_unexpected_rank_gets_its_files_when_it_first_writes() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = OutputFiles::create(folder.path(), 1).unwrap();
        let path = folder.path().join("rank.3/stdout");
        make(&path).unwrap().write_all(b"of an older job\n").unwrap();
        files.write(Rank(3), OutputStream::Stdout, b"one\n");
        files.write(Rank(3), OutputStream::Stdout, b"two\n");
        assert_eq!(fs::read(path).unwrap(), b"one\ntwo\n");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_left_alone_and_the_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = OutputFiles::create(folder.path(), 2).unwrap();
        fs::remove_file(folder.path().join("rank.0/stdout")).unwrap();
        std::os::unix::fs::symlink("/dev/full", folder.path().join("rank.0/stdout")).unwrap();
        for turn in 0..3 {
            let message = files.write(Rank(0), OutputStream::Stdout, b"lost\n");
            assert_eq!(message.is_some(), turn == 0, "{message:?}");
            assert_eq!(files.write(Rank(1), OutputStream::Stdout, b"kept\n"), None);
        }
        assert!(files.open[&(Rank(0), OutputStream::Stdout)].is_none());
        assert_eq!(fs::read(folder.path().join("rank.1/stdout")).unwrap(), b"kept\n".repeat(3));
    }
}
