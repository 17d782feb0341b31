//! The rules: pure functions from the path and the text of a file to its violations.
//!
//! A rule checks the path first and ignores files that it does not apply to. Every rule is tested
//! below on a sample that breaks it, so that none can stop working unnoticed.

use ronde_control::install;

use crate::house;
use crate::source::{code_only, is_name};

/// A violation: its line, counted from one, and what to do about it.
#[derive(Debug, PartialEq)]
pub(crate) struct Offence {
    pub(crate) line: usize,
    pub(crate) advice: String,
}

impl Offence {
    pub(crate) fn new(line: usize, advice: impl Into<String>) -> Self {
        Self { line, advice: advice.into() }
    }
}

pub(crate) fn crate_arrows(path: &str, text: &str) -> Vec<Offence> {
    let Some(name) = crate_of_manifest(path) else { return Vec::new() };
    let Some(allowed) = row(house::CRATE_ARROWS, name) else {
        return vec![Offence::new(
            1,
            format!("crate `{name}` is not in CRATE_ARROWS; add its row"),
        )];
    };
    dependencies(text)
        .into_iter()
        .filter_map(|found| Some((found.name.strip_prefix("ronde-")?.to_owned(), found)))
        .filter(|(target, found)| {
            let in_test = found.for_tests && (target == "testkit" || target == name);
            !allowed.contains(&target.as_str()) && !in_test
        })
        .map(|(target, found)| {
            let advice = format!("`{name}` may not depend on `{target}`; see CRATE_ARROWS");
            Offence::new(found.line, advice)
        })
        .collect()
}

pub(crate) fn foreign_dependencies(path: &str, text: &str) -> Vec<Offence> {
    let Some(name) = crate_of_manifest(path) else { return Vec::new() };
    let mut offences = Vec::new();
    for found in dependencies(text).into_iter().filter(|found| !found.for_tests) {
        for (_, names, reason) in house::FORBIDDEN_DEPENDENCIES.iter().filter(|row| row.0 == name) {
            if names.contains(&found.name.as_str()) {
                let advice = format!("`{name}` may not use `{}`: {reason}", found.name);
                offences.push(Offence::new(found.line, advice));
            }
        }
    }
    offences
}

pub(crate) fn core_arrows(path: &str, text: &str) -> Vec<Offence> {
    let Some(inside) = path.strip_prefix("crates/core/src/") else { return Vec::new() };
    let module = inside.split('/').next().unwrap_or(inside).trim_end_matches(".rs");
    if module == "lib" {
        return Vec::new();
    }
    let Some(allowed) = row(house::CORE_ARROWS, module) else {
        return vec![Offence::new(
            1,
            format!("module `{module}` is not in CORE_ARROWS; add its row"),
        )];
    };
    modules_named(&code_only(text))
        .into_iter()
        .filter(|(_, target)| row(house::CORE_ARROWS, target).is_some())
        .filter(|(_, target)| target != module && !allowed.contains(&target.as_str()))
        .map(|(line, target)| {
            let advice = format!(
                "`{module}` may not name `crate::{target}`; modules may only name lower ones"
            );
            Offence::new(line, advice)
        })
        .collect()
}

pub(crate) fn forbidden_words(path: &str, text: &str) -> Vec<Offence> {
    if !path.ends_with(".rs") {
        return Vec::new();
    }
    let mut offences = Vec::new();
    for (_, words, reason) in house::FORBIDDEN_WORDS.iter().filter(|row| path.starts_with(row.0)) {
        for (line, code) in numbered(without_tests(&code_only(text))) {
            for word in words.iter().filter(|word| has_word(code, word)) {
                offences.push(Offence::new(line, format!("no `{word}` here: {reason}")));
            }
        }
    }
    offences
}

pub(crate) fn unsafe_places(path: &str, text: &str) -> Vec<Offence> {
    let allowed = |place: &str| path == place || (place.ends_with('/') && path.starts_with(place));
    if !path.ends_with(".rs") || house::UNSAFE_PLACES.iter().any(|place| allowed(place)) {
        return Vec::new();
    }
    let allows_unsafe = |code: &str| {
        has_word(code, "unsafe_code") && (has_word(code, "allow") || has_word(code, "expect"))
    };
    numbered(&code_only(text))
        .filter(|(_, code)| has_word(code, "unsafe") || allows_unsafe(code))
        .map(|(line, _)| {
            Offence::new(
                line,
                "no unsafe code here; if it is necessary, argue for a row in UNSAFE_PLACES",
            )
        })
        .collect()
}

