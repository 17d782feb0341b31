//! Reading sources: the files of this checkout, and Rust code without comments and literals.
//!
//! This file knows no rules. The files are those that git tracks or would track, so that build
//! output is never checked and a new file is checked before it is committed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A text file of the repository; the path is relative to its root and uses `/`.
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// The text files of this checkout.
pub(crate) fn checkout() -> Vec<File> {
    // Git still lists files that were removed from the work tree.
    let read =
        |path: String| Some(File { text: fs::read_to_string(root().join(&path)).ok()?, path });
    listed().into_iter().filter_map(read).collect()
}

/// The files of this checkout that are not text.
pub(crate) fn binaries() -> Vec<String> {
    let is_binary = |path: &String| {
        fs::read(root().join(path)).is_ok_and(|bytes| std::str::from_utf8(&bytes).is_err())
    };
    listed().into_iter().filter(is_binary).collect()
}

fn listed() -> Vec<String> {
    let listing = Command::new("git")
        .args(["-c", "safe.directory=*", "ls-files", "-z"])
        .args(["--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("the tidy rules need git to list the files");
    assert!(listing.status.success(), "{}", String::from_utf8_lossy(&listing.stderr));

    let listing = String::from_utf8(listing.stdout).expect("paths in the repository are UTF-8");
    let mut paths: Vec<String> =
        listing.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("this crate is two folders deep").to_path_buf()
}

/// Rust code with every comment and every literal blanked; line breaks are kept.
pub(crate) fn code_only(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let after_name = code.chars().next_back().is_some_and(is_name);
        let blanked = match first {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => comment_length(rest),
            '"' => string_length(rest),
            'r' | 'b' | 'c' if !after_name => raw_string_length(rest).unwrap_or(0),
            '\'' => char_length(rest).unwrap_or(0),
            _ => 0,
        };
        if blanked == 0 {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            code.extend(rest[..blanked].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = &rest[blanked..];
        }
    }
    code
}

/// Whether a character can be part of an identifier in Rust or Python.
pub(crate) fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The length of the block comment at the start of `text`; block comments nest.
fn comment_length(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// The length of the string literal at the start of `text`.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of the raw string literal at the start of `text`, if there is one.
fn raw_string_length(text: &str) -> Option<usize> {
    let marks = text.strip_prefix(['b', 'c']).unwrap_or(text).strip_prefix('r')?;
    let body = marks.trim_start_matches('#');
    let hashes = &marks[..marks.len() - body.len()];
    let body = body.strip_prefix('"')?;
    let end = format!("\"{hashes}");
    let length = body.find(&end).map_or(body.len(), |at| at + end.len());
    Some(text.len() - body.len() + length)
}

/// The length of the character literal at the start of `text`; `None` for a lifetime.
fn char_length(text: &str) -> Option<usize> {
    let mut characters = text.char_indices().skip(1);
    let (_, first) = characters.next()?;
    if first == '\\' {
        let (escaped, _) = characters.next()?;
        return text[escaped + 1..].find('\'').map(|at| escaped + 1 + at + 1);
    }
    characters.next().filter(|(_, c)| *c == '\'').map(|(at, _)| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_code_is_kept() {
        let blank = |n: usize| " ".repeat(n);
        for (text, code) in [
            ("a // unsafe\nb", format!("a {}\nb", blank(9))),
            ("a /* x /* y */ z */ b", format!("a {} b", blank(17))),
            (r#"f("un\"safe", b)"#, format!("f({}, b)", blank(10))),
            (r##"let s = r#"a "b" c"#;"##, format!("let s = {};", blank(12))),
            (r#"let s = br"x";"#, format!("let s = {};", blank(5))),
            ("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)".to_owned()),
            ("match c { '\"' => 1, '\\'' => 2 }", "match c {     => 1,      => 2 }".to_owned()),
            ("for x in y {}", "for x in y {}".to_owned()),
            ("/* never closed", blank(15)),
        ] {
            assert_eq!(code_only(text), code, "{text}");
        }
    }

    #[test]
    fn this_file_is_in_the_checkout() {
        assert!(checkout().iter().any(|file| file.path.ends_with("tests/tidy/source.rs")));
    }
}
