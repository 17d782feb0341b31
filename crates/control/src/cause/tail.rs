//! The last lines that a process wrote to standard error.

use std::collections::VecDeque;

use super::{Gist, noise, summary, traceback};
use crate::printable;

/// Lines that are kept.
const KEPT: usize = 200;

/// Lines that are shown where nothing says which of them matter.
const SHOWN: usize = 3;

/// Lines that are shown of the last words of native code.
const CRASH: usize = 3;

/// Beginnings of the lines with which native code ends a process.
const CRASHES: &[&str] = &[
    "terminate called ",
    "libc++abi: ",
    "Fatal Python error: ",
    "thread '",
    "F0000 ",
    "python: ",
    "double free or corruption",
    "malloc(): ",
    "free(): ",
    "*** stack smashing detected ***",
];

/// The last lines that a process wrote to standard error.
#[derive(Clone, Debug, Default)]
pub struct Tail {
    lines: VecDeque<String>,
}

impl Tail {
    /// The process has written a line.
    pub fn wrote(&mut self, line: &str) {
        let line = noise::cut(printable(line).trim_end());
        if !line.is_empty() {
            if self.lines.len() == KEPT {
                self.lines.pop_front();
            }
            self.lines.push_back(line);
        }
    }

    /// The exception whose traceback was written last.
    pub(super) fn exception(&self) -> Option<Gist> {
        let lines: Vec<&str> = self.lines.iter().map(String::as_str).collect();
        let start = traceback::start_of_last(&lines)?;
        Some(summary(&lines[start..])).filter(|gist| !gist.headline.is_empty())
    }

    /// Whether the last line says that an exception was raised.
    pub(super) fn ends_with(&self, headline: &str) -> bool {
        let last = self.lines.iter().rev().find(|line| !noise::is_noise(line.trim()));
        last.is_some_and(|line| summary(&[line]).headline == headline)
    }

    /// What native code said before it ended the process.
    pub(super) fn crash(&self) -> Option<Vec<String>> {
        let lines: Vec<&str> = self.lines.iter().map(String::as_str).collect();
        let is_crash = |line: &&str| CRASHES.iter().any(|start| line.starts_with(start));
        let start = lines.iter().rposition(is_crash)?;
        let Gist { headline, mut details } = summary(&lines[start..]);
        details.truncate(CRASH);
        details.insert(0, headline);
        Some(details)
    }

    /// The very last lines.
    pub(super) fn last(&self) -> Vec<String> {
        let telling = self.lines.iter().rev().filter(|line| !noise::is_noise(line.trim()));
        let mut last: Vec<&String> = telling.take(SHOWN).collect();
        last.reverse();
        match last.as_slice() {
            [] => Vec::new(),
            [line] => vec![format!("its last line on stderr: {}", line.trim())],
            lines => {
                let lines = lines.iter().map(|line| (*line).clone());
                std::iter::once("its last lines on stderr:".to_owned()).chain(lines).collect()
            }
        }
    }
}
