//! Gives `horovod.runner` access to the table of options, so that there is only one: prints the
//! table itself, or a parsed command line, as JSON on standard output. Users never type these
//! arguments; `python/horovod/runner/options.py` does.

use std::collections::BTreeMap;
use std::ffi::OsString;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::arguments::CommandLine;
use crate::flags::{FLAGS, Flag};
use crate::messages::UserError;

/// The argument that prints the table.
pub(crate) const TABLE: &str = "__ronde-options";
/// The argument that parses the rest of the command line instead of starting a job.
pub(crate) const PARSE: &str = "__ronde-parse";

/// One option, as Python sees it.
#[derive(Serialize)]
struct OptionInfo {
    names: &'static [&'static str],
    /// The attribute of the result of `parse_args`.
    argument: String,
    /// What a switch sets the attribute to.
    means: Option<bool>,
    form: &'static str,
    key: Option<&'static str>,
    /// The value of the key that selects this option, if the key chooses between several.
    choice: Option<&'static str>,
    variable: Option<&'static str>,
}

/// The whole table as JSON.
pub(crate) fn table() -> String {
    let rows: Vec<OptionInfo> = FLAGS.iter().map(row).collect();
    json!(rows).to_string()
}

fn row(flag: &'static Flag) -> OptionInfo {
    let (argument, means) = flag.argument();
    OptionInfo {
        names: flag.names,
        argument,
        means: (flag.form.values() == 0).then_some(means),
        form: flag.form.python(),
        key: flag.key.map(|key| key.name),
        choice: flag.key.and_then(|key| key.value),
        variable: flag.variable().map(|setting| setting.name),
    }
}

/// A command line as the result of `parse_args`, and the variables that it sets for the ranks, as
/// JSON.
pub(crate) fn parsed(line: &CommandLine) -> Result<String, UserError> {
    let mut arguments = Map::new();
    for flag in FLAGS {
        // Unless given, a tunable is left to the ranks: it is neither on nor off.
        let default = match flag.form.python() {
            "flag" if flag.variable().is_none() || flag.argument().0 == "tcp_flag" => {
                Value::Bool(false)
            }
            _ => Value::Null,
        };
        arguments.insert(flag.argument().0, default);
    }
    for given in line.options() {
        let (name, means) = given.flag.argument();
        let values: Vec<Value> =
            given.values.iter().map(|value| typed(given.flag, value)).collect();
        let value = match (given.flag.form.python(), values.as_slice()) {
            ("flag", _) => Value::Bool(means),
            ("names", _) => union(arguments.get(&name), &given.values),
            (_, [value]) => value.clone(),
            (_, _) => Value::Array(values),
        };
        if name.starts_with("use_") {
            // These exclude each other, and the last one wins.
            for other in ["use_gloo", "use_mpi", "use_jsrun"] {
                arguments.insert(other.into(), Value::Bool(false));
            }
        }
        arguments.insert(name, value);
    }
    for name in ["help", "version"] {
        arguments.remove(name);
    }
    let words = |words: &[OsString]| words.iter().map(|w| w.to_string_lossy().into()).collect();
    let command: Vec<String> = words(line.command());
    arguments.insert("command".into(), json!(command));
    let text = |text: &OsString| text.to_string_lossy().into_owned();
    let environment: BTreeMap<String, String> =
        line.variables()?.iter().map(|(name, value)| (text(name), text(value))).collect();
    Ok(json!({ "arguments": arguments, "environment": environment }).to_string())
}

fn typed(flag: &Flag, value: &OsString) -> Value {
    let text = value.to_string_lossy();
    match flag.form.python() {
        "whole" | "cores" => {
            text.parse::<i64>().map_or_else(|_| json!(text), |number| json!(number))
        }
        "decimal" | "fraction" => {
            text.parse::<f64>().map_or_else(|_| json!(text), |number| json!(number))
        }
        _ => json!(text),
    }
}

fn union(known: Option<&Value>, values: &[OsString]) -> Value {
    let mut names = known.and_then(Value::as_array).cloned().unwrap_or_default();
    for value in values {
        for name in value.to_string_lossy().split(',').filter(|name| !name.is_empty()) {
            if !names.contains(&json!(name)) {
                names.push(json!(name));
            }
        }
    }
    Value::Array(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments;

    fn read(text: &str) -> Value {
        let line = arguments::read(text.split_whitespace().map(OsString::from).collect()).unwrap();
        serde_json::from_str(&parsed(&line).unwrap()).unwrap()
    }

    #[test]
    fn a_command_line_has_horovods_names_and_pythons_types() {
        let parsed = read(
            "-np 4 -H a:2,b:2 --network-interface eth0 --network-interfaces eth1,eth0 --min-np 2 \
             --blacklist 1 2 --cycle-time-ms 5 --no-stall-check --no-autotune --mpi --gloo \
             --thread-affinity 1 --log-without-timestamp python x.py --mpi",
        );
        for (name, expected) in [
            ("num_proc", json!(4)),
            ("hosts", json!("a:2,b:2")),
            ("nics", json!(["eth0", "eth1"])),
            ("min_num_proc", json!(2)),
            ("max_num_proc", Value::Null),
            ("cooldown_range", json!([1, 2])),
            ("cycle_time_ms", json!(5.0)),
            ("no_stall_check", json!(true)),
            ("autotune", json!(false)),
            ("hierarchical_allreduce", Value::Null),
            ("use_gloo", json!(true)),
            ("use_mpi", json!(false)),
            ("thread_affinity", json!(1)),
            ("log_with_timestamp", json!(false)),
            ("verbose", json!(false)),
            ("command", json!(["python", "x.py", "--mpi"])),
        ] {
            assert_eq!(parsed["arguments"][name], expected, "{name}");
        }
        assert_eq!(parsed["environment"]["HOROVOD_CYCLE_TIME"], "5.0");
        assert_eq!(parsed["environment"]["HOROVOD_STALL_CHECK_DISABLE"], "1");
    }

    #[test]
    fn opposite_options_share_an_attribute() {
        let rows: Value = serde_json::from_str(&table()).unwrap();
        let find = |name: &str| {
            let mut rows = rows.as_array().unwrap().iter();
            rows.find(|row| row["names"][0] == name).unwrap()
        };
        for (name, argument, means) in [
            ("--autotune", "autotune", json!(true)),
            ("--no-autotune", "autotune", json!(false)),
            ("--stall-check", "no_stall_check", json!(false)),
            ("--slots-per-host", "slots", Value::Null),
        ] {
            assert_eq!(find(name)["argument"], argument);
            assert_eq!(find(name)["means"], means, "{name}");
        }
    }
}
