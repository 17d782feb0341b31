//! The tidy rules: what STYLE asks of every file and no compiler or linter checks.
//!
//! One test per rule, over all files of the checkout. The tables of what is allowed stand in
//! `house`, the rules in `rules`. A failure names the file and the line and says what to do.

mod house;
mod rules;
mod source;

use std::sync::LazyLock;

use rules::Offence;
use source::File;

static CHECKOUT: LazyLock<Vec<File>> = LazyLock::new(source::checkout);

#[track_caller]
fn hold_everywhere(rule: fn(&str, &str) -> Vec<Offence>) {
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
fn the_repository_holds_only_text() {
    let none: [String; 0] = [];
    assert_eq!(source::binaries(), none, "build output and other binaries are not committed");
}

#[test]
fn crates_depend_only_along_the_arrows() {
    hold_everywhere(rules::crate_arrows);
}

#[test]
fn crates_use_only_dependencies_that_suit_their_room() {
    hold_everywhere(rules::foreign_dependencies);
}

#[test]
fn modules_of_core_name_only_lower_ones() {
    hold_everywhere(rules::core_arrows);
}

#[test]
fn rooms_hold_only_what_suits_them() {
    hold_everywhere(rules::forbidden_words);
}

#[test]
fn unsafe_code_stands_only_where_it_may() {
    hold_everywhere(rules::unsafe_places);
}

#[test]
fn safe_rooms_forbid_unsafe_code() {
    hold_everywhere(rules::safe_rooms_forbid_unsafe);
}

#[test]
fn the_lints_that_other_rules_lean_on_are_on() {
    hold_everywhere(rules::lints_are_on);
}

#[test]
fn no_file_is_too_long() {
    hold_everywhere(rules::length);
}

#[test]
fn every_file_opens_with_a_paragraph() {
    hold_everywhere(rules::opening_paragraph);
}

#[test]
fn names_say_what_is_in_a_file() {
    hold_everywhere(rules::telling_names);
}

#[test]
fn nothing_is_marked_as_unfinished() {
    hold_everywhere(rules::finished);
}

#[test]
fn no_file_names_a_machine_or_a_registry() {
    hold_everywhere(rules::no_machine_in_it);
}

#[test]
fn frameworks_are_imported_only_in_their_folders() {
    hold_everywhere(rules::frameworks_stay_home);
}

#[test]
fn the_environment_is_read_in_one_place() {
    hold_everywhere(rules::environment_is_read_in_one_place);
}

#[test]
fn nobody_tells_errors_apart_by_their_text() {
    hold_everywhere(rules::words_are_for_people);
}

#[test]
fn nobody_is_told_to_install_a_name_that_is_not_ours() {
    hold_everywhere(rules::installs_only_names_we_own);
}

#[test]
fn the_readme_names_the_two_commands() {
    hold_everywhere(rules::readme_names_the_commands);
}

#[test]
fn the_files_that_rules_speak_of_exist() {
    let crates = house::CRATE_ARROWS.iter().map(|(room, _)| format!("crates/{room}/src/"));
    let modules = house::CORE_ARROWS.iter().map(|(room, _)| format!("crates/core/src/{room}"));
    let named = [
        &["ARCHITECTURE.md", "Cargo.toml", "README.md", "clippy.toml"],
        house::UNSAFE_PLACES,
        house::HOROVOD_NAMES,
        house::ENVIRONMENT_PLACES,
    ];
    let named = named.into_iter().flatten().map(|path| (*path).to_owned());
    for path in crates.chain(modules).chain(named) {
        let is_there = CHECKOUT.iter().any(|file| file.path.starts_with(&path));
        assert!(is_there, "{path} is missing");
    }
}
