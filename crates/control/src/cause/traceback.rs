//! Parses exceptions as Python prints them: chains, groups, stacks, and messages that contain the
//! traceback of another process or of a graph.

use std::fmt;

use super::noise::{self, is_noise};

const DIRECT: &str = "The above exception was the direct cause of the following exception:";
const DURING: &str = "During handling of the above exception, another exception occurred:";
const GROUP: &str = "+ Exception Group Traceback (most recent call last):";
const HEADER: &str = "Traceback (most recent call last):";

/// How many members of a group are shown.
const MEMBERS: usize = 4;

/// How an exception led to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    Cause,
    Context,
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Relation::Cause => "caused by: ",
            Relation::Context => "while handling: ",
        })
    }
}

/// One exception of a chain.
#[derive(Debug, Default)]
pub(super) struct PyException {
    /// Its class and the first line of its message.
    pub(super) headline: String,
    /// The relevant lines of the rest of its message.
    pub(super) details: Vec<String>,
    /// The innermost location in the user's own code.
    pub(super) place: Option<CodeLocation>,
    members: Vec<PyException>,
}

/// A location in a program.
#[derive(Clone, Debug)]
pub(super) struct CodeLocation {
    file: String,
    line: String,
    function: Option<String>,
    code: String,
}

impl CodeLocation {
    /// Whether it is in a library, not in the user's own code.
    fn is_foreign(&self) -> bool {
        let folders = ["/site-packages/", "/dist-packages/", "/lib/python3", "<frozen "];
        folders.iter().any(|folder| self.file.contains(folder))
    }
}

impl fmt::Display for CodeLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {}:{}", self.file, self.line)?;
        if let Some(function) = self.function.as_ref().filter(|name| *name != "<module>") {
            write!(f, " in {function}")?;
        }
        match self.code.as_str() {
            "" => Ok(()),
            code => write!(f, ": {code}"),
        }
    }
}

impl PyException {
    /// Name of its class, without the module.
    pub(super) fn class(&self) -> &str {
        let path = self.headline.split(':').next().unwrap_or_default();
        path.rsplit('.').next().unwrap_or_default()
    }

    /// Whether this exception only repeats another one.
    pub(super) fn is_echo_of(&self, other: &PyException) -> bool {
        let repeats = self.details.iter().all(|line| *line == other.headline);
        (noise::is_echo(self.class()) && repeats) || self.headline == other.headline
    }

    /// The exceptions of a group, a line or two for each.
    pub(super) fn members(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (index, member) in self.members.iter().enumerate().take(MEMBERS) {
            lines.push(format!("{}. {}", index + 1, member.headline));
            lines.extend(member.details.first().cloned());
        }
        if self.members.len() > MEMBERS {
            lines.push(format!("… ({} more exceptions)", self.members.len() - MEMBERS));
        }
        lines
    }
}

/// The exceptions of a chain in the order they were raised, each with its relation to the next.
pub(super) fn chain(lines: &[&str]) -> Vec<(Relation, PyException)> {
    let mut chain = Vec::new();
    let mut begin = 0;
    for (index, line) in lines.iter().enumerate() {
        let relation = match line.trim_end() {
            DIRECT => Relation::Cause,
            DURING => Relation::Context,
            _ => continue,
        };
        chain.push((relation, exception(&lines[begin..index])));
        begin = index + 1;
    }
    chain.push((Relation::Cause, exception(&lines[begin..])));
    chain.retain(|(_, exception)| !exception.headline.is_empty());
    chain
}

/// Where the last traceback of the output begins, including the chain it belongs to.
pub(super) fn start_of_last(lines: &[&str]) -> Option<usize> {
    let starts = |line: &&str| line.starts_with(HEADER) || line.trim_start() == GROUP;
    let Some(mut start) = lines.iter().rposition(starts) else { return lonely_syntax_error(lines) };
    // The previous exception precedes the connecting line.
    while let Some(before) = lines[..start].iter().rposition(|line| !line.is_empty())
        && matches!(lines[before], DIRECT | DURING)
        && let Some(earlier) = lines[..before].iter().rposition(starts)
    {
        start = earlier;
    }
    Some(start)
}

