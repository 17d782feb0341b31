//! Copying files to a host, over the connection to its agent.
//!
//! 1. `Begin` names the folder to copy into; the agent creates it if necessary and answers `Ready`.
//! 2. `Entries` lists the next folders, links and files, parents first. The agent makes the folders
//!    and links, and answers `Wanted` with the files that it does not have yet: a file with the same
//!    size and time of modification is left alone, so a copy that was interrupted continues.
//! 3. Each wanted file follows in `Piece`s and a `FileEnd`. The agent acknowledges what it has
//!    written with `Taken`; at most [`COPY_WINDOW`] bytes are in flight.
//! 4. `Finish` is answered by `Finished`. An error at any step is answered by `Failed`, and ends the
//!    copy.
//!
//! Names come from a peer and from file systems: [`FileEntry::check`] refuses those that leave the
//! folder. The agent follows no link below the folder that it copies into.

use serde::{Deserialize, Serialize};

/// Bytes that may be on their way to a host.
pub const COPY_WINDOW: u64 = 4 << 20;

/// Most entries in one message, and most bytes of their names.
pub const MOST_ENTRIES: usize = 1000;

/// Longest path below the folder, or target of a link, in bytes.
pub const LONGEST_PATH: usize = 4096;

/// Permissions that are copied: not those to become another user.
pub const MODE: u32 = 0o777;

/// Commands of the driver about a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyCommand {
    /// Copy into this folder; a relative one is below the home directory.
    Begin {
        /// Path of the folder, as bytes.
        #[serde(with = "serde_bytes")]
        folder: Vec<u8>,
    },
    /// The next entries, parents first.
    Entries(Vec<FileEntry>),
    /// Bytes of the next file that is wanted.
    Piece {
        /// At most `MAX_PIECE` of them.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// That file is complete.
    FileEnd,
    /// There are no more entries.
    Finish,
}

/// Answers of an agent about a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyAnswer {
    /// The folder exists.
    Ready,
    /// These files of the last entries are to be sent, in this order.
    Wanted {
        /// Their places among the entries.
        files: Vec<u32>,
    },
    /// This many bytes have been written.
    Taken {
        /// The size of a piece.
        bytes: u32,
    },
    /// Everything is there.
    Finished,
    /// The copy has ended with an error.
    Failed {
        /// Human-readable reason.
        reason: String,
    },
}

/// A folder, link or file to copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its path below the folder that is copied into, as bytes.
    #[serde(with = "serde_bytes")]
    pub path: Vec<u8>,
    /// What it is.
    pub kind: EntryKind,
}

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    /// A folder.
    Folder {
        /// Its permissions.
        mode: u32,
    },
    /// A regular file.
    File {
        /// Its permissions.
        mode: u32,
        /// Its size, in bytes.
        size: u64,
        /// When it was last modified, in seconds since 1970 and nanoseconds.
        modified: (i64, u32),
    },
    /// A symbolic link.
    Link {
        /// Where it points, as bytes.
        #[serde(with = "serde_bytes")]
        target: Vec<u8>,
    },
}

impl FileEntry {
    /// Says what is wrong with an entry that would leave the folder it is copied into.
    pub fn check(&self) -> Result<(), String> {
        let path = String::from_utf8_lossy(&self.path);
        if depth(&self.path, 0, 0).is_none_or(|depth| depth < 1) || has_dots(&self.path) {
            return Err(format!("`{path}` is not a path below the folder"));
        }
        let EntryKind::Link { target } = &self.kind else { return Ok(()) };
        // It stays in the folder that is copied, the first one of its path.
        let parent = self.path.iter().filter(|byte| **byte == b'/').count() as i64;
        match depth(target, parent, parent.min(1)) {
            Some(_) => Ok(()),
            None => {
                let target = String::from_utf8_lossy(target);
                Err(format!("`{path}` is a link to `{target}`, outside the folder that is copied"))
            }
        }
    }
}

/// How deep a relative path ends that starts at this depth, if it never rises above the `least`.
fn depth(path: &[u8], start: i64, least: i64) -> Option<i64> {
    let is_relative = !path.is_empty() && path.len() <= LONGEST_PATH && !path.starts_with(b"/");
    let mut depth = start;
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => depth -= 1,
            _ => depth += 1,
        }
        if depth < least || part.contains(&0) {
            return None;
        }
    }
    is_relative.then_some(depth)
}

fn has_dots(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').any(|part| matches!(part, b"" | b"." | b".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(path: &str, kind: EntryKind) -> bool {
        FileEntry { path: path.into(), kind }.check().is_ok()
    }

    #[test]
    fn a_path_stays_below_the_folder() {
        let file = EntryKind::File { mode: 0o644, size: 0, modified: (0, 0) };
        for path in ["a", "a/b", ".hidden", "a/..b", "odd name\n"] {
            assert!(checked(path, file.clone()), "{path}");
        }
        for path in ["", "/etc/passwd", "..", "a/../b", "a/./b", "a//b", "a/", ".", "a\0b"] {
            assert!(!checked(path, file.clone()), "{path:?}");
        }
        assert!(!checked(&"x".repeat(LONGEST_PATH + 1), file));
    }

    #[test]
    fn a_link_stays_below_the_folder() {
        let link = |target: &str| EntryKind::Link { target: target.into() };
        for (path, target) in
            [("a", "b"), ("a/b", "c"), ("a/b/c", "../d"), ("a", "."), ("a/b", "./x//y")]
        {
            assert!(checked(path, link(target)), "{path} -> {target}");
        }
        for (path, target) in [
            ("a", "/etc/passwd"),
            ("a", "../b"),
            ("a/b", "../c"),
            ("a/b/c", "../../d"),
            ("a/b", "x/../../c"),
            ("a", "b/../../a"),
            ("a", ""),
            ("a", "x\0"),
        ] {
            assert!(!checked(path, link(target)), "{path} -> {target}");
        }
    }
}