pub(crate) fn safe_crates_forbid_unsafe(path: &str, text: &str) -> Vec<Offence> {
    let is_crate_root = |name: &&str| path == format!("crates/{name}/src/lib.rs");
    if !house::SAFE_CRATES.iter().any(is_crate_root)
        || code_only(text).contains("#![forbid(unsafe_code)]")
    {
        return Vec::new();
    }
    vec![Offence::new(1, "this crate must have `#![forbid(unsafe_code)]`")]
}

pub(crate) fn lints_are_on(path: &str, text: &str) -> Vec<Offence> {
    let wanted: &[&str] = match path {
        "Cargo.toml" => house::LINTS,
        "clippy.toml" => house::THRESHOLDS,
        _ if crate_of_manifest(path).is_some() => &["[lints]\nworkspace = true"],
        _ => return Vec::new(),
    };
    let text = format!("\n{text}\n");
    wanted
        .iter()
        .filter(|line| !text.contains(&format!("\n{line}\n")))
        .map(|line| Offence::new(1, format!("`{}` is missing", line.replace('\n', " "))))
        .collect()
}

pub(crate) fn length(path: &str, text: &str) -> Vec<Offence> {
    let most = match path {
        "ARCHITECTURE.md" => house::ARCHITECTURE_LINES - 1,
        _ if is_source(path) && !house::LONG_FILES.contains(&path) => house::MOST_LINES,
        _ => return Vec::new(),
    };
    let lines = text.lines().count();
    if lines <= most {
        return Vec::new();
    }
    vec![Offence::new(lines, format!("{lines} lines, {most} are allowed; split the file"))]
}

pub(crate) fn opening_paragraph(path: &str, text: &str) -> Vec<Offence> {
    let is_rust = path.starts_with("crates/") && path.ends_with(".rs");
    let is_python =
        path.starts_with("python/") && (path.ends_with(".py") || path.ends_with(".pyi"));
    let opening = text.lines().find(|line| !line.starts_with("#!")).unwrap_or_default();
    let is_valid = opening.chars().any(char::is_alphabetic)
        && ((is_rust && opening.starts_with("//! "))
            || (is_python && opening.trim_start_matches('r').starts_with("\"\"\"")));
    if is_valid || !(is_rust || is_python) {
        return Vec::new();
    }
    vec![Offence::new(1, "the first line must start a paragraph that says what this file is for")]
}

pub(crate) fn descriptive_names(path: &str, _text: &str) -> Vec<Offence> {
    if house::HOROVOD_NAMES.iter().any(|place| path.starts_with(place)) {
        return Vec::new();
    }
    path.split(['/', '_', '-', '.'])
        .filter(|word| house::EMPTY_NAMES.contains(word))
        .map(|word| {
            Offence::new(1, format!("`{word}` says nothing; name the file after its contents"))
        })
        .collect()
}

pub(crate) fn finished(path: &str, text: &str) -> Vec<Offence> {
    if is_generated(path) {
        return Vec::new();
    }
    numbered(text)
        .filter(|(_, line)| house::UNFINISHED.iter().any(|mark| has_word(line, mark)))
        .map(|(line, _)| Offence::new(line, "finish it, or open an issue and remove the mark"))
        .collect()
}

pub(crate) fn no_machine_in_it(path: &str, text: &str) -> Vec<Offence> {
    if is_generated(path) {
        return Vec::new();
    }
    let mut offences = Vec::new();
    for (line, words) in numbered(text) {
        let elsewhere = |words: String, path: &&str| words.replace(path, "");
        let words = house::PLACES_IN_IMAGES.iter().fold(words.to_owned(), elsewhere);
        for (place, reason) in house::PLACES.iter().filter(|row| has_place(&words, row.0)) {
            offences.push(Offence::new(line, format!("`{place}` is {reason}")));
        }
    }
    offences
}