/// The main script could not be parsed: Python prints no header in that case.
fn lonely_syntax_error(lines: &[&str]) -> Option<usize> {
    let classes = ["SyntaxError: ", "IndentationError: ", "TabError: "];
    let last =
        lines.iter().rposition(|line| classes.iter().any(|class| line.starts_with(class)))?;
    lines[..last].iter().rposition(|line| place(line.trim()).is_some())
}

/// Parses one exception, alone or after its traceback.
fn exception(lines: &[&str]) -> PyException {
    let Some(start) = lines.iter().position(|line| line.trim_start() == GROUP) else {
        return read(lines);
    };
    let mut parts: Vec<Vec<&str>> = vec![vec![HEADER]];
    for line in &lines[start + 1..] {
        let text = line.trim_start();
        if text.starts_with("+-") {
            if text.bytes().any(|byte| byte.is_ascii_digit()) {
                parts.push(Vec::new());
            }
        } else if let (Some(text), Some(part)) = (text.strip_prefix('|'), parts.last_mut()) {
            part.push(text.strip_prefix(' ').unwrap_or(text));
        }
    }
    let mut parts = parts.iter().map(|part| read(part));
    let main = parts.next().unwrap_or_default();
    PyException { members: parts.filter(|part| !part.headline.is_empty()).collect(), ..main }
}

fn read(lines: &[&str]) -> PyException {
    let mut exception = PyException::default();
    let (mut own, mut any, mut innermost_first) = (None, None, false);
    let mut lines = lines.iter().peekable();
    while let Some(line) = lines.next() {
        let text = line.trim();
        if let Some(mut place) = place(text) {
            // The deeper-indented lines below are its code and position markers.
            while let Some(below) = lines.next_if(|below| below.starts_with("    ")) {
                if place.code.is_empty() && !is_noise(below.trim()) {
                    below.trim().clone_into(&mut place.code);
                }
            }
            let slot = if place.is_foreign() { &mut any } else { &mut own };
            if !innermost_first || slot.is_none() {
                *slot = Some(place);
            }
            continue;
        }
        innermost_first |= text.ends_with("(most recent call first):");
        let text = without_stack_header(text);
        if is_noise(text) {
            continue;
        }
        match exception.headline.is_empty() {
            true => exception.headline = short_class(text),
            false => exception.details.push(text.to_owned()),
        }
    }
    exception.place = own.or(any);
    exception
}

/// A line without the words that announce a stack.
fn without_stack_header(text: &str) -> &str {
    for header in [
        HEADER,
        "Original Traceback (most recent call last):",
        " defined at (most recent call last):",
        " (most recent call last):",
        " (most recent call first):",
    ] {
        if let Some(rest) = text.strip_suffix(header) {
            return rest.trim_end_matches([' ', ':']).trim_end_matches("Original");
        }
    }
    text
}

/// Shortens a long class path to its name: `a.b.c.d.Error: ...` to `Error: ...`.
fn short_class(text: &str) -> String {
    let (path, rest) = text.split_once(':').unwrap_or((text, ""));
    let is_path = path.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.'));
    let name = match path.rsplit_once('.') {
        Some((modules, name)) if is_path && modules.matches('.').count() > 1 => name,
        _ => path,
    };
    match rest.trim() {
        "" if is_path => name.to_owned(),
        _ => format!("{name}{}", &text[path.len()..]),
    }
}

/// Parses a stack line: `File "train.py", line 3, in step`; the interpreter itself omits the comma.
fn place(text: &str) -> Option<CodeLocation> {
    let (file, rest) = text.strip_prefix("File \"")?.split_once("\", line ")?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (line, rest) = rest.split_at(digits);
    if line.is_empty() {
        return None;
    }
    let function = rest.trim_start_matches(',').strip_prefix(" in ").map(str::to_owned);
    Some(CodeLocation { file: file.into(), line: line.into(), function, code: String::new() })
}
