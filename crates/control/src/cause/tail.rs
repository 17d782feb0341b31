//! The last lines that a process wrote to standard error.

use std::collections::VecDeque;

use super::{ErrorSummary, noise, summary, traceback};
use crate::printable;

/// How many lines are kept.
const KEPT: usize = 200;

/// How many lines are shown if nothing indicates which of them matter.
const SHOWN: usize = 3;

/// How many lines are shown of what native code printed while crashing.
const CRASH: usize = 3;

/// Prefixes of lines that native code prints when it ends a process.
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
    /// Whether the lines include standard output, because both streams go to one terminal.
    pub(crate) has_both_streams: bool,
}

impl Tail {
    /// Records a line that the process has written.
    pub fn wrote(&mut self, line: &str) {
        let line = noise::cut(printable(line).trim_end());
        if !line.is_empty() {
            if self.lines.len() == KEPT {
                self.lines.pop_front();
            }
            self.lines.push_back(line);
        }
    }

    /// Whether nothing was written.
    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// A summary of the last traceback.
    pub(super) fn exception(&self) -> Option<ErrorSummary> {
        let lines: Vec<&str> = self.lines.iter().map(String::as_str).collect();
        let start = traceback::start_of_last(&lines)?;
        Some(summary(&lines[start..])).filter(|error_summary| !error_summary.headline.is_empty())
    }

    /// Whether the last line is the headline of this exception.
    pub(super) fn ends_with(&self, headline: &str) -> bool {
        let last = self.lines.iter().rev().find(|line| !noise::is_noise(line.trim()));
        last.is_some_and(|line| summary(&[line]).headline == headline)
    }

    /// What native code printed when it ended the process.
    pub(super) fn crash(&self) -> Option<Vec<String>> {
        let lines: Vec<&str> = self.lines.iter().map(String::as_str).collect();
        let is_crash = |line: &&str| CRASHES.iter().any(|start| line.starts_with(start));
        let start = lines.iter().rposition(is_crash)?;
        let ErrorSummary { headline, mut details } = summary(&lines[start..]);
        details.truncate(CRASH);
        details.insert(0, headline);
        Some(details)
    }

    /// The very last lines, for lack of anything better.
    pub(super) fn last(&self) -> Vec<String> {
        let relevant = self.lines.iter().rev().filter(|line| !noise::is_noise(line.trim()));
        let mut last: Vec<&String> = relevant.take(SHOWN).collect();
        last.reverse();
        let place = if self.has_both_streams { "" } else { " on stderr" };
        match last.as_slice() {
            [] => Vec::new(),
            [line] => vec![format!("its last line{place}: {}", line.trim())],
            lines => {
                let lines = lines.iter().map(|line| (*line).clone());
                std::iter::once(format!("its last lines{place}:")).chain(lines).collect()
            }
        }
    }
}
