//! Error messages: what is wrong, then how to fix it; in color on a terminal.

use std::fmt::Display;
use std::io::Write;

use anstyle::{AnsiColor, Style};
use ronde_control::printable;

/// Words at the start of a line that say what kind of line it is, and their colors.
const MARKS: [(&str, AnsiColor); 5] = [
    ("error:", AnsiColor::Red),
    ("warning:", AnsiColor::Yellow),
    ("hint:", AnsiColor::Cyan),
    ("note:", AnsiColor::Green),
    ("more:", AnsiColor::Cyan),
];

/// Writes to standard error; colors the marks at the start of lines on a terminal, unless NO_COLOR
/// is set.
pub(crate) fn print_stderr(text: &str) {
    // If standard error is closed, there is no way to report anything.
    let _ =
        writeln!(anstream::stderr().lock(), "{}", colored(printable(text).trim_end_matches('\n')));
}

fn colored(text: &str) -> String {
    let line = |line: &str| match MARKS.iter().find(|(mark, _)| line.starts_with(mark)) {
        Some((mark, color)) => {
            let style = Style::new().bold().fg_color(Some((*color).into()));
            format!("{style}{mark}{style:#}{}", &line[mark.len()..])
        }
        None => line.to_owned(),
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// The exit code for an error on the command line or in the settings.
pub(crate) const USAGE: u8 = 2;

/// An error that the user can fix.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UserError {
    /// What is wrong, one line each.
    pub(crate) errors: Vec<String>,
    /// How to fix it.
    pub(crate) hint: String,
}

impl UserError {
    pub(crate) fn new(error: impl Display, hint: impl Into<String>) -> UserError {
        UserError { errors: vec![error.to_string()], hint: hint.into() }
    }
}

impl UserError {
    /// Both errors together.
    pub(crate) fn and(mut self, other: UserError) -> UserError {
        self.errors.extend(other.errors);
        if !self.hint.contains(&other.hint) {
            self.hint = format!("{}; {}", self.hint, other.hint);
        }
        self
    }
}

/// Both results, or the errors of both.
pub(crate) fn both<A, B>(
    one: Result<A, UserError>,
    other: Result<B, UserError>,
) -> Result<(A, B), UserError> {
    match (one, other) {
        (Ok(one), Ok(other)) => Ok((one, other)),
        (Err(one), Err(other)) => Err(one.and(other)),
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

impl Display for UserError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for error in &self.errors {
            writeln!(f, "error: {error}")?;
        }
        write!(f, "\nhint: {}", self.hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_at_the_start_of_lines_are_colored() {
        let text = "error: a\n\nhint: b\nc error: d";
        let shown = colored(text);
        assert_eq!(
            shown,
            "\x1b[1m\x1b[31merror:\x1b[0m a\n\n\x1b[1m\x1b[36mhint:\x1b[0m b\nc error: d"
        );
        assert_eq!(anstream::adapter::strip_str(&shown).to_string(), text);
    }
}
