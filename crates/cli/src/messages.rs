//! How mistakes are told: what happened, then what to do; on a terminal in colour.

use std::fmt::Display;
use std::io::Write;

use anstyle::{AnsiColor, Style};
use ronde_control::printable;

/// Words that begin a line and say what kind of line it is.
const MARKS: [(&str, AnsiColor); 5] = [
    ("error:", AnsiColor::Red),
    ("warning:", AnsiColor::Yellow),
    ("hint:", AnsiColor::Cyan),
    ("note:", AnsiColor::Green),
    ("more:", AnsiColor::Cyan),
];

/// Writes to standard error; on a terminal, unless NO_COLOR says otherwise, the words that say what a line
/// is stand out.
pub(crate) fn say(text: &str) {
    // Where nobody reads it, nothing can be told.
    let _ =
        writeln!(anstream::stderr().lock(), "{}", coloured(printable(text).trim_end_matches('\n')));
}

fn coloured(text: &str) -> String {
    let line = |line: &str| match MARKS.iter().find(|(mark, _)| line.starts_with(mark)) {
        Some((mark, color)) => {
            let style = Style::new().bold().fg_color(Some((*color).into()));
            format!("{style}{mark}{style:#}{}", &line[mark.len()..])
        }
        None => line.to_owned(),
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// The exit code for a mistake on the command line or in the settings.
pub(crate) const USAGE: u8 = 2;

/// Something the user can put right.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UserError {
    /// What is wrong; one line for each thing.
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
    /// Both mistakes at once.
    pub(crate) fn and(mut self, other: UserError) -> UserError {
        self.errors.extend(other.errors);
        if !self.hint.contains(&other.hint) {
            self.hint = format!("{}; {}", self.hint, other.hint);
        }
        self
    }
}

/// Two results, or all that is wrong with them.
pub(crate) fn both<A, B>(
    one: Result<A, UserError>,
    other: Result<B, UserError>,
) -> Result<(A, B), UserError> {
    match (one, other) {
        (Ok(one), Ok(other)) => Ok((one, other)),
        (Err(one), Err(other)) => Err(one.and(other)),
        (Err(mistake), _) | (_, Err(mistake)) => Err(mistake),
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
    fn the_kind_of_a_line_stands_out() {
        let text = "error: a\n\nhint: b\nc error: d";
        let told = coloured(text);
        assert_eq!(
            told,
            "\x1b[1m\x1b[31merror:\x1b[0m a\n\n\x1b[1m\x1b[36mhint:\x1b[0m b\nc error: d"
        );
        assert_eq!(anstream::adapter::strip_str(&told).to_string(), text);
    }
}
