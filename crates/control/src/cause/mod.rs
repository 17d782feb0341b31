//! Why a process ended: what matters in its exception, its traceback or its last lines.
//!
//! A message may be one line or two hundred. The launcher shows a few of them: what was raised, what
//! caused it, and where in the user's own code. [`gist`] picks these lines out of the text of any
//! exception, with or without its traceback; [`Cause`] adds how the process ended. The result is
//! bounded, whatever the text. Nothing here prints.

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
pub use kind::CauseKind;
pub use tail::Tail;
use traceback::{Exception, Relation};

/// Lines below the first one that are shown at most.
const LINES: usize = 12;

/// Characters of a line that are shown at most.
const WIDTH: usize = 400;

/// What matters in a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gist {
    /// What was raised: `ValueError: boom`.
    pub headline: String,
    /// What else to know, one line each.
    pub details: Vec<String>,
}

impl fmt::Display for Gist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.headline)?;
        self.details.iter().try_for_each(|line| write!(f, "\n{line}"))
    }
}

/// What matters in the text of an exception. The gist of a gist is the same again.
pub fn gist(text: &str) -> Gist {
    let text = printable(text);
    summary(&text.lines().collect::<Vec<_>>())
}

/// The first line of a gist that was sent as text.
pub fn headline(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// What is known of the way in which a process left its world.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Farewell {
    /// It has said nothing.
    #[default]
    None,
    /// It left in order.
    InOrder,
    /// It left because of this exception.
    Exception(String),
}

impl Farewell {
    /// What a process says when it leaves.
    pub fn of(error: Option<String>) -> Farewell {
        error.map_or(Farewell::InOrder, Farewell::Exception)
    }
}

/// Why a process ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// Reads behind the name of a rank: `raised ValueError: boom`, `exited with code 3`.
    #[serde(rename = "text")]
    pub what: String,
    /// What else to know, one line each.
    pub details: Vec<String>,
    /// What kind of thing it was.
    pub kind: CauseKind,
}

impl Cause {
    /// Judges by how a process ended, what it said of that and what it wrote last.
    pub fn of(exit: Option<&Exit>, farewell: &Farewell, tail: &Tail) -> Cause {
        let raised = match farewell {
            Farewell::Exception(text) => Some(gist(text)),
            _ if !matches!(exit, Some(Exit::Code(1..))) => None,
            Farewell::None => tail.exception(),
            // Somebody who leaves in order and fails then may have called `sys.exit`: a traceback
            // counts only if nothing was written after it.
            Farewell::InOrder => tail.exception().filter(|gist| tail.ends_with(&gist.headline)),
        };
        if let Some(Gist { headline, details }) = raised {
            return Cause {
                what: format!("raised {headline}"),
                details,
                kind: CauseKind::Exception,
            };
        }
        let what = exit.map_or_else(|| "failed".into(), |exit| noise::cut(&exit.to_string()));
        let details = match (tail.crash(), tail.last()) {
            (Some(crash), _) if matches!(exit, Some(Exit::Signal(_))) => crash,
            (_, last) => last,
        };
        Cause { what, details, kind: exit.map(CauseKind::of).unwrap_or_default() }
    }

    /// Something that needs no more than these words.
    pub fn plain(kind: CauseKind, what: impl Into<String>) -> Cause {
        Cause { what: what.into(), details: Vec::new(), kind }
    }

    /// Whether an exception ended the process.
    pub fn raised(&self) -> bool {
        self.kind == CauseKind::Exception
    }

    /// Whether some ranks waited for others in vain.
    pub fn is_stall(&self) -> bool {
        self.raised() && self.details.iter().any(|line| line == "Missing ranks:")
    }

    /// The details as indented lines, each with its end.
    pub fn lines(&self) -> String {
        self.details.iter().map(|line| format!("  {line}\n")).collect()
    }
}

/// Puts together what matters in a chain of exceptions, whose last one was raised.
fn summary(lines: &[&str]) -> Gist {
    let mut chain = traceback::chain(lines);
    let Some((_, mut main)) = chain.pop() else { return Gist::default() };
    let mut causes: Vec<(Relation, Exception)> = Vec::new();
    for (relation, cause) in chain.into_iter().rev() {
        if cause.is_echo_of(&main) {
            main.place = cause.place.or(main.place);
        } else if !noise::is_empty_link(cause.class()) {
            causes.push((relation, cause));
        }
    }
    // The nearest one says how it came to this, the last one why.
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
    Gist { headline, details }
}

/// Lines that are not too long and do not say again what stands above them.
fn without_echoes(lines: &[String], headline: &str) -> Vec<String> {
    let mut lines: Vec<String> = lines.iter().map(|line| noise::cut(line)).collect();
    lines.retain(|line| line != headline);
    lines.dedup();
    lines
}

/// Keeps the beginning and the end of what is too long.
fn shorten(lines: &mut Vec<String>, most: usize) {
    if lines.len() > most {
        let tail = most / 3;
        let head = most - tail - 1;
        let gone = lines.len() - head - tail;
        lines.splice(head..lines.len() - tail, [format!("… ({gone} more lines)")]);
    }
}
