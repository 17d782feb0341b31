//! Rules about words: a short glossary, no private words, one meaning per type name, and comments
//! that say something.

use std::collections::BTreeMap;

use crate::rules::{Offence, has_word, numbered, without_tests};
use crate::source::{File, code_only, is_name};

/// The most entries that the glossary in ARCHITECTURE.md may have.
const GLOSSARY_LIMIT: usize = 30;

/// Words that only we would understand.
const PRIVATE_WORDS: &[&str] = &[
    "fate",
    "vigil",
    "passage",
    "errand",
    "muster",
    "census",
    "lookout",
    "theatre",
    "conductor",
    "chronicle",
];

/// Type names that may be defined more than once: clap's struct of each command, always named by
/// its module, and a Python class around the type of the same name.
const REPEATED_TYPES: &[&str] = &["Arguments", "Tunnel"];

pub(crate) fn private_words(path: &str, text: &str) -> Vec<Offence> {
    let folders = ["crates/", "docs/", "python/"];
    let here = folders.iter().any(|folder| path.starts_with(folder)) || !path.contains('/');
    let exempt = path == "CHANGELOG.md" || path.starts_with("crates/testkit/tests/tidy/");
    if !here || exempt {
        return Vec::new();
    }
    let found = |(line, text): (usize, &str)| {
        let lower = text.to_lowercase();
        let word = PRIVATE_WORDS.iter().find(|word| has_word(&lower, word))?;
        Some(Offence::new(line, format!("`{word}` is a private word; use a word of the field")))
    };
    numbered(text).filter_map(found).collect()
}

pub(crate) fn doc_lines_say_something(path: &str, text: &str) -> Vec<Offence> {
    if !path.ends_with(".rs") {
        return Vec::new();
    }
    let empty =
        ["Who.", "Whom.", "Whose.", "What.", "Where.", "When.", "Why.", "Which.", "How.", "So."];
    let found = |(line, text): (usize, &str)| {
        let says = text.trim().strip_prefix("/// ")?;
        empty.contains(&says).then(|| Offence::new(line, "say what it is, or what holds for it"))
    };
    numbered(text).filter_map(found).collect()
}

/// Checks the glossary: it is short, and every word in it is in use.
pub(crate) fn glossary(architecture: &str, sources: &str) -> Vec<String> {
    let table = architecture.split("\n## ").find(|section| section.starts_with("Words\n"));
    let rows: Vec<&str> =
        table.unwrap_or_default().lines().filter(|line| line.starts_with("| ")).skip(2).collect();
    let mut wrong = Vec::new();
    if rows.is_empty() || rows.len() > GLOSSARY_LIMIT {
        wrong.push(format!("the glossary has {} entries, not 1 to {GLOSSARY_LIMIT}", rows.len()));
    }
    for row in rows {
        for word in row.split('|').nth(1).unwrap_or_default().split(',').map(str::trim) {
            let word = word.strip_prefix("to ").unwrap_or(word);
            let in_code = word.replace('-', "").replace(' ', "_");
            if !sources.contains(word) && !sources.contains(&in_code) {
                wrong.push(format!("`{word}` is in the glossary and nowhere else"));
            }
        }
    }
    wrong
}

/// Type names that are defined more than once outside tests, with the files that define them.
pub(crate) fn repeated_types(files: &[File]) -> Vec<String> {
    let mut places: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let sources = files.iter().filter(|file| {
        let path = &file.path;
        let tests = path.contains("/tests/") || path.ends_with("/tests.rs");
        path.starts_with("crates/") && path.ends_with(".rs") && !tests
    });
    for file in sources {
        for name in defined(without_tests(&code_only(&file.text))) {
            places.entry(name).or_default().push(&file.path);
        }
    }
    places.retain(|name, files| files.len() > 1 && !REPEATED_TYPES.contains(&name.as_str()));
    places.iter().map(|(name, files)| format!("`{name}`: {}", files.join(", "))).collect()
}

fn defined(code: &str) -> Vec<String> {
    let name = |line: &str| {
        // Associated types of a trait or an impl are indented and belong to it.
        let is_type = !line.starts_with(' ') || !has_word(line, "type");
        let rest = ["struct ", "enum ", "union ", "trait ", "type "].iter().find_map(|kind| {
            let line = line.trim_start();
            let line = line.strip_prefix("pub").map_or(line, |rest| match rest.split_once(')') {
                Some((_, after)) if rest.starts_with('(') => after,
                _ => rest,
            });
            line.trim_start()
                .strip_prefix("unsafe ")
                .unwrap_or(line.trim_start())
                .strip_prefix(kind)
        })?;
        let name: String = rest.chars().take_while(|c| is_name(*c)).collect();
        (is_type && !name.is_empty()).then_some(name)
    };
    code.lines().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_word_is_found_whatever_its_case() {
        let found = private_words("crates/core/src/a.rs", "fn a() {}\n// The Fate of it.\n");
        assert_eq!(found.iter().map(|offence| offence.line).collect::<Vec<_>>(), [2]);
        assert_eq!(private_words("crates/core/src/a.rs", "// fated to differ\n"), []);
        assert_eq!(private_words("CHANGELOG.md", "fate\n"), []);
    }

    #[test]
    fn an_empty_doc_line_is_found() {
        let found = doc_lines_say_something("a.rs", "    /// Who.\n    rank: Rank,\n");
        assert_eq!(found.len(), 1);
        assert_eq!(doc_lines_say_something("a.rs", "/// Who has the key.\n"), []);
    }

    #[test]
    fn a_glossary_that_is_long_or_names_what_is_gone_is_refused() {
        let page = |rows: &str| {
            format!("# A\n\n## Words\n\n| word | means |\n| --- | --- |\n{rows}\n## B\n")
        };
        assert_eq!(glossary(&page("| rank, world | x |\n"), "rank world"), [""; 0]);
        assert_eq!(glossary(&page("| rank, door | x |\n"), "rank").len(), 1);
        assert_eq!(glossary(&page(&"| rank | x |\n".repeat(31)), "rank").len(), 1);
        assert_eq!(glossary("# A\n", "rank").len(), 1);
    }

    #[test]
    fn a_type_name_with_two_definitions_is_found() {
        let file = |path: &str, text: &str| File { path: path.into(), text: text.into() };
        let files = [
            file("crates/a/src/x.rs", "pub(crate) struct State {}\nstruct Arguments;\n"),
            file(
                "crates/b/src/y.rs",
                "enum State {}\nstruct Arguments;\n#[cfg(test)]\nmod tests {\nstruct X;\n",
            ),
            file("crates/b/tests/z.rs", "struct State;\nstruct X;\n"),
        ];
        assert_eq!(repeated_types(&files), ["`State`: crates/a/src/x.rs, crates/b/src/y.rs"]);
    }
}
