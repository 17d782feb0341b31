//! The file of `--config-file`: options in YAML, under the keys in the table of options.
//!
//! An unknown key is an error; otherwise a misspelled setting would silently have no effect.

use std::collections::BTreeMap;
use std::ffi::OsString;

use yaml_rust2::parser::{Event, Parser};
use yaml_rust2::{Yaml, YamlLoader};

use crate::arguments::GivenOption;
use crate::flags::{FLAGS, Flag, Key, nearest};
use crate::messages::UserError;

/// Maximum nesting depth; two levels of keys need three.
const DEEPEST: usize = 16;

/// The options in a file; `path` is its name.
pub(crate) fn read(path: &str, text: &str) -> Result<Vec<GivenOption>, UserError> {
    let mut errors = Vec::new();
    let values = flatten(text).map_err(|why| {
        UserError::new(
            format!("`{path}` cannot be read: {why}"),
            "it must be YAML with at most two levels of keys",
        )
    })?;
    let mut options = Vec::new();
    for (key, value) in &values {
        match option(key, value) {
            Ok(given) => options.push(given),
            Err(why) => errors.push(format!("`{path}`: {why}")),
        }
    }
    match errors.is_empty() {
        true => Ok(options),
        false => {
            let hint = "docs/reference/horovodrun.md lists all keys";
            Err(UserError { errors, hint: hint.into() })
        }
    }
}

