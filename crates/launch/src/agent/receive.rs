//! Receives files from the driver: the agent's side of `ronde cp`.
//!
//! Disks are slow, so a thread of its own writes. It starts from an open folder, opens everything
//! below it step by step and follows no link on the way, so that nothing lands outside, whatever
//! the names are and whatever is there already. A file is written under another name and gets its
//! own when it is complete.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use ronde_control::wire::agent::AgentToDriver;
use ronde_control::wire::copy::{
    CopyAnswer, CopyCommand, EntryKind, FileEntry, MODE, MOST_ENTRIES,
};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, fchmod, futimens, mkdirat, openat,
    readlinkat, renameat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use crate::hosts::hostname;

/// Commands that may wait for the disk; more than the window lets through.
const COMMANDS: usize = 4096;

/// What a file is called until it is complete, with the names of this host and process: several hosts
/// may share the folder, and an interrupted copy may not have ended yet when the next one begins.
const PART: &str = ".ronde-part-";

/// Writes what the driver sends.
pub(super) struct FileReceiver {
    commands: mpsc::Sender<CopyCommand>,
    thread: JoinHandle<()>,
}

impl FileReceiver {
    /// Starts the thread. Answers go to `news`.
    pub(super) fn start(news: mpsc::Sender<AgentToDriver>) -> io::Result<FileReceiver> {
        let (commands, mut incoming) = mpsc::channel(COMMANDS);
        let thread = thread::Builder::new().name("receive files".into()).spawn(move || {
            let mut copy = Copy::default();
            while let Some(command) = incoming.blocking_recv() {
                let answer = copy.on(command).unwrap_or_else(|reason| {
                    copy = Copy::default();
                    Some(CopyAnswer::Failed { reason })
                });
                let Some(answer) = answer else { continue };
                if news.blocking_send(AgentToDriver::Copy(answer)).is_err() {
                    return;
                }
            }
        })?;
        Ok(FileReceiver { commands, thread })
    }

    /// Ends the thread, which removes a file that is not complete.
    pub(super) async fn end(self) {
        let FileReceiver { commands, thread } = self;
        drop(commands);
        let _ = spawn_blocking(|| thread.join()).await;
    }

    /// Passes a command on.
    pub(super) fn pass(&self, command: CopyCommand) {
        // A driver that exceeds its window is not one of ours.
        let _ = self.commands.try_send(command);
    }
}

#[derive(Default)]
struct Copy {
    root: Option<OwnedFd>,
    /// The wanted files that are still to come, last first.
    wanted: Vec<FileEntry>,
    open: Option<PartFile>,
}

/// A file that is being written.
struct PartFile {
    folder: OwnedFd,
    part: Vec<u8>,
    file: fs::File,
    written: u64,
}

impl Drop for PartFile {
    /// Removes the file, unless it is complete and has another name by now.
    fn drop(&mut self) {
        let _ = unlinkat(&self.folder, self.part.as_slice(), AtFlags::empty());
    }
}

impl Copy {
    fn on(&mut self, command: CopyCommand) -> Result<Option<CopyAnswer>, String> {
        match command {
            CopyCommand::Begin { folder } => {
                self.root = Some(begin(Path::new(OsStr::from_bytes(&folder)))?);
                Ok(Some(CopyAnswer::Ready))
            }
            CopyCommand::Entries(entries) => self.entries(entries).map(Some),
            CopyCommand::Piece { bytes } => {
                self.piece(&bytes)?;
                Ok(Some(CopyAnswer::Taken { bytes: bytes.len() as u32 }))
            }
            CopyCommand::FileEnd => self.file_end().map(|()| None),
            CopyCommand::Finish => Ok(Some(CopyAnswer::Finished)),
        }
    }

