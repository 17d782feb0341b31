//! The reference page of events, `docs/reference/events.md`: every event with an example, and its
//! fields with their doc comments from the sources.

use std::collections::BTreeSet;
use std::time::Duration;

use super::examples::examples;
use super::{JobEvent, JobEventKind, Seconds};

/// The sources with the types that make up an event, and the comments that explain them.
const SOURCES: [&str; 3] =
    [include_str!("mod.rs"), include_str!("../cause/mod.rs"), include_str!("../wire/agent.rs")];

fn page() -> String {
    let mut page = String::from(
        "# Events of a job\n\n`horovodrun --event-log FILE` writes the events of a job as they happen, \
         one JSON object per line; `ronde status --follow --json` prints those of a running job. \
         Existing names never change; new events and fields may be added, so ignore those you do \
         not know. Texts are for people and may change: rely on `event`, `reason` and `kind`. This \
         page is generated from `crates/control/src/event/mod.rs`.\n\nTo find out why a job failed, \
         read the last line: its event is `job_ended`, `verdict.reason` says what ended the job, and \
         `verdict.first` which worker failed first, with its `cause.kind`.\n\nEvery event has:\n\n",
    );
    let all = fields("struct JobEvent");
    for Field { name, doc, .. } in all.iter().filter(|field| field.part.is_none()) {
        page += &format!("- `{name}`: {doc}\n");
    }
    page += "- `event`: the kind of event, one of the following.\n";
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
    page += "\n## Values\n";
    for (title, name) in [
        ("Why a job ended: `verdict.reason`", "enum EndReason"),
        ("Why a worker was lost: `cause.kind`", "enum CauseKind"),
        ("State of a process: `process.state`", "enum ProcessState"),
    ] {
        page += &format!("\n{title}\n\n");
        for (word, doc, _) in values(name) {
            page += &format!("- `{word}`: {doc}\n");
        }
    }
    page
}

/// One line per field. The fields of a nested type follow the field that holds it.
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
    /// Whether its own fields are merged into the parent object.
    flat: bool,
    /// The type of its fields, if it has any.
    part: Option<String>,
}

/// The lines of a type definition, without indentation.
fn definition(name: &str) -> impl Iterator<Item = &'static str> {
    let head = format!("pub {name} {{\n");
    let sources = SOURCES.into_iter().chain([include_str!("../cause/kind.rs")]);
    let text = sources.into_iter().find_map(|source| source.split_once(&head));
    let (_, body) = text.unwrap_or_else(|| panic!("no definition of {name}"));
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
            let parts =
                ["WorkerInfo", "Cause", "Condition", "Verdict", "FailedWorker", "JobEventKind"];
            let inner = kind.rsplit('<').next().unwrap().trim_end_matches('>');
            let part = parts.contains(&inner).then(|| format!("struct {inner}"));
            fields.push(Field { name, doc: std::mem::take(&mut doc), flat, part });
            flat = false;
        }
    }
    fields
}

/// The variants of a type with their JSON names, docs and fields.
fn values(name: &str) -> Vec<(String, String, Vec<Field>)> {
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
    values("enum JobEventKind")
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

fn json(number: u64, what: JobEventKind) -> String {
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
        assert_eq!(written, page(), "run the tests with BLESS=1 and review the change");
    }

    #[test]
    fn every_event_survives_a_round_trip_through_json() {
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
    fn a_fixed_job_shows_only_unresponsive_workers_and_lost_output() {
        let shown: Vec<String> = examples()
            .iter()
            .filter(|what| what.is_shown_in(JobKind::Fixed))
            .filter_map(|what| Some(what.line()?.split(": ").next()?.to_owned()))
            .collect();
        assert_eq!(shown.len(), 12, "{shown:?}");
        assert!(examples().iter().all(|what| what.is_shown_in(JobKind::Elastic)));
    }
}
