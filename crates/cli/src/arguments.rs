//! Horovod's command line: which options were given, with which values, and where the command begins.
//!
//! Horovod has long options with one dash (`-np`, `-cb`), takes unambiguous abbreviations, and ends
//! its options at the first word that is none: everything from there on is the command, untouched.
//! What only tells the ranks something becomes variables here; the rest is put into clap's form.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use ronde_control::settings::{HOROVOD_AUTOTUNE, HOROVOD_TIMELINE, HOROVOD_TIMELINE_MARK_CYCLES};

use crate::flags::{Effect, FLAGS, Flag, nearest};
use crate::messages::UserError;
use crate::other_launchers;
use crate::script::MODULE;

/// A command line, taken apart.
pub(crate) struct CommandLine {
    options: Vec<GivenOption>,
    command: Vec<OsString>,
}

/// One option and its values.
pub(crate) struct GivenOption {
    pub(crate) flag: &'static Flag,
    pub(crate) values: Vec<OsString>,
}

/// Takes a command line apart.
pub(crate) fn read(arguments: Vec<OsString>) -> Result<CommandLine, UserError> {
    let mut line = CommandLine { options: Vec::new(), command: Vec::new() };
    let mut mistakes = UserErrors::default();
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
                mistakes.add(format!("`{name}` may mean {}", names.join(" or ")));
                continue;
            }
            Found::Nothing => {
                mistakes.unknown(name);
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
    mistakes.or(line)
}

impl CommandLine {
    /// The last value of an option.
    pub(crate) fn value(&self, name: &str) -> Option<&OsStr> {
        let said = self.options.iter().rev().find(|said| said.flag.names[0] == name)?;
        said.values.first().map(OsString::as_os_str)
    }

    /// The options, in the order in which they were given.
    pub(crate) fn options(&self) -> &[GivenOption] {
        &self.options
    }

    /// What every process runs.
    pub(crate) fn command(&self) -> &[OsString] {
        &self.command
    }

    /// Puts options in front, where those on the command line have the last word.
    pub(crate) fn begin_with(&mut self, options: Vec<GivenOption>) {
        self.options.splice(..0, options);
    }

    /// The options that do something here in clap's form, and `--` in front of the command.
    pub(crate) fn for_clap(&self) -> Vec<OsString> {
        let here = |said: &&GivenOption| matches!(said.flag.effect, Effect::Launcher(_));
        let mut out: Vec<OsString> = self.options.iter().filter(here).flat_map(words).collect();
        if !self.command.is_empty() {
            out.push("--".into());
            out.extend(self.command.iter().cloned());
        }
        out
    }

    /// What the options tell the ranks. Of options that contradict each other the last one counts.
    pub(crate) fn variables(&self) -> Result<Vec<(OsString, OsString)>, UserError> {
        let mut all: BTreeMap<&str, OsString> = BTreeMap::new();
        let mut mistakes = UserErrors::default();
        for GivenOption { flag, values } in &self.options {
            let Some(setting) = flag.variable() else { continue };
            match flag.value(values.first()) {
                Ok(value) => drop(all.insert(setting.name, value)),
                Err(why) => mistakes.add(format!("`{}` {why}", flag.names[0])),
            }
        }
        // Without autotuning the rest about it means nothing, nor do marks without a timeline.
        let tunes = all.get(HOROVOD_AUTOTUNE.name).is_some_and(|value| value == "1");
        let draws = all.contains_key(HOROVOD_TIMELINE.name);
        all.retain(|name, _| tunes || !name.starts_with("HOROVOD_AUTOTUNE_"));
        all.retain(|name, _| draws || *name != HOROVOD_TIMELINE_MARK_CYCLES.name);
        mistakes.or(all.into_iter().map(|(name, value)| (name.into(), value)).collect())
    }
}

/// What is wrong with a command line, all at once.
#[derive(Default)]
struct UserErrors {
    errors: Vec<String>,
    meant: Vec<String>,
    foreign: Vec<String>,
}

impl UserErrors {
    fn add(&mut self, error: String) {
        self.errors.push(error);
    }

    fn unknown(&mut self, name: &str) {
        self.errors.push(format!("there is no option `{name}`"));
        if let Some(told) = other_launchers::about(name) {
            return self.foreign.push(told);
        }
        let known = FLAGS.iter().flat_map(|flag| flag.names).copied();
        self.meant.extend(nearest(name, known).map(|meant| format!("`{meant}`")));
    }

    fn or<T>(self, done: T) -> Result<T, UserError> {
        if self.errors.is_empty() {
            return Ok(done);
        }
        let meant = format!("did you mean {}?", self.meant.join(" and "));
        let mut hints = self.foreign;
        hints.extend((!self.meant.is_empty()).then_some(meant));
        if hints.is_empty() {
            hints.push("`horovodrun --help` lists all options".into());
        }
        Err(UserError { errors: self.errors, hint: hints.join("; ") })
    }
}

/// `-m` begins the command: what follows is a module and its arguments.
fn is_option(argument: &OsString) -> bool {
    argument != MODULE && argument.len() > 1 && argument.as_encoded_bytes().starts_with(b"-")
}

/// One value stands in the same word, so that it may look like an option; several stand behind it.
fn words(said: &GivenOption) -> Vec<OsString> {
    let name = OsString::from(said.flag.names[0]);
    match said.values.as_slice() {
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
        read(words).map_err(|mistake| mistake.errors.join("; "))
    }

    fn told(text: &str) -> Result<String, String> {
        let words = line(text)?.for_clap();
        Ok(words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "))
    }

    fn variables(text: &str) -> Result<String, String> {
        let pairs = line(text)?.variables().map_err(|mistake| mistake.errors.join("; "))?;
        let spelled = |(name, value): &(OsString, OsString)| {
            let name = name.to_string_lossy().replace("HOROVOD_", "");
            format!("{name}={}", value.to_string_lossy())
        };
        Ok(pairs.iter().map(spelled).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn horovods_spellings_become_claps() {
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
            assert_eq!(told(line), Ok(expected.into()), "{line}");
        }
    }

    #[test]
    fn what_cannot_be_is_named_all_at_once() {
        for (line, expected) in [
            ("-np4 -x x", "there is no option `-np4`; there is no option `-x`"),
            ("--ver x", "`--ver` may mean `--version` or `--verbose`"),
        ] {
            assert_eq!(told(line), Err(expected.into()), "{line}");
        }
    }

    #[test]
    fn tunables_become_variables_and_the_last_word_counts() {
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
    fn values_that_make_no_sense_are_named_all_at_once() {
        let error = variables(
            "--fusion-threshold-mb -1 --cycle-time-ms nan --log-level loud --thread-affinity a \
             --autotune-gaussian-process-noise 2 --cache-capacity",
        )
        .unwrap_err();
        assert_eq!(
            error.split("; ").collect::<Vec<_>>(),
            [
                "`--fusion-threshold-mb` is `-1`, it must be a whole number from 0",
                "`--cycle-time-ms` is `nan`, it must be a number from 0",
                "`--log-level` is `loud`, it must be TRACE, DEBUG, INFO, WARNING, ERROR or FATAL",
                "`--thread-affinity` is `a`, it must be the number of a core, or several separated \
                 by commas",
                "`--autotune-gaussian-process-noise` is `2`, it must be a number from 0 to 1",
                "`--cache-capacity` needs a value",
            ]
        );
    }
}
