//! Makes text from outside safe to print on a terminal.
//!
//! Host names, errors of a discovery script and exception messages come from others, and a
//! terminal executes some characters instead of showing them. Colors and other escape sequences
//! are removed; all other control characters, and those that change the text direction, are shown
//! as escapes.

use std::borrow::Cow;

/// The text without anything that a terminal would execute, except line ends and tabs.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_command) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            '\u{1b}' => skip_sequence(&mut rest),
            '\r' if rest.as_str().starts_with('\n') => {}
            c if is_command(c) => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

fn is_command(c: char) -> bool {
    let changes_direction = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    changes_direction || (c.is_control() && c != '\n' && c != '\t')
}

/// Skips the rest of an escape sequence: after `[` up to its letter, after `]` and similar up to a
/// BEL or the string terminator, otherwise one character. A sequence never extends past its line.
fn skip_sequence(rest: &mut std::str::Chars<'_>) {
    let text = rest.as_str();
    let line = &text[..text.find('\n').unwrap_or(text.len())];
    let length = match line.chars().next() {
        Some('[') => line[1..].find(|c: char| ('@'..='~').contains(&c)).map(|at| at + 2),
        Some(']' | 'P' | 'X' | '^' | '_') => {
            let bell = line.find('\u{7}').map(|at| at + 1);
            let end = line.find("\u{1b}\\").map(|at| at + 2);
            bell.into_iter().chain(end).min()
        }
        Some(other) => Some(other.len_utf8()),
        None => Some(0),
    };
    *rest = text[length.unwrap_or(line.len())..].chars();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_that_a_terminal_would_execute() {
        for (text, expected) in [
            ("node-a: größer\t(ok)\n", "node-a: größer\t(ok)\n"),
            ("\u{1b}[31mred\u{1b}[0m", "red"),
            ("a\u{1b}]0;title\u{7}b\u{1b}]8;;x\u{1b}\\c", "abc"),
            ("\u{1b}[2J\u{1b}[Hgone?", "gone?"),
            ("bell\u{7} back\u{8}", "bell\\u{7} back\\u{8}"),
            ("first\rsecond\r\n", "first\\rsecond\n"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("abc\u{202e}fed", "abc\\u{202e}fed"),
            ("cut off \u{1b}[31", "cut off "),
            ("cut off \u{1b}]0;x\nnext line", "cut off \nnext line"),
            ("\u{1b}", ""),
            ("\u{1b}é", ""),
        ] {
            assert_eq!(printable(text), expected, "{text:?}");
        }
    }
}
