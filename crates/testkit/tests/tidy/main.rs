//! The tidy rules: what the style guide asks of every file and no compiler or linter checks.
//!
//! One test per rule, over all files of the checkout. `house` has the tables of what is allowed,
//! `rules` the checks. A failure names the file and the line and says what to do.

mod house;
mod rules;
mod source;
mod words;

use std::sync::LazyLock;

use rules::Offence;
use source::File;

static CHECKOUT: LazyLock<Vec<File>> = LazyLock::new(source::checkout);

#[track_caller]
fn check_everywhere(rule: fn(&str, &str) -> Vec<Offence>) {
    let offences: Vec<String> = CHECKOUT
        .iter()
        .flat_map(|file| {
            rule(&file.path, &file.text).into_iter().map(move |offence| (file, offence))
        })
        .map(|(file, Offence { line, advice })| format!("{}:{line}: {advice}", file.path))
        .collect();
    assert!(offences.is_empty(), "\n{}\n", offences.join("\n"));
}

#[test]
fn the_repository_contains_only_text() {
    let none: [String; 0] = [];
    assert_eq!(source::binaries(), none, "build output and other binaries are not committed");
}

#[test]
fn crates_depend_only_along_the_arrows() {
    check_everywhere(rules::crate_arrows);
}

#[test]
fn crates_use_only_allowed_dependencies() {
    check_everywhere(rules::foreign_dependencies);
}

#[test]
fn modules_of_core_name_only_lower_ones() {
    check_everywhere(rules::core_arrows);
}

#[test]
fn crates_contain_no_forbidden_names() {
    check_everywhere(rules::forbidden_words);
}

#[test]
fn unsafe_code_is_only_in_listed_files() {
    check_everywhere(rules::unsafe_places);
}

#[test]
fn safe_crates_forbid_unsafe_code() {
    check_everywhere(rules::safe_crates_forbid_unsafe);
}

#[test]
fn the_lints_that_other_rules_rely_on_are_enabled() {
    check_everywhere(rules::lints_are_on);
}

#[test]
fn no_file_is_too_long() {
    check_everywhere(rules::length);
}

#[test]
fn every_file_opens_with_a_paragraph() {
    check_everywhere(rules::opening_paragraph);
}

#[test]
fn file_names_describe_their_contents() {
    check_everywhere(rules::descriptive_names);
}

#[test]
fn nothing_is_marked_as_unfinished() {
    check_everywhere(rules::finished);
}

#[test]
fn no_file_names_a_machine_or_a_registry() {
    check_everywhere(rules::no_machine_in_it);
}

#[test]
fn frameworks_are_imported_only_in_their_folders() {
    check_everywhere(rules::frameworks_in_their_folders);
}

#[test]
fn the_environment_is_read_in_one_place() {
    check_everywhere(rules::environment_is_read_in_one_place);
}

#[test]
fn errors_are_not_distinguished_by_their_text() {
    check_everywhere(rules::error_texts_are_not_parsed);
}

#[test]
fn no_text_installs_a_package_name_we_do_not_own() {
    check_everywhere(rules::installs_only_names_we_own);
}

#[test]
fn the_readme_names_the_two_commands() {
    check_everywhere(rules::readme_names_the_commands);
}

#[test]
fn private_words_are_gone() {
    check_everywhere(words::private_words);
}

#[test]
fn doc_lines_say_something() {
    check_everywhere(words::doc_lines_say_something);
}

#[test]
fn the_glossary_is_short_and_in_use() {
    let text = |path: &'static str| CHECKOUT.iter().filter(move |file| file.path.starts_with(path));
    let architecture = text("ARCHITECTURE.md").next().map_or("", |file| &file.text);
    let sources: String = text("crates/").map(|file| file.text.to_lowercase()).collect();
    assert_eq!(words::glossary(architecture, &sources), [""; 0]);
}

#[test]
fn a_type_name_has_one_meaning() {
    assert_eq!(words::repeated_types(&CHECKOUT), [""; 0]);
}

#[test]
fn the_files_that_rules_name_exist() {
    let crates = house::CRATE_ARROWS.iter().map(|(name, _)| format!("crates/{name}/src/"));
    let modules = house::CORE_ARROWS.iter().map(|(name, _)| format!("crates/core/src/{name}"));
    let named = [
        &["ARCHITECTURE.md", "Cargo.toml", "README.md", "clippy.toml"],
        house::UNSAFE_PLACES,
        house::HOROVOD_NAMES,
        house::ENVIRONMENT_PLACES,
    ];
    let named = named.into_iter().flatten().map(|path| (*path).to_owned());
    for path in crates.chain(modules).chain(named) {
        let exists = CHECKOUT.iter().any(|file| file.path.starts_with(&path));
        assert!(exists, "{path} is missing");
    }
}
