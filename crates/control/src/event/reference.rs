//! The reference page of events, `docs/reference/events.md`: each with an example, and its fields with
//! the comments that stand beside them in the sources.

use std::collections::BTreeSet;
use std::time::Duration;

use super::examples::examples;
use super::{Happening, JobEvent, Seconds};

/// The sources whose comments explain events, with the types in them that are parts of one.
const SOURCES: [&str; 3] =
    [include_str!("mod.rs"), include_str!("../cause/mod.rs"), include_str!("../wire/agent.rs")];

/// The whole page.
fn page() -> String {
    let mut page = String::from(
        "# Events of a job\n\n`horovodrun --event-log FILE` writes what happens in a job as lines of \
         JSON, one object each, as it happens; `ronde status --follow --json` prints the same of a job \
         that runs. Names stay as they are; new events and new fields may come, so skip what you do \
         not know. Texts are for people and may change: go by `event`, `reason` and `kind`. This page \
         is made from `crates/control/src/event/mod.rs`.\n\nTo learn why a job has failed, read the \
         last line: its event is `job_ended`, `verdict.reason` says what ended the job, and \
         `verdict.first` which worker failed first, with `cause.kind`.\n\nEvery event has:\n\n",
    );
    let all = fields("struct JobEvent");
    for Field { name, doc, .. } in all.iter().filter(|field| field.part.is_none()) {
        page += &format!("- `{name}`: {doc}\n");
    }
    page += "- `event`: which event it is, one of the following.\n";
    let variants = variants();
    let mut seen = BTreeSet::new();
    for (number, what) in (0..).zip(examples()) {
        let text = json(number, what);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let name = value["event"].as_str().unwrap().to_owned();
        if !seen.insert(name.clone()) {
            continue;
        }
        let (_, doc, fields) = variants.iter().find(|(known, ..)| *known == name).unwrap();
        page += &format!("\n## `{name}`\n\n{doc}\n\n```json\n{text}\n```\n");
        let mut explained: BTreeSet<String> = ["number", "time", "event"].map(str::to_owned).into();
        let lines = explain("", fields, &mut explained);
        page += &format!("{}{lines}", if lines.is_empty() { "" } else { "\n" });
        let present: BTreeSet<String> = value.as_object().unwrap().keys().cloned().collect();
        assert_eq!(explained, present, "{name}");
    }
    assert_eq!(seen.len(), variants.len(), "an event without an example");
    page += "\n## Words\n";
    for (title, name) in [
        ("Why a job has ended: `verdict.reason`", "enum EndReason"),
        ("Why a worker was lost: `cause.kind`", "enum CauseKind"),
        ("What a process does: `process.state`", "enum ProcessState"),
    ] {
        page += &format!("\n{title}\n\n");
        for (word, doc, _) in words(name) {
            page += &format!("- `{word}`: {doc}\n");
        }
    }
    page
}

/// Lines that explain fields; those of parts are explained with them.
fn explain(before: &str, fields: &[Field], explained: &mut BTreeSet<String>) -> String {
    let mut lines = String::new();
    for field in fields {
        let (name, doc) = (&field.name, &field.doc);
        match &field.part {
            Some(part) if field.flat => lines += &explain(before, &self::fields(part), explained),
            part => {
                if before.is_empty() {
                    explained.insert(name.clone());
                }
                lines += &format!("- `{before}{name}`: {doc}\n");
                if let Some(part) = part {
                    let before = format!("{before}{name}.");
                    lines += &explain(&before, &self::fields(part), explained);
                }
            }
        }
    }
    lines
}

struct Field {
    name: String,
    doc: String,
    /// Whether its own fields stand beside the others.
    flat: bool,
    /// The type whose fields it has.
    part: Option<String>,
}

/// The lines of a type's definition, without their indentation.
fn definition(name: &str) -> impl Iterator<Item = &'static str> {
    let head = format!("pub {name} {{\n");
    let sources = SOURCES.into_iter().chain([include_str!("../cause/kind.rs")]);
    let text = sources.into_iter().find_map(|source| source.split_once(&head));
    let (_, body) = text.unwrap_or_else(|| panic!("{name} is nowhere"));
    body.split("\n}\n").next().unwrap().lines().map(str::trim)
}

