//! Reads the text of exceptions as Python prints it: chains, groups, stacks, and messages that hold
//! the traceback of another process or of a graph.

use std::fmt;

use super::noise::{self, is_noise};

const DIRECT: &str = "The above exception was the direct cause of the following exception:";
const DURING: &str = "During handling of the above exception, another exception occurred:";
const GROUP: &str = "+ Exception Group Traceback (most recent call last):";
const HEADER: &str = "Traceback (most recent call last):";

/// Members of a group that are shown.
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
pub(super) struct Exception {
    /// Its class and the first line of its message.
    pub(super) headline: String,
    /// What matters in the rest of its message.
    pub(super) details: Vec<String>,
    /// The innermost place in the user's own code.
    pub(super) place: Option<Place>,
    members: Vec<Exception>,
}

/// A place in a program.
#[derive(Clone, Debug)]
pub(super) struct Place {
    file: String,
    line: String,
    function: Option<String>,
    code: String,
}

impl Place {
    /// Whether it lies in a library, which the user has not written.
    fn is_foreign(&self) -> bool {
        let folders = ["/site-packages/", "/dist-packages/", "/lib/python3", "<frozen "];
        folders.iter().any(|folder| self.file.contains(folder))
    }
}

impl fmt::Display for Place {
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

impl Exception {
    /// The name of its class, without its module.
    pub(super) fn class(&self) -> &str {
        let path = self.headline.split(':').next().unwrap_or_default();
        path.rsplit('.').next().unwrap_or_default()
    }

    /// Whether this only says again what another one says.
    pub(super) fn is_echo_of(&self, other: &Exception) -> bool {
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

/// The exceptions of a chain in the order in which they were raised, each with how it led to the next.
pub(super) fn chain(lines: &[&str]) -> Vec<(Relation, Exception)> {
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

/// Where the last traceback of somebody's output begins, with the chain it belongs to.
pub(super) fn start_of_last(lines: &[&str]) -> Option<usize> {
    let starts = |line: &&str| line.starts_with(HEADER) || line.trim_start() == GROUP;
    let Some(mut start) = lines.iter().rposition(starts) else { return lonely_syntax_error(lines) };
    // In front of a connecting line stands the exception before.
    while let Some(before) = lines[..start].iter().rposition(|line| !line.is_empty())
        && matches!(lines[before], DIRECT | DURING)
        && let Some(earlier) = lines[..before].iter().rposition(starts)
    {
        start = earlier;
    }
    Some(start)
}

/// The main script cannot even be read: Python prints no header then.
fn lonely_syntax_error(lines: &[&str]) -> Option<usize> {
    let classes = ["SyntaxError: ", "IndentationError: ", "TabError: "];
    let last =
        lines.iter().rposition(|line| classes.iter().any(|class| line.starts_with(class)))?;
    lines[..last].iter().rposition(|line| place(line.trim()).is_some())
}

/// One exception, alone or with its traceback in front.
fn exception(lines: &[&str]) -> Exception {
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
    Exception { members: parts.filter(|part| !part.headline.is_empty()).collect(), ..main }
}

fn read(lines: &[&str]) -> Exception {
    let mut exception = Exception::default();
    let (mut own, mut any, mut innermost_first) = (None, None, false);
    let mut lines = lines.iter().peekable();
    while let Some(line) = lines.next() {
        let text = line.trim();
        if let Some(mut place) = place(text) {
            // What stands deeper below it is its code, with marks.
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

/// A long way to a class is shortened to its name: `a.b.c.d.Error: ...` to `Error: ...`.
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

/// A line of a stack: `File "train.py", line 3, in step`; the interpreter itself leaves the comma out.
fn place(text: &str) -> Option<Place> {
    let (file, rest) = text.strip_prefix("File \"")?.split_once("\", line ")?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (line, rest) = rest.split_at(digits);
    if line.is_empty() {
        return None;
    }
    let function = rest.trim_start_matches(',').strip_prefix(" in ").map(str::to_owned);
    Some(Place { file: file.into(), line: line.into(), function, code: String::new() })
}
