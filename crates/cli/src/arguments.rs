//! Splits Horovod's command line into options with their values and the command.
//!
//! Horovod has long options with one dash (`-np`, `-cb`), accepts unambiguous abbreviations, and
//! ends its options at the first argument that is not an option: the rest is the command, passed on
//! unchanged. Options that only concern the ranks become variables; the others are translated for
//! clap.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use ronde_control::settings::{HOROVOD_AUTOTUNE, HOROVOD_TIMELINE, HOROVOD_TIMELINE_MARK_CYCLES};

use crate::flags::{Effect, FLAGS, Flag, nearest};
use crate::messages::UserError;
use crate::other_launchers;
use crate::script::MODULE;

/// A parsed command line.
pub(crate) struct CommandLine {
    options: Vec<GivenOption>,
    command: Vec<OsString>,
}

/// An option as given, with its values.
pub(crate) struct GivenOption {
    pub(crate) flag: &'static Flag,
    pub(crate) values: Vec<OsString>,
}

/// Splits a command line; reports all unknown options at once.
pub(crate) fn read(arguments: Vec<OsString>) -> Result<CommandLine, UserError> {
    let mut line = CommandLine { options: Vec::new(), command: Vec::new() };
    let mut errors = UserErrors::default();
    let mut rest = arguments.into_iter().peekable();
    while let Some(argument) = rest.next_if(is_option) {
        if argument == "--" {
            break;
        }
        let text = argument.to_string_lossy().into_owned();
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (text.as_str(), None),
        };
        let (flag, value) = match find(name) {
            Found::Flag(flag) => (flag, value),
            Found::Attached(flag, attached) => {
                let tail = value.map(|value| format!("={value}")).unwrap_or_default();
                (flag, Some(attached.to_owned() + &tail))
            }
            Found::Several(names) => {
                errors.add(format!("`{name}` is ambiguous: it may mean {}", names.join(" or ")));
                continue;
            }
            Found::Nothing => {
                errors.unknown(name);
                continue;
            }
        };
        let mut values: Vec<OsString> = value.into_iter().map(Into::into).collect();
        while values.len() < flag.form.values()
            && let Some(next) = rest.next()
        {
            values.push(next);
        }
        line.options.push(GivenOption { flag, values });
    }
    line.command = rest.collect();
    errors.or(line)
}

impl CommandLine {
    /// The last value of an option.
    pub(crate) fn value(&self, name: &str) -> Option<&OsStr> {
        let given = self.options.iter().rev().find(|given| given.flag.names[0] == name)?;
        given.values.first().map(OsString::as_os_str)
    }

    /// The options, in the order in which they were given.
    pub(crate) fn options(&self) -> &[GivenOption] {
        &self.options
    }

    /// The command that every process runs.
    pub(crate) fn command(&self) -> &[OsString] {
        &self.command
    }

    /// Inserts options before the others, so that those on the command line override them.
    pub(crate) fn begin_with(&mut self, options: Vec<GivenOption>) {
        self.options.splice(..0, options);
    }

    /// The launcher's options as clap expects them, then `--` and the command.
    pub(crate) fn for_clap(&self) -> Vec<OsString> {
        let here = |given: &&GivenOption| matches!(given.flag.effect, Effect::Launcher(_));
        let mut out: Vec<OsString> = self.options.iter().filter(here).flat_map(words).collect();
        if !self.command.is_empty() {
            out.push("--".into());
            out.extend(self.command.iter().cloned());
        }
        out
    }

    /// The variables that the options set for the ranks. If options contradict each other, the last
    /// one wins.
    pub(crate) fn variables(&self) -> Result<Vec<(OsString, OsString)>, UserError> {
        let mut all: BTreeMap<&str, OsString> = BTreeMap::new();
        let mut errors = UserErrors::default();
        for GivenOption { flag, values } in &self.options {
            let Some(setting) = flag.variable() else { continue };
            match flag.value(values.first()) {
                Ok(value) => drop(all.insert(setting.name, value)),
                Err(why) => errors.add(format!("`{}` {why}", flag.names[0])),
            }
        }
        // Parameters of autotuning need autotuning, and marks need a timeline.
        let autotunes = all.get(HOROVOD_AUTOTUNE.name).is_some_and(|value| value == "1");
        let has_timeline = all.contains_key(HOROVOD_TIMELINE.name);
        all.retain(|name, _| autotunes || !name.starts_with("HOROVOD_AUTOTUNE_"));
        all.retain(|name, _| has_timeline || *name != HOROVOD_TIMELINE_MARK_CYCLES.name);
        errors.or(all.into_iter().map(|(name, value)| (name.into(), value)).collect())
    }
}