pub(crate) fn frameworks_in_their_folders(path: &str, text: &str) -> Vec<Offence> {
    let Some(inside) = path.strip_prefix("python/horovod/").filter(|_| path.ends_with(".py"))
    else {
        return Vec::new();
    };
    let is_in =
        |folder: &&str| inside.strip_prefix(*folder).is_some_and(|rest| rest.starts_with('/'));
    let mut offences = Vec::new();
    for (line, code) in numbered(text) {
        let mut words = code.split_whitespace();
        if !matches!(words.next(), Some("import" | "from")) {
            continue;
        }
        let imported = words.next().and_then(|name| name.split(['.', ',']).next());
        for (framework, folders) in house::FRAMEWORKS {
            if imported == Some(framework) && !folders.iter().any(is_in) {
                let advice = format!("only `{}` may import {framework}", folders.join("`, `"));
                offences.push(Offence::new(line, advice));
            }
        }
    }
    offences
}

pub(crate) fn environment_is_read_in_one_place(path: &str, text: &str) -> Vec<Offence> {
    let is_python = path.starts_with("python/horovod/") && path.ends_with(".py");
    if !is_python || house::ENVIRONMENT_PLACES.contains(&path) {
        return Vec::new();
    }
    numbered(text)
        .filter(|(_, line)| ["environ", "getenv"].iter().any(|word| has_word(line, word)))
        .map(|(line, _)| {
            let advice =
                "use `horovod.common.environment` or the native module, which have read it";
            Offence::new(line, advice)
        })
        .collect()
}

pub(crate) fn error_texts_are_not_parsed(path: &str, text: &str) -> Vec<Offence> {
    let is_rust = path.starts_with("crates/") && path.contains("/src/") && path.ends_with(".rs");
    let is_python = path.starts_with("python/horovod/") && path.ends_with(".py");
    if !(is_rust || is_python) || path.ends_with("/tests.rs") {
        return Vec::new();
    }
    let mut offences = Vec::new();
    for (line, code) in numbered(without_tests(text)) {
        for way in house::READING_ERRORS.iter().filter(|way| code.contains(**way)) {
            let advice = "distinguish errors by class, variant or attribute, never by their text";
            offences.push(Offence::new(line, format!("`{way}`: {advice}")));
        }
    }
    offences
}

pub(crate) fn readme_names_the_commands(path: &str, text: &str) -> Vec<Offence> {
    if path != "README.md" {
        return Vec::new();
    }
    ["make demo", "make test"]
        .into_iter()
        .filter(|command| !text.contains(command))
        .map(|command| Offence::new(1, format!("the first page must name `{command}`")))
        .collect()
}

/// The owner of a name on the package index decides what its installation runs.
pub(crate) fn installs_only_names_we_own(path: &str, text: &str) -> Vec<Offence> {
    // The samples below break the rule on purpose.
    if path.ends_with("/tidy/rules.rs") {
        return Vec::new();
    }
    let ours = |name: &str| name != "horovod" && (name != "ronde" || install::ON_INDEX);
    let mut offences = Vec::new();
    for (line, words) in numbered(text) {
        for name in installed_names(words).filter(|name| !ours(name)) {
            let advice = format!("`{name}` is not ours on the package index: install the wheel");
            offences.push(Offence::new(line, advice));
        }
    }
    offences
}

/// The packages that the commands in a line request from the index: `ronde` for
/// `'ronde[torch]>=1'`.
fn installed_names(line: &str) -> impl Iterator<Item = &str> {
    line.split("pip install").skip(1).flat_map(|command| {
        let command = command.split(['`', '#', ';']).next().unwrap_or_default();
        let arguments = command.split_whitespace();
        // `--reinstall-package ronde .` installs the folder.
        let before = std::iter::once("").chain(arguments.clone());
        let wanted = arguments.zip(before).filter(|(_, before)| !before.ends_with("-package"));
        wanted.filter_map(|(argument, _)| {
            let argument = argument.trim_start_matches(['\'', '"']);
            let end = argument.find(|c: char| !is_name(c) && c != '-').unwrap_or(argument.len());
            // A wheel or a folder is not requested from the index.
            let is_path = argument[end..].starts_with(['.', '/', ':']);
            (!is_path).then_some(&argument[..end])
        })
    })
}

/// `core` for `crates/core/Cargo.toml`.
fn crate_of_manifest(path: &str) -> Option<&str> {
    path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml").filter(|name| !name.contains('/'))
}

