//! The little JSON that timeline and flight recorder write.

use std::fmt::Write;

/// A text as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            control if control < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(control));
            }
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_json_does_not_allow_is_escaped() {
        assert_eq!(quoted("a\"b\\c\nd\u{1}ä"), r#""a\"b\\c\nd\u0001ä""#);
    }
}