/// All errors of a command line, and hints about them.
#[derive(Default)]
struct UserErrors {
    errors: Vec<String>,
    suggestions: Vec<String>,
    foreign: Vec<String>,
}

impl UserErrors {
    fn add(&mut self, error: String) {
        self.errors.push(error);
    }

    fn unknown(&mut self, name: &str) {
        self.errors.push(format!("there is no option `{name}`"));
        if let Some(advice) = other_launchers::about(name) {
            return self.foreign.push(advice);
        }
        let known = FLAGS.iter().flat_map(|flag| flag.names).copied();
        self.suggestions.extend(nearest(name, known).map(|name| format!("`{name}`")));
    }

    fn or<T>(self, result: T) -> Result<T, UserError> {
        if self.errors.is_empty() {
            return Ok(result);
        }
        let suggestion = format!("did you mean {}?", self.suggestions.join(" and "));
        let mut hints = self.foreign;
        hints.extend((!self.suggestions.is_empty()).then_some(suggestion));
        if hints.is_empty() {
            hints.push("`horovodrun --help` lists all options".into());
        }
        Err(UserError { errors: self.errors, hint: hints.join("; ") })
    }
}

/// `-m` starts the command: a module and its arguments follow.
fn is_option(argument: &OsString) -> bool {
    argument != MODULE && argument.len() > 1 && argument.as_encoded_bytes().starts_with(b"-")
}

/// A single value goes into the same argument, because it may look like an option; several follow
/// as separate arguments.
fn words(given: &GivenOption) -> Vec<OsString> {
    let name = OsString::from(given.flag.names[0]);
    match given.values.as_slice() {
        [value] => {
            let mut word = name;
            word.push("=");
            word.push(value);
            vec![word]
        }
        values => std::iter::once(name).chain(values.iter().cloned()).collect(),
    }
}

enum Found<'a> {
    Flag(&'static Flag),
    Attached(&'static Flag, &'a str),
    Several(Vec<String>),
    Nothing,
}