fn row<'a>(table: &[(&str, &'a [&'a str])], name: &str) -> Option<&'a [&'a str]> {
    table.iter().find(|row| row.0 == name).map(|row| row.1)
}

struct Dependency {
    line: usize,
    name: String,
    for_tests: bool,
}

/// The dependencies that a manifest lists, for any target.
fn dependencies(text: &str) -> Vec<Dependency> {
    let mut section = "";
    let mut found = Vec::new();
    for (line, entry) in numbered(text) {
        if let Some(header) = entry.strip_prefix('[') {
            section = header.trim_end().trim_end_matches(']');
            // `[dependencies.tokio]` is a section of its own.
            let Some((of, name)) = section.rsplit_once('.') else { continue };
            if of.ends_with("dependencies") {
                let for_tests = of.ends_with("dev-dependencies");
                found.push(Dependency { line, name: name.to_owned(), for_tests });
                section = "";
            }
        } else if section.ends_with("dependencies") {
            let name = entry.split(['.', '=', ' ']).next().unwrap_or_default();
            if name.starts_with(char::is_alphabetic) {
                let for_tests = section.ends_with("dev-dependencies");
                found.push(Dependency { line, name: name.to_owned(), for_tests });
            }
        }
    }
    found
}

/// The top-level modules that a file names: `x` and `y` in `crate::x::…` and `crate::{…, y::…}`.
fn modules_named(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, path) in code.match_indices("crate::") {
        if code[..at].chars().next_back().is_some_and(is_name) {
            continue;
        }
        let rest = code[at + path.len()..].trim_start();
        let line = code[..at].lines().count().max(1);
        match rest.strip_prefix('{') {
            Some(group) => found.extend(group_heads(group).into_iter().map(|name| (line, name))),
            None => found.push((line, leading_name(rest))),
        }
    }
    found
}

/// The first names in a `{…}` group of a `use`, after its opening brace.
fn group_heads(group: &str) -> Vec<String> {
    let mut depth = 0;
    let mut heads = vec![leading_name(group.trim_start())];
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => heads.push(leading_name(group[at + 1..].trim_start())),
            _ => {}
        }
    }
    heads
}

fn leading_name(text: &str) -> String {
    text.chars().take_while(|c| is_name(*c)).collect()
}

pub(crate) fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(at, line)| (at + 1, line))
}

/// Whether `word` appears in `line` as a whole word.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_name) && !after.is_some_and(is_name)
    })
}

/// Whether `place` appears in `line`; an absolute path must not be the tail of a longer one.
fn has_place(line: &str, place: &str) -> bool {
    line.match_indices(place).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !place.starts_with('/') || !before.is_some_and(|c| is_name(c) || "./-}~*".contains(c))
    })
}

/// The code before the unit tests, which come last and may read files and clocks.
pub(crate) fn without_tests(code: &str) -> &str {
    code.split("#[cfg(test)]\nmod tests {").next().unwrap_or(code)
}

fn is_source(path: &str) -> bool {
    path.ends_with(".rs") || path.ends_with(".py") || path.ends_with(".pyi")
}

fn is_generated(path: &str) -> bool {
    path.ends_with("Cargo.lock")
}

#[cfg(test)]
mod tests {
    use super::*;

    type Rule = fn(&str, &str) -> Vec<Offence>;

    /// Checks that a rule refuses `bad` in the given line, and accepts `good`.
    #[track_caller]
    fn refuses(rule: Rule, path: &str, (line, bad): (usize, &str), good: &str) {
        let offences = rule(path, bad);
        assert_eq!(offences.iter().map(|o| o.line).collect::<Vec<_>>(), [line], "{offences:?}");
        assert_eq!(rule(path, good), [], "in {good}");
    }

    #[test]
    fn a_crate_that_depends_upwards_is_refused() {
        let path = "crates/control/Cargo.toml";
        let good =
            "[dependencies]\nserde = \"1\"\n[dev-dependencies]\nronde-testkit.workspace = true";
        refuses(crate_arrows, path, (2, "[dependencies]\nronde-core.workspace = true"), good);
        refuses(crate_arrows, path, (1, "[dependencies.ronde-core]\npath = \"../core\""), good);
        let bad = "[target.'cfg(unix)'.dependencies]\nronde-launch = { path = \"../launch\" }";
        refuses(crate_arrows, path, (2, bad), good);
        assert_eq!(
            crate_arrows("crates/nowhere/Cargo.toml", "").len(),
            1,
            "it has no row in the table"
        );
    }