fn fields(name: &str) -> Vec<Field> {
    read_fields(&mut definition(name))
}

fn read_fields(lines: &mut dyn Iterator<Item = &'static str>) -> Vec<Field> {
    let (mut fields, mut doc, mut flat, mut renamed) = (Vec::new(), String::new(), false, None);
    for line in lines {
        if line == "}," {
            break;
        }
        if let Some(more) = line.strip_prefix("/// ") {
            doc = format!("{doc} {more}").trim().to_owned();
        } else if line.starts_with("#[serde(flatten)]") {
            flat = true;
        } else if let Some((_, name)) = line.split_once("rename = \"") {
            renamed = name.split('"').next().map(str::to_owned);
        } else if let Some((name, kind)) = line.trim_end_matches(',').split_once(": ") {
            let name = renamed.take().unwrap_or(name.trim_start_matches("pub ").to_owned());
            let parts = ["Member", "Cause", "Condition", "Judgement", "Culprit", "Happening"];
            let inner = kind.rsplit('<').next().unwrap().trim_end_matches('>');
            let part = parts.contains(&inner).then(|| format!("struct {inner}"));
            fields.push(Field { name, doc: std::mem::take(&mut doc), flat, part });
            flat = false;
        }
    }
    fields
}

/// The variants of a type as programs know them, with their explanations and fields.
fn words(name: &str) -> Vec<(String, String, Vec<Field>)> {
    let mut lines = definition(name);
    let (mut all, mut doc) = (Vec::new(), String::new());
    while let Some(line) = lines.next() {
        if let Some(more) = line.strip_prefix("/// ") {
            doc = format!("{doc} {more}").trim().to_owned();
        } else if let Some(name) = line.strip_suffix(" {") {
            all.push((snake(name), std::mem::take(&mut doc), read_fields(&mut lines)));
        } else if let Some(name) = line.strip_suffix(',') {
            all.push((snake(name), std::mem::take(&mut doc), Vec::new()));
        }
    }
    all
}

fn variants() -> Vec<(String, String, Vec<Field>)> {
    words("enum Happening")
}

fn snake(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}

fn json(number: u64, what: Happening) -> String {
    let time = Seconds(Duration::from_micros(1_763_250_000_123_456 + number));
    serde_json::to_string(&JobEvent { number, time, what }).unwrap()
}

#[cfg(test)]
mod tests {
    use super::super::JobKind;
    use super::*;

    const PAGE: &str = "../../docs/reference/events.md";

    #[test]
    fn the_page_shows_every_event_and_explains_every_field() {
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(PAGE, page()).unwrap();
        }
        let written = std::fs::read_to_string(PAGE).unwrap_or_default();
        assert_eq!(written, page(), "run the tests with BLESS=1 and look at the change");
    }

    #[test]
    fn what_is_written_is_read_again() {
        for (number, what) in (0..).zip(examples()) {
            let text = json(number, what.clone());
            assert!(!text.contains('\n'), "{text}");
            let event: JobEvent = serde_json::from_str(&text).unwrap();
            assert_eq!((event.number, &event.what), (number, &what), "{text}");
            assert_eq!(event.time.0, Duration::from_micros(1_763_250_000_123_456 + number));
        }
        let wrong = r#"{"number": 1, "time": -1e300, "event": "hosts_known"}"#;
        assert!(serde_json::from_str::<JobEvent>(wrong).is_err());
    }

    #[test]
    fn a_fixed_job_says_only_who_does_not_answer_and_what_is_not_written() {
        let shown: Vec<String> = examples()
            .iter()
            .filter(|what| what.is_shown_in(JobKind::Fixed))
            .filter_map(|what| Some(what.line()?.split(": ").next()?.to_owned()))
            .collect();
        assert_eq!(shown.len(), 11, "{shown:?}");
        assert!(examples().iter().all(|what| what.is_shown_in(JobKind::Elastic)));
    }
}