fn find(name: &str) -> Found<'_> {
    let exact = FLAGS.iter().find(|flag| flag.names.contains(&name));
    if let Some(flag) = exact {
        return Found::Flag(flag);
    }
    if !name.starts_with("--") {
        let attached = name.char_indices().nth(2).map(|(index, _)| name.split_at(index));
        return match attached {
            Some((short, value)) if matches!(short, "-H" | "-p" | "-i") => match find(short) {
                Found::Flag(flag) => Found::Attached(flag, value),
                _ => Found::Nothing,
            },
            _ => Found::Nothing,
        };
    }
    let begins = |flag: &&Flag| flag.names.iter().any(|full| full.starts_with(name));
    match FLAGS.iter().filter(begins).collect::<Vec<_>>().as_slice() {
        [] => Found::Nothing,
        [flag] => Found::Flag(flag),
        several => {
            Found::Several(several.iter().map(|flag| format!("`{}`", flag.names[0])).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(line: &str) -> Result<CommandLine, String> {
        let words = line.split_whitespace().map(OsString::from).collect();
        read(words).map_err(|error| error.errors.join("; "))
    }

    fn for_clap(text: &str) -> Result<String, String> {
        let words = line(text)?.for_clap();
        Ok(words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "))
    }

    fn variables(text: &str) -> Result<String, String> {
        let pairs = line(text)?.variables().map_err(|error| error.errors.join("; "))?;
        let spelled = |(name, value): &(OsString, OsString)| {
            let name = name.to_string_lossy().replace("HOROVOD_", "");
            format!("{name}={}", value.to_string_lossy())
        };
        Ok(pairs.iter().map(spelled).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn horovods_spellings_are_translated_for_clap() {
        for (line, expected) in [
            ("-np 4 python x.py", "--num-proc=4 -- python x.py"),
            ("-np=4 x", "--num-proc=4 -- x"),
            ("-n 4 x", "--num-proc=4 -- x"),
            ("--num-proc=4 x", "--num-proc=4 -- x"),
            ("--num-p 4 x", "--num-proc=4 -- x"),
            ("-np -1 x", "--num-proc=-1 -- x"),
            ("-np", "--num-proc"),
            ("-H a:2,b:2 -np 4 x", "--hosts=a:2,b:2 --num-proc=4 -- x"),
            ("-Ha:2 x", "--hosts=a:2 -- x"),
            ("--hosts=a:2 x", "--hosts=a:2 -- x"),
            ("-hostfile f x", "--hostfile=f -- x"),
            ("-prefix-timestamp x", "--prefix-output-with-timestamp -- x"),
            ("-cb", "--check-build"),
            ("--check", "--check-build"),
            ("-v", "--version"),
            ("--gloo --disable-cache -np 1 x", "--gloo --num-proc=1 -- x"),
            ("-np 1 x -np 2 --mpi -- y", "--num-proc=1 -- x -np 2 --mpi -- y"),
            ("-np 1 -- -x --verbose", "--num-proc=1 -- -x --verbose"),
            ("-np 1 - x", "--num-proc=1 -- - x"),
            ("-np 1 -m train -x", "--num-proc=1 -- -m train -x"),
            ("--timeline-f t.json -np 1 x", "--num-proc=1 -- x"),
            ("--slots 2 --min-num-proc 1 x", "--slots-per-host=2 --min-np=1 -- x"),
            ("--blacklist 1 2 x", "--blacklist-cooldown-range 1 2 -- x"),
            ("", ""),
        ] {
            assert_eq!(for_clap(line), Ok(expected.into()), "{line}");
        }
    }

    #[test]
    fn unknown_options_are_reported_all_at_once() {
        for (line, expected) in [
            ("-np4 -x x", "there is no option `-np4`; there is no option `-x`"),
            ("--ver x", "`--ver` is ambiguous: it may mean `--version` or `--verbose`"),
        ] {
            assert_eq!(for_clap(line), Err(expected.into()), "{line}");
        }
    }

    #[test]
    fn tunables_become_variables_and_the_last_option_wins() {
        for (line, expected) in [
            ("", ""),
            (
                "--fusion-threshold-mb 32 --cycle-time-ms 20",
                "CYCLE_TIME=20.0 FUSION_THRESHOLD=33554432",
            ),
            ("--cache-capacity=0", "CACHE_CAPACITY=0"),
            ("--hierarchical-allreduce --no-hierarchical-allreduce", "HIERARCHICAL_ALLREDUCE=0"),
            ("--no-stall-check", "STALL_CHECK_DISABLE=1"),
            ("--no-stall-check --stall-check", "STALL_CHECK_DISABLE=0"),
            ("--log-level debug --log-without-timestamp", "LOG_HIDE_TIME=1 LOG_LEVEL=DEBUG"),
            ("--log-hide-timestamp --log-with-timestamp", "LOG_HIDE_TIME=0"),
            ("--tcp", "NCCL_IB_DISABLE=1"),
            ("--timeline-filename t --timeline-mark-cycles", "TIMELINE=t TIMELINE_MARK_CYCLES=1"),
            ("--timeline-mark-cycles", ""),
            ("--autotune", "AUTOTUNE=1"),
            ("--autotune --no-autotune --autotune-log-file x.csv", "AUTOTUNE=0"),
            ("--autotune-log-file x.csv", ""),
            (
                "--autotune --autotune-log x.csv --autotune-gaussian-process-noise 0.5",
                "AUTOTUNE=1 AUTOTUNE_GAUSSIAN_PROCESS_NOISE=0.5 AUTOTUNE_LOG=x.csv",
            ),
        ] {
            assert_eq!(variables(line), Ok(expected.into()), "{line}");
        }
    }

    #[test]
    fn invalid_values_are_reported_all_at_once() {
        let error = variables(
            "--fusion-threshold-mb -1 --cycle-time-ms nan --log-level loud --thread-affinity a \
             --autotune-gaussian-process-noise 2 --cache-capacity",
        )
        .unwrap_err();
        assert_eq!(
            error.split("; ").collect::<Vec<_>>(),
            [
                "`--fusion-threshold-mb` is `-1`, but must be a non-negative integer",
                "`--cycle-time-ms` is `nan`, but must be a non-negative number",
                "`--log-level` is `loud`, but must be TRACE, DEBUG, INFO, WARNING, ERROR or FATAL",
                "`--thread-affinity` is `a`, but must be a core number, or several \
                 separated by commas",
                "`--autotune-gaussian-process-noise` is `2`, but must be a number from 0 to 1",
                "`--cache-capacity` needs a value",
            ]
        );
    }
}