    #[test]
    fn a_forbidden_dependency_is_refused() {
        let good = "[dependencies]\nhalf = \"2\"\n[dev-dependencies]\ntokio = \"1\"";
        let bad = "[dependencies]\ntokio = { version = \"1\" }";
        refuses(foreign_dependencies, "crates/core/Cargo.toml", (2, bad), good);
    }

    #[test]
    fn a_module_of_core_that_names_a_higher_one_is_refused() {
        let path = "crates/core/src/transport/socket.rs";
        let good = "// crate::engine\nuse crate::{Error, buffer::{Bytes, View}, transport::Link};";
        refuses(core_arrows, path, (2, "\nuse crate::engine::Engine;"), good);
        refuses(core_arrows, path, (1, "use crate::{buffer::{A, B}, group::C};"), good);
        refuses(core_arrows, path, (3, "\n\nfn f(x: &crate::collective::X) {}"), good);
        assert_eq!(
            core_arrows("crates/core/src/new.rs", "").len(),
            1,
            "it has no row in the table"
        );
        assert_eq!(core_arrows("crates/core/src/lib.rs", "pub use crate::engine::X;"), []);
    }

    #[test]
    fn a_forbidden_name_is_refused() {
        let path = "crates/control/src/elastic.rs";
        let good = "use std::net::SocketAddr; // Instant::now\n#[cfg(test)]\nmod tests { std::fs }";
        refuses(forbidden_words, path, (2, "\nlet now = std::time::Instant::now();"), good);
        refuses(forbidden_words, path, (1, "use std::fs;"), good);
        let bad = "std::process::Command::new(\"x\");";
        assert_eq!(forbidden_words("crates/core/src/engine/mod.rs", bad).len(), 2);
    }

    #[test]
    fn unsafe_code_outside_its_places_is_refused() {
        let path = "crates/core/src/engine/mod.rs";
        let good = "#![forbid(unsafe_code)]\n// unsafe\nlet s = \"unsafe\";";
        refuses(unsafe_places, path, (2, "\nlet x = unsafe { *p };"), good);
        refuses(unsafe_places, path, (1, "#![expect(unsafe_code, reason = \"speed\")]"), good);
        assert_eq!(unsafe_places("crates/core/src/buffer/mod.rs", "unsafe {}"), []);
    }

    #[test]
    fn a_safe_crate_that_does_not_forbid_unsafe_code_is_refused() {
        let bad = (1, "//! Mentions #![forbid(unsafe_code)] only in a comment.");
        let good = "//! Doc.\n#![forbid(unsafe_code)]";
        refuses(safe_crates_forbid_unsafe, "crates/launch/src/lib.rs", bad, good);
    }

    #[test]
    fn a_disabled_lint_is_refused() {
        let all = house::LINTS.join("\n");
        let without = all.replace(house::LINTS[2], "undocumented_unsafe_blocks = \"allow\"");
        refuses(lints_are_on, "Cargo.toml", (1, &without), &all);
        let good = "[lints]\nworkspace = true\n";
        refuses(lints_are_on, "crates/core/Cargo.toml", (1, "[package]\n"), good);
        let good = "too-many-lines-threshold = 80\ntoo-many-arguments-threshold = 6\n";
        refuses(lints_are_on, "clippy.toml", (1, &good.replace("80", "800")), good);
    }

    #[test]
    fn a_file_that_is_too_long_is_refused() {
        let (good, bad) = ("x\n".repeat(800), "x\n".repeat(801));
        refuses(length, "crates/core/src/lib.rs", (801, &bad), &good);
        refuses(length, "tests/single/test_x.py", (801, &bad), &good);
        let (good, bad) = ("x\n".repeat(249), "x\n".repeat(250));
        refuses(length, "ARCHITECTURE.md", (250, &bad), &good);
    }