    fn entries(&mut self, entries: Vec<FileEntry>) -> Result<CopyAnswer, String> {
        if entries.len() > MOST_ENTRIES || !self.wanted.is_empty() {
            return Err("the launcher sent more than was asked for".into());
        }
        let mut files = Vec::new();
        for (index, entry) in entries.into_iter().enumerate() {
            entry.check()?;
            let name = String::from_utf8_lossy(&entry.path).into_owned();
            if self.place(&entry).map_err(|error| format!("`{name}`: {error}"))? {
                files.push(index as u32);
                self.wanted.push(entry);
            }
        }
        self.wanted.reverse();
        Ok(CopyAnswer::Wanted { files })
    }

    /// Makes a folder or link; for a file, returns whether it must be sent.
    fn place(&self, entry: &FileEntry) -> io::Result<bool> {
        let (folder, name) = self.parent(&entry.path)?;
        let there = match statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) => Some(there),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(error.into()),
        };
        let kind = there.map(|there| FileType::from_raw_mode(there.st_mode));
        match &entry.kind {
            EntryKind::Folder { mode } => {
                match kind {
                    Some(FileType::Directory) => return Ok(false),
                    Some(_) => {
                        return Err(io::Error::other("there is something else of that name"));
                    }
                    // Its owner must be able to write into it. Another host that shares the folder
                    // may be faster.
                    None => {
                        match mkdirat(&folder, name, Mode::from_raw_mode(mode & MODE | 0o700)) {
                            Err(Errno::EXIST) => return self.place(entry),
                            made => made?,
                        }
                    }
                }
                Ok(false)
            }
            EntryKind::Link { target } => {
                match kind {
                    Some(FileType::Symlink)
                        if readlinkat(&folder, name, Vec::new())?.as_bytes()
                            == target.as_slice() =>
                    {
                        return Ok(false);
                    }
                    Some(FileType::Directory) => {
                        return Err(io::Error::other("there is a folder of that name"));
                    }
                    Some(_) => unlinkat(&folder, name, AtFlags::empty())?,
                    None => {}
                }
                match symlinkat(target.as_slice(), &folder, name) {
                    Err(Errno::EXIST) => self.place(entry),
                    made => Ok(made.map(|()| false)?),
                }
            }
            EntryKind::File { size, modified, .. } => Ok(match (kind, there) {
                (Some(FileType::Directory), _) => {
                    return Err(io::Error::other("there is a folder of that name"));
                }
                (Some(FileType::RegularFile), Some(there)) => {
                    (there.st_size as u64, (there.st_mtime, there.st_mtime_nsec as u32))
                        != (*size, *modified)
                }
                _ => true,
            }),
        }
    }

    fn piece(&mut self, bytes: &[u8]) -> Result<(), String> {
        let entry = self.wanted.last().ok_or("the launcher sent a file that nobody asked for")?;
        let EntryKind::File { size, .. } = entry.kind else { return Ok(()) };
        let name = String::from_utf8_lossy(&entry.path).into_owned();
        let failed = |error: io::Error| format!("`{name}`: {error}");
        if self.open.is_none() {
            let path = entry.path.clone();
            self.open = Some(self.create(&path).map_err(failed)?);
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        open.written += bytes.len() as u64;
        if open.written > size {
            return Err(format!("`{name}` has grown while it was copied"));
        }
        open.file.write_all(bytes).map_err(failed)
    }

    fn create(&self, path: &[u8]) -> io::Result<PartFile> {
        let (folder, name) = self.parent(path)?;
        let owner = format!("{PART}{}-{}", hostname(), std::process::id());
        let part = [b".", name.as_bytes(), owner.as_bytes()].concat();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let file =
            openat(&folder, part.as_slice(), flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)?;
        Ok(PartFile { folder, part, file: file.into(), written: 0 })
    }

    fn file_end(&mut self) -> Result<(), String> {
        let open = self.open.take();
        let Some(entry) = self.wanted.pop() else {
            return Err("the launcher sent a file that nobody asked for".into());
        };
        let name = String::from_utf8_lossy(&entry.path).into_owned();
        let failed = |error: io::Error| format!("`{name}`: {error}");
        // An empty file has no piece.
        let open = open.map_or_else(|| self.create(&entry.path), Ok).map_err(failed)?;
        let EntryKind::File { mode, size, modified } = entry.kind else { return Ok(()) };
        if open.written < size {
            return Err(format!("`{name}` has become shorter while it was copied"));
        }
        complete(&open, &entry.path, mode, modified).map_err(failed)
    }

    /// The open folder of a path, and the name in it. No folder on the way may be a link.
    fn parent<'a>(&self, path: &'a [u8]) -> io::Result<(OwnedFd, &'a OsStr)> {
        let root = self.root.as_ref().ok_or_else(|| io::Error::other("no folder was named"))?;
        let mut folder = root.try_clone()?;
        let path = Path::new(OsStr::from_bytes(path));
        for part in path.parent().into_iter().flat_map(Path::components) {
            folder = openat(folder.as_fd(), part.as_os_str(), FOLDER, Mode::empty())?;
        }
        let name = path.file_name().ok_or_else(|| io::Error::other("the name is empty"))?;
        Ok((folder, name))
    }
}