fn option(key: &str, value: &str) -> Result<GivenOption, String> {
    let named: Vec<(&'static Flag, Key)> = FLAGS
        .iter()
        .filter_map(|flag| Some((flag, flag.key?)))
        .filter(|(_, k)| k.name == key)
        .collect();
    if named.is_empty() {
        let known = FLAGS.iter().filter_map(|flag| flag.key).map(|key| key.name);
        let meant = nearest(key, known).map(|meant| format!(", did you mean `{meant}`?"));
        return Err(format!("there is no key `{key}`{}", meant.unwrap_or_default()));
    }
    let chosen = named.iter().find(|(_, key)| key.value.is_none_or(|meant| meant == value));
    let Some((flag, key)) = chosen else {
        let all: Vec<&str> = named.iter().filter_map(|(_, key)| key.value).collect();
        return Err(format!(
            "`{}` is `{value}`, but must be {}",
            named[0].1.name,
            all.join(" or ")
        ));
    };
    let values: Vec<OsString> = match key.value {
        Some(_) => Vec::new(),
        None => vec![value.into()],
    };
    if flag.variable().is_some() {
        flag.value(values.first()).map_err(|why| format!("`{}` {why}", key.name))?;
    }
    Ok(GivenOption { flag, values })
}

/// All values by their dotted keys. Keys without a value are left out.
fn flatten(text: &str) -> Result<BTreeMap<String, String>, String> {
    check(text)?;
    let documents = YamlLoader::load_from_str(text).map_err(|error| error.to_string())?;
    let mut values = BTreeMap::new();
    match documents.as_slice() {
        [] | [Yaml::Null] => Ok(values),
        [Yaml::Hash(sections)] => {
            for (name, section) in sections {
                let name = scalar(name).ok_or("a key is not a string")?;
                let Yaml::Hash(entries) = section else {
                    put(&mut values, name, section)?;
                    continue;
                };
                for (key, value) in entries {
                    let key = scalar(key).ok_or("a key is not a string")?;
                    put(&mut values, format!("{name}.{key}"), value)?;
                }
            }
            Ok(values)
        }
        [_] => Err("it has no keys".into()),
        _ => Err("it contains several documents".into()),
    }
}

/// Refuses files that would use far too much memory: loading copies the target of each alias, so a
/// few lines of aliases to aliases would grow to gigabytes, and it recurses into nested values.
fn check(text: &str) -> Result<(), String> {
    let mut parser = Parser::new_from_str(text);
    let mut depth = 0_usize;
    loop {
        match parser.next_token().map_err(|error| error.to_string())?.0 {
            Event::StreamEnd => return Ok(()),
            Event::Alias(_) => return Err("aliases (`*name`) are not supported".into()),
            Event::SequenceStart(..) | Event::MappingStart(..) => depth += 1,
            Event::SequenceEnd | Event::MappingEnd => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEEPEST {
            return Err("it is nested too deeply".into());
        }
    }
}

fn put(values: &mut BTreeMap<String, String>, key: String, value: &Yaml) -> Result<(), String> {
    if let Some(text) = scalar(value) {
        values.insert(key, text);
    } else if *value != Yaml::Null {
        return Err(format!("`{key}` must be a scalar"));
    }
    Ok(())
}

fn scalar(value: &Yaml) -> Option<String> {
    match value {
        Yaml::String(text) | Yaml::Real(text) => Some(text.clone()),
        Yaml::Integer(number) => Some(number.to_string()),
        Yaml::Boolean(yes) => Some(yes.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Result<String, String> {
        let given = read("x.yaml", text).map_err(|error| error.errors.join("; "))?;
        let spelled = |given: &GivenOption| {
            let value = given.values.first().map(|value| format!("={}", value.to_string_lossy()));
            format!("{}{}", given.flag.names[0], value.unwrap_or_default())
        };
        Ok(given.iter().map(spelled).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn every_key_of_the_table_is_accepted() {
        let file = "
controller: gloo
params:
  fusion_threshold_mb: 32
  cycle_time_ms: 10
  cache_capacity: 2048
  hierarchical_allreduce: true
  hierarchical_allgather: false
  torus_allreduce:            # not set
autotune: {enabled: true, log_file: a.csv, warmup_samples: 5, gaussian_process_noise: 0.5}
timeline:
  filename: t.json
  mark_cycles: true
stall_check:
  enabled: false
  warning_time_seconds: 120
library_options:
  num_nccl_streams: 2
  thread_affinity: 1
logging:
  level: INFO
  hide_timestamp: true
";
        let expected = "--autotune --autotune-gaussian-process-noise=0.5 --autotune-log-file=a.csv \
                        --autotune-warmup-samples=5 --gloo --num-nccl-streams=2 --thread-affinity=1 \
                        --log-hide-timestamp --log-level=INFO --cache-capacity=2048 \
                        --cycle-time-ms=10 --fusion-threshold-mb=32 --no-hierarchical-allgather \
                        --hierarchical-allreduce --no-stall-check \
                        --stall-check-warning-time-seconds=120 --timeline-filename=t.json \
                        --timeline-mark-cycles";
        assert_eq!(options(file), Ok(expected.into()));
        assert_eq!(options(""), Ok(String::new()));
        assert_eq!(options("# nothing\n"), Ok(String::new()));
    }

    #[test]
    fn all_errors_are_reported_at_once_with_their_keys() {
        let file = "
params: {fusion_thresholds: 1, cycle_time_ms: -1}
autotune: {enabled: 7}
nonsense: 1
";
        assert_eq!(
            options(file).unwrap_err().split("; ").collect::<Vec<_>>(),
            [
                "`x.yaml`: `autotune.enabled` is `7`, but must be true or false",
                "`x.yaml`: there is no key `nonsense`",
                "`x.yaml`: `params.cycle_time_ms` is `-1`, but must be a non-negative number",
                "`x.yaml`: there is no key `params.fusion_thresholds`, did you mean \
                 `params.fusion_threshold_mb`?",
            ]
        );
        for text in
            ["- a\n", "a: [1]\n", "a: {b: {c: 1}}\n", "a: 'x", "---\na: 1\n---\nb: 1\n", "x"]
        {
            assert!(options(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_small_file_that_would_grow_without_bound_is_refused() {
        // Each line is ten times the previous one: 10^30 words.
        let mut bomb = "a0: &a0 x\n".to_owned();
        for level in 1..=30 {
            let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
            bomb += &format!("a{level}: &a{level} [{aliases}]\n");
        }
        assert!(options(&bomb).unwrap_err().contains("aliases (`*name`) are not supported"));
        for opening in ["[", "{b: ", "- "] {
            for levels in [20, 100_000] {
                let deep = format!("a:\n  {}", opening.repeat(levels));
                assert!(options(&deep).is_err(), "{levels} of {opening}");
            }
        }
    }
}
