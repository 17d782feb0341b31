//! Why a process ended: the relevant lines of its exception, its traceback or its output.
//!
//! A message may have one line or two hundred. The launcher shows a few of them: what was raised,
//! what caused it, and where in the user's own code. [`error_summary`] picks these lines from the
//! text of any exception, with or without its traceback; [`Cause`] adds how the process ended. The
//! result is bounded, whatever the text. Nothing here prints.

mod kind;
mod noise;
mod tail;
#[cfg(test)]
mod tests;
mod traceback;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::printable;
use crate::wire::agent::Exit;
pub use kind::{CauseKind, Raised};
pub use tail::Tail;
use traceback::{PyException, Relation};

/// Maximum number of lines shown below the first one.
const LINES: usize = 12;

/// Maximum number of characters shown of a line.
const WIDTH: usize = 400;

/// The relevant lines of an error message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorSummary {
    /// What was raised: `ValueError: boom`.
    pub headline: String,
    /// Further lines to show.
    pub details: Vec<String>,
}

impl fmt::Display for ErrorSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.headline)?;
        self.details.iter().try_for_each(|line| write!(f, "\n{line}"))
    }
}

/// Summarizes the text of an exception. Summarizing a summary does not change it.
pub fn error_summary(text: &str) -> ErrorSummary {
    let text = printable(text);
    summary(&text.lines().collect::<Vec<_>>())
}

/// The first line of a summary that was sent as text.
pub fn headline(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// How a process left its world, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Departure {
    /// It has reported nothing.
    #[default]
    None,
    /// It left in an orderly way.
    InOrder,
    /// It left because of this exception.
    Exception(Raised),
}

impl Departure {
    /// What a process's `Leaving` message means.
    pub fn of(error: Option<Raised>) -> Departure {
        error.map_or(Departure::InOrder, Departure::Exception)
    }
}

/// Why a process ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// Continues the name of a rank: `raised ValueError: boom`, `exited with code 3`.
    #[serde(rename = "text")]
    pub what: String,
    /// Further lines to show.
    pub details: Vec<String>,
    /// The kind of cause.
    pub kind: CauseKind,
}

impl Cause {
    /// Derives the cause from how a process ended, what it reported and what it wrote last.
    pub fn of(exit: Option<&Exit>, departure: &Departure, tail: &Tail) -> Cause {
        let kind = match departure {
            Departure::Exception(raised) => raised.kind,
            _ => CauseKind::Exception,
        };
        let raised = match departure {
            Departure::Exception(raised) => Some(error_summary(&raised.text)),
            _ if !matches!(exit, Some(Exit::Code(1..))) => None,
            Departure::None => tail.exception(),
            // A process that leaves in an orderly way and fails afterwards may have called
            // `sys.exit`: a traceback counts only if nothing was written after it.
            Departure::InOrder => {
                tail.exception().filter(|error_summary| tail.ends_with(&error_summary.headline))
            }
        };
        if let Some(ErrorSummary { headline, details }) = raised {
            return Cause { what: format!("raised {headline}"), details, kind };
        }
        let what = exit.map_or_else(|| "failed".into(), |exit| noise::cut(&exit.to_string()));
        let details = match (tail.crash(), tail.last()) {
            (Some(crash), _) if matches!(exit, Some(Exit::Signal(_))) => crash,
            (_, last) => last,
        };
        Cause { what, details, kind: exit.map(CauseKind::of).unwrap_or_default() }
    }

    /// A cause without further details.
    pub fn plain(kind: CauseKind, what: impl Into<String>) -> Cause {
        Cause { what: what.into(), details: Vec::new(), kind }
    }

    /// Whether an exception ended the process.
    pub fn raised(&self) -> bool {
        self.kind == CauseKind::Exception
    }

    /// The details as indented lines.
    pub fn lines(&self) -> String {
        self.details.iter().map(|line| format!("  {line}\n")).collect()
    }
}

/// Summarizes a chain of exceptions; the last one is the one that was raised.
fn summary(lines: &[&str]) -> ErrorSummary {
    let mut chain = traceback::chain(lines);
    let Some((_, mut main)) = chain.pop() else { return ErrorSummary::default() };
    let mut causes: Vec<(Relation, PyException)> = Vec::new();
    for (relation, cause) in chain.into_iter().rev() {
        if cause.is_echo_of(&main) {
            main.place = cause.place.or(main.place);
        } else if !noise::is_empty_link(cause.class()) {
            causes.push((relation, cause));
        }
    }
    // The nearest cause says how it happened, the last one why.
    if causes.len() > 2 {
        causes.drain(1..causes.len() - 1);
    }
    let mut rest = main.members();
    rest.extend(main.place.as_ref().map(ToString::to_string));
    let last = causes.len().saturating_sub(1);
    for (index, (relation, cause)) in causes.iter().enumerate() {
        rest.push(format!("{relation}{}", cause.headline));
        if index == last {
            rest.extend(cause.details.iter().take(2).cloned());
            rest.extend(cause.place.as_ref().map(ToString::to_string));
        }
    }
    let headline = noise::cut(&main.headline);
    let mut details = without_echoes(&main.details, &headline);
    shorten(&mut details, LINES.saturating_sub(rest.len()).max(3));
    details.extend(rest);
    let mut details = without_echoes(&details, &headline);
    shorten(&mut details, LINES);
    ErrorSummary { headline, details }
}

/// Cuts long lines, and drops those that repeat the headline or the line above.
fn without_echoes(lines: &[String], headline: &str) -> Vec<String> {
    let mut lines: Vec<String> = lines.iter().map(|line| noise::cut(line)).collect();
    lines.retain(|line| line != headline);
    lines.dedup();
    lines
}

/// Keeps the beginning and the end of long lists.
fn shorten(lines: &mut Vec<String>, most: usize) {
    if lines.len() > most {
        let tail = most / 3;
        let head = most - tail - 1;
        let gone = lines.len() - head - tail;
        lines.splice(head..lines.len() - tail, [format!("… ({gone} more lines)")]);
    }
}