const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Gives a file its permissions, its time and its name.
fn complete(
    open: &PartFile,
    path: &[u8],
    mode: u32,
    (seconds, nanos): (i64, u32),
) -> io::Result<()> {
    let name = Path::new(OsStr::from_bytes(path)).file_name();
    let name = name.ok_or_else(|| io::Error::other("the name is empty"))?;
    fchmod(&open.file, Mode::from_raw_mode(mode & MODE))?;
    let time = Timespec { tv_sec: seconds, tv_nsec: i64::from(nanos) };
    futimens(&open.file, &Timestamps { last_access: time, last_modification: time })?;
    renameat(&open.folder, open.part.as_slice(), &open.folder, name)?;
    Ok(())
}

/// Creates the folder that is copied into, and opens it.
fn begin(folder: &Path) -> Result<OwnedFd, String> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let folder = home.join(folder.strip_prefix("~").unwrap_or(folder));
    let failed = |error: io::Error| format!("`{}`: {error}", folder.display());
    fs::create_dir_all(&folder).map_err(failed)?;
    let opened = fs::File::open(&folder).map_err(failed)?;
    match opened.metadata().map_err(failed)?.is_dir() {
        true => Ok(opened.into()),
        false => Err(format!("`{}` is not a folder", folder.display())),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn entry(path: &str, kind: EntryKind) -> FileEntry {
        FileEntry { path: path.into(), kind }
    }

    fn file(path: &str, size: u64) -> FileEntry {
        entry(path, EntryKind::File { mode: 0o6755, size, modified: (1_000_000_000, 7) })
    }

    fn start(folder: &Path) -> Copy {
        let mut copy = Copy::default();
        let folder = folder.as_os_str().as_bytes().to_vec();
        assert_eq!(copy.on(CopyCommand::Begin { folder }), Ok(Some(CopyAnswer::Ready)));
        copy
    }

    fn wanted(copy: &mut Copy, entries: Vec<FileEntry>) -> Vec<u32> {
        match copy.on(CopyCommand::Entries(entries)) {
            Ok(Some(CopyAnswer::Wanted { files })) => files,
            other => panic!("{other:?}"),
        }
    }

    fn send(copy: &mut Copy, text: &str) {
        let bytes = text.as_bytes().to_vec();
        copy.on(CopyCommand::Piece { bytes }).unwrap();
        copy.on(CopyCommand::FileEnd).unwrap();
    }

    #[test]
    fn files_folders_and_links_arrive_with_their_permissions_and_are_skipped_the_next_time() {
        let place = tempfile::tempdir().unwrap();
        let target = place.path().join("new/folder");
        let entries = || {
            vec![
                entry("d", EntryKind::Folder { mode: 0o750 }),
                file("d/a", 5),
                entry("d/l", EntryKind::Link { target: "a".into() }),
                file("empty", 0),
            ]
        };
        let mut copy = start(&target);
        assert_eq!(wanted(&mut copy, entries()), [1, 3]);
        send(&mut copy, "hello");
        copy.on(CopyCommand::FileEnd).unwrap();
        assert_eq!(fs::read_to_string(target.join("d/l")).unwrap(), "hello");
        let mode = |name: &str| fs::metadata(target.join(name)).unwrap().permissions().mode();
        assert_eq!(mode("d/a") & 0o7777, 0o755, "never set-uid");
        assert_eq!(mode("d") & 0o777, 0o750);
        assert_eq!(fs::metadata(target.join("empty")).unwrap().len(), 0);
        assert_eq!(wanted(&mut start(&target), entries()), [] as [u32; 0]);
        assert_eq!(wanted(&mut start(&target), vec![file("d/a", 6)]), [0]);
    }

    #[test]
    fn an_interrupted_file_is_sent_again_as_a_whole() {
        let place = tempfile::tempdir().unwrap();
        let mut copy = start(place.path());
        assert_eq!(wanted(&mut copy, vec![file("a", 10)]), [0]);
        copy.on(CopyCommand::Piece { bytes: b"01234".into() }).unwrap();
        drop(copy);
        assert!(!place.path().join("a").exists());
        let mut copy = start(place.path());
        assert_eq!(wanted(&mut copy, vec![file("a", 10)]), [0]);
        send(&mut copy, "0123456789");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
        let error = {
            assert_eq!(wanted(&mut copy, vec![file("b", 10)]), [0]);
            copy.on(CopyCommand::FileEnd).unwrap_err()
        };
        assert_eq!(error, "`b` has become shorter while it was copied");
    }

    #[test]
    fn nothing_is_written_through_a_link() {
        let place = tempfile::tempdir().unwrap();
        let (inside, outside) = (place.path().join("in"), place.path().join("out"));
        fs::create_dir_all(&inside).unwrap();
        fs::create_dir_all(&outside).unwrap();
        symlink(&outside, inside.join("d")).unwrap();
        fs::write(outside.join("f"), "mine").unwrap();
        symlink(outside.join("f"), inside.join("f")).unwrap();
        let refused =
            |entries: Vec<FileEntry>| start(&inside).on(CopyCommand::Entries(entries)).unwrap_err();
        assert!(refused(vec![file("d/x", 1)]).starts_with("`d/x`: "));
        assert!(
            refused(vec![entry("d", EntryKind::Folder { mode: 0o755 })]).contains("something else")
        );
        assert!(refused(vec![file("../x", 1)]).contains("not a path below the folder"));
        let link = EntryKind::Link { target: "../out".into() };
        assert!(refused(vec![entry("l", link)]).contains("outside the folder"));
        // A link in the place of a file is replaced, not followed.
        let mut copy = start(&inside);
        assert_eq!(wanted(&mut copy, vec![file("f", 3)]), [0]);
        send(&mut copy, "new");
        assert_eq!(fs::read_to_string(outside.join("f")).unwrap(), "mine");
        assert_eq!(fs::read_to_string(inside.join("f")).unwrap(), "new");
    }

    #[test]
    fn what_nobody_asked_for_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let mut copy = start(place.path());
        assert!(copy.on(CopyCommand::Piece { bytes: vec![1] }).is_err());
        assert!(copy.on(CopyCommand::FileEnd).is_err());
        assert!(Copy::default().on(CopyCommand::Entries(vec![file("a", 1)])).is_err());
        assert_eq!(wanted(&mut copy, vec![file("a", 1)]), [0]);
        assert!(copy.on(CopyCommand::Piece { bytes: vec![1, 2] }).unwrap_err().contains("grown"));
    }
}
