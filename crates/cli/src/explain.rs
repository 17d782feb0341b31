//! `ronde explain`: explains an error code, with the text of the troubleshooting page.

use clap::Args;

use crate::flags::nearest;
use crate::horovodrun::{print_stdout, report_error};
use crate::messages::{USAGE, UserError};
use crate::tables;

/// A page of the documentation. A section that explains codes lists them in its first line.
const PAGE: &str = include_str!("../../../docs/troubleshooting.md");

/// Explain the code that an error ends with, and what to do about it
#[derive(Clone, Debug, Args)]
#[command(after_help = "Example:\n  ronde explain stalled")]
pub(crate) struct Arguments {
    /// The code, such as `stalled` [default: list all codes]
    code: Option<String>,
}

/// Prints the explanation, or the list of codes; returns the exit code.
pub(crate) fn run(arguments: &Arguments) -> u8 {
    let sections = sections(PAGE);
    let Some(code) = &arguments.code else { return print_stdout(&list(&sections)) };
    let asked = code.to_lowercase().replace('-', "_");
    match sections.iter().find(|section| section.codes.contains(&asked.as_str())) {
        Some(section) => {
            let width = tables::terminal_width().map_or(80, usize::from).min(100);
            print_stdout(&section.text(width))
        }
        None => {
            let codes = sections.iter().flat_map(|section| section.codes.iter().copied());
            let hint = match nearest(&asked, codes) {
                Some(similar) => format!("did you mean `ronde explain {similar}`?"),
                None => "`ronde explain` lists all codes".into(),
            };
            report_error(&UserError::new(format!("there is no code `{code}`"), hint), USAGE)
        }
    }
}

/// A section of the page that explains codes.
struct Section<'a> {
    codes: Vec<&'a str>,
    /// The messages that it explains.
    title: &'a str,
    body: &'a str,
}

impl Section<'_> {
    fn text(&self, width: usize) -> String {
        let text = format!("{}\n\n{}", self.title, without_links(self.body.trim()));
        wrapped(&text, width) + "\n"
    }
}

/// The sections that explain codes.
fn sections(page: &str) -> Vec<Section<'_>> {
    let section = |text| {
        let (title, rest) = str::split_once(text, '\n')?;
        let (codes, body) = rest.trim_start().strip_prefix("Code: ")?.split_once('\n')?;
        let codes = codes.split('`').skip(1).step_by(2).collect();
        let body = body.split("\n## ").next().unwrap_or(body);
        Some(Section { codes, title, body })
    };
    page.split("\n### ").skip(1).filter_map(section).collect()
}

fn list(sections: &[Section<'_>]) -> String {
    let row = |section: &Section<'_>| vec![section.codes.join(", "), section.title.to_owned()];
    let rows: Vec<Vec<String>> = sections.iter().map(row).collect();
    tables::plain(&rows, &[], tables::terminal_width())
}

/// Replaces Markdown links with their text: their targets are pages of the documentation.
fn without_links(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        plain += before;
        let target = link.split_once("](").and_then(|(name, after)| {
            let (_, after) = after.split_once(')')?;
            (!name.contains(['[', ']'])).then_some((name, after))
        });
        rest = match target {
            Some((name, after)) => {
                plain += name;
                after
            }
            None => {
                plain.push('[');
                link
            }
        };
    }
    plain + rest
}

/// Breaks paragraphs and list items into lines of at most `width` columns.
fn wrapped(text: &str, width: usize) -> String {
    let mut lines = vec![String::new()];
    let mut indent = "";
    for source in text.lines() {
        if source.is_empty() {
            indent = "";
            lines.extend([String::new(), String::new()]);
        } else if source.starts_with("- ") {
            indent = "  ";
            if lines.last().is_some_and(|line| !line.is_empty()) {
                lines.push(String::new());
            }
        }
        for word in source.split_whitespace() {
            match lines.last_mut() {
                Some(line) if line.chars().count() + word.chars().count() < width => {
                    let space = if line.is_empty() { "" } else { " " };
                    *line += &format!("{space}{word}");
                }
                _ => lines.push(format!("{indent}{word}")),
            }
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use ronde_control::cause::CauseKind;
    use ronde_control::event::EndReason;
    use strum::VariantArray;

    use super::*;

    #[test]
    fn every_code_that_an_error_may_have_is_explained_once() {
        let sections = sections(PAGE);
        let mut explained: Vec<&str> =
            sections.iter().flat_map(|section| section.codes.clone()).collect();
        explained.sort_unstable();
        let ends = EndReason::VARIANTS.iter().filter_map(|reason| reason.code());
        let causes = CauseKind::VARIANTS.iter().map(ToString::to_string);
        let mut given: Vec<String> = ends.chain(causes).collect();
        given.sort_unstable();
        given.dedup();
        assert_eq!(explained, given);
    }

    #[test]
    fn a_section_is_shown_without_its_code_and_links() {
        let page =
            "# T\n\n## A\n\n### `x …`\n\nCode: `one`, `two`\n\nSee [this](a.md) or a[0].\n\n## B\n";
        let sections = sections(page);
        assert_eq!(sections[0].codes, ["one", "two"]);
        assert_eq!(sections[0].text(80), "`x …`\n\nSee this or a[0].\n");
    }

    #[test]
    fn text_is_wrapped_to_the_terminal() {
        let text =
            "One two\nthree four.\n\n- an item\n  that goes on\n- another\n\nThe [end](a.md#b).";
        assert_eq!(
            wrapped(&without_links(text), 12),
            "One two\nthree four.\n\n- an item\n  that goes\n  on\n- another\n\nThe end."
        );
        assert_eq!(without_links("`[1]<x>`, [two\nwords](b.md)"), "`[1]<x>`, two\nwords");
    }
}