    #[test]
    fn a_file_without_an_opening_paragraph_is_refused() {
        let (rust, python) = ("crates/core/src/lib.rs", "python/horovod/x.py");
        let good = "//! What this is for.\n";
        for bad in ["", "use std::fs;", "//!\n", "// Not a doc comment.\n"] {
            refuses(opening_paragraph, rust, (1, bad), good);
        }
        let good = "\"\"\"What this is for.\"\"\"\n";
        for bad in ["", "import os\n", "\"\"\"\nLater.\n\"\"\"\n"] {
            refuses(opening_paragraph, python, (1, bad), good);
        }
    }

    #[test]
    fn a_name_that_says_nothing_is_refused() {
        for bad in
            ["crates/core/src/utils.rs", "crates/common/x.rs", "python/horovod/base_state.py"]
        {
            assert_eq!(descriptive_names(bad, "").len(), 1, "{bad}");
        }
        for good in ["python/horovod/common/util.py", "crates/core/src/database.rs"] {
            assert_eq!(descriptive_names(good, ""), [], "{good}");
        }
    }

    #[test]
    fn a_mark_of_unfinished_work_is_refused() {
        for mark in house::UNFINISHED {
            refuses(finished, "README.md", (2, &format!("\n# {mark}: later")), "mktemp x.XXXXXX");
        }
    }

    #[test]
    fn a_path_of_one_machine_or_a_registry_host_is_refused() {
        for (place, _) in house::PLACES {
            refuses(
                no_machine_in_it,
                "README.md",
                (1, &format!("see {place}x")),
                concat!("see docs/wo", "rk/x"),
            );
        }
        let mounted = format!("-v keys:{}:ro", house::PLACES_IN_IMAGES[0]);
        assert_eq!(no_machine_in_it("README.md", &mounted), []);
    }

    #[test]
    fn a_framework_outside_its_folder_is_refused() {
        let path = "python/horovod/common/basics.py";
        let good = "from horovod.torch import x\nimport torchlight";
        refuses(frameworks_in_their_folders, path, (2, "\n    import torch.nn as nn"), good);
        refuses(frameworks_in_their_folders, path, (1, "from tensorflow import keras"), good);
        assert_eq!(frameworks_in_their_folders("python/horovod/torch/x.py", "import torch"), []);
    }

    #[test]
    fn reading_the_environment_elsewhere_is_refused() {
        let good = "environment.rank()  # nothing of `environment` else";
        let rule = environment_is_read_in_one_place;
        refuses(rule, "python/horovod/torch/x.py", (2, "\nos.environ.get(name)"), good);
        refuses(rule, "python/horovod/torch/x.py", (1, "from os import getenv"), good);
        assert_eq!(rule(house::ENVIRONMENT_PLACES[0], "os.environ[name]"), []);
    }

    #[test]
    fn distinguishing_an_error_by_its_text_is_refused() {
        let rule = error_texts_are_not_parsed;
        let good = "except HorovodInternalError as error:\n    say(str(error))";
        let bad = "\nif OVER in str(error):";
        refuses(rule, "python/horovod/common/elastic.py", (2, bad), good);
        let good = "match error {}\n#[cfg(test)]\nmod tests { x.to_string().contains(y) }";
        let bad = "if error.to_string().contains(LOST) {}";
        refuses(rule, "crates/core/src/error.rs", (1, bad), good);
        assert_eq!(rule("crates/core/src/x/tests.rs", bad), []);
    }

    #[test]
    fn an_installation_of_a_name_that_is_not_ours_is_refused() {
        let rule = installs_only_names_we_own;
        let good = "`pip uninstall horovod`, `pip install ./ronde-1-*.whl torch` for ronde\n\
                    uv pip install --reinstall-package ronde '.[jax]'  # horovod";
        refuses(rule, "docs/a.md", (2, "\npip install 'horovod[torch]'"), good);
        refuses(rule, "python/horovod/a.py", (1, "\"try `pip install -U horovod`\""), good);
        let named = rule("README.md", "pip install numpy \"ronde==1\"");
        assert_eq!(named.len(), usize::from(!install::ON_INDEX), "{named:?}");
    }

    #[test]
    fn a_readme_that_does_not_name_the_commands_is_refused() {
        let good = "`make demo` and `make test`";
        refuses(readme_names_the_commands, "README.md", (1, "`make demo`"), good);
    }
}
