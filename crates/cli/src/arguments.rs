//! Horovod's command line, made into one that clap understands.
//!
//! Horovod has long options with one dash (`-np`, `-cb`), takes unambiguous abbreviations, and ends
//! its options at the first word that is none: everything from there on is the command, untouched.
//! One table knows all of Horovod's options, also those that are not supported yet.

use std::ffi::OsString;

use crate::words::Mistake;

struct Flag {
    /// Its name for clap, then all other spellings.
    names: &'static [&'static str],
    /// How many values follow it.
    values: usize,
    support: Support,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Support {
    /// clap knows it.
    Yes,
    /// It asks for what is so anyway.
    Already,
    /// Not in this release.
    NotYet,
}
use Support::{Already, NotYet, Yes};

const fn flag(names: &'static [&'static str], values: usize, support: Support) -> Flag {
    Flag { names, values, support }
}

const FLAGS: &[Flag] = &[
    flag(&["--help", "-h"], 0, Yes),
    flag(&["--version", "-v"], 0, Yes),
    flag(&["--verbose"], 0, Yes),
    flag(&["--num-proc", "-np", "-n"], 1, Yes),
    flag(&["--hosts", "-H"], 1, Yes),
    flag(&["--check-build", "-cb"], 0, Yes),
    flag(&["--gloo"], 0, Already),
    flag(&["--disable-cache"], 0, Already),
    flag(&["--mpi"], 0, NotYet),
    flag(&["--jsrun"], 0, NotYet),
    flag(&["--hostfile", "-hostfile"], 1, NotYet),
    flag(&["--host-discovery-script"], 1, NotYet),
    flag(&["--ssh-port", "-p"], 1, NotYet),
    flag(&["--ssh-identity-file", "-i"], 1, NotYet),
    flag(&["--start-timeout"], 1, NotYet),
    flag(&["--network-interfaces", "--network-interface"], 1, Yes),
    flag(&["--output-filename"], 1, NotYet),
    flag(&["--prefix-output-with-timestamp", "-prefix-timestamp"], 0, NotYet),
    flag(&["--config-file"], 1, NotYet),
    flag(&["--fusion-threshold-mb"], 1, NotYet),
    flag(&["--cycle-time-ms"], 1, NotYet),
    flag(&["--cache-capacity"], 1, NotYet),
    flag(&["--hierarchical-allreduce"], 0, NotYet),
    flag(&["--no-hierarchical-allreduce"], 0, NotYet),
    flag(&["--hierarchical-allgather"], 0, NotYet),
    flag(&["--no-hierarchical-allgather"], 0, NotYet),
    flag(&["--torus-allreduce"], 0, NotYet),
    flag(&["--no-torus-allreduce"], 0, NotYet),
    flag(&["--autotune"], 0, Yes),
    flag(&["--no-autotune"], 0, Yes),
    flag(&["--autotune-log-file"], 1, Yes),
    flag(&["--autotune-warmup-samples"], 1, Yes),
    flag(&["--autotune-steps-per-sample"], 1, Yes),
    flag(&["--autotune-bayes-opt-max-samples"], 1, Yes),
    flag(&["--autotune-gaussian-process-noise"], 1, Yes),
    flag(&["--min-np", "--min-num-proc"], 1, NotYet),
    flag(&["--max-np", "--max-num-proc"], 1, NotYet),
    flag(&["--slots-per-host"], 1, NotYet),
    flag(&["--elastic-timeout"], 1, NotYet),
    flag(&["--reset-limit"], 1, NotYet),
    flag(&["--blacklist-cooldown-range"], 2, NotYet),
    flag(&["--timeline-filename"], 1, Yes),
    flag(&["--timeline-mark-cycles"], 0, Yes),
    flag(&["--no-timeline-mark-cycles"], 0, Yes),
    flag(&["--no-stall-check"], 0, NotYet),
    flag(&["--stall-check"], 0, NotYet),
    flag(&["--stall-check-warning-time-seconds"], 1, NotYet),
    flag(&["--stall-check-shutdown-time-seconds"], 1, NotYet),
    flag(&["--mpi-threads-disable"], 0, NotYet),
    flag(&["--no-mpi-threads-disable"], 0, NotYet),
    flag(&["--mpi-args"], 1, NotYet),
    flag(&["--tcp"], 0, NotYet),
    flag(&["--binding-args"], 1, NotYet),
    flag(&["--num-nccl-streams"], 1, NotYet),
    flag(&["--thread-affinity"], 1, NotYet),
    flag(&["--gloo-timeout-seconds"], 1, NotYet),
    flag(&["--log-level"], 1, NotYet),
    flag(&["--log-with-timestamp"], 0, NotYet),
    flag(&["--log-without-timestamp"], 0, NotYet),
    flag(&["--log-hide-timestamp"], 0, NotYet),
    flag(&["--no-log-hide-timestamp"], 0, NotYet),
];

/// Puts every option into clap's form, and `--` in front of the command.
pub(crate) fn for_clap(arguments: Vec<OsString>) -> Result<Vec<OsString>, Mistake> {
    let mut out = Vec::with_capacity(arguments.len() + 1);
    let mut errors = Vec::new();
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
                errors.push(format!("`{name}` may mean {}", names.join(" or ")));
                continue;
            }
            Found::Nothing if !name.starts_with("--") => {
                errors.push(format!("there is no option `{name}`"));
                continue;
            }
            // clap says so, and knows what is similar.
            Found::Nothing => {
                out.push(argument);
                continue;
            }
        };
        let mut values: Vec<OsString> = value.into_iter().map(Into::into).collect();
        while values.len() < flag.values
            && let Some(next) = rest.next()
        {
            values.push(next);
        }
        match flag.support {
            Support::NotYet => errors.push(format!("`{}` is not supported yet", flag.names[0])),
            Support::Already => {}
            Support::Yes => out.push(joined(flag.names[0], values)),
        }
    }
    if !errors.is_empty() {
        return Err(Mistake { errors, hint: "`horovodrun --help` lists all options".into() });
    }
    if rest.peek().is_some() {
        out.push("--".into());
        out.extend(rest);
    }
    Ok(out)
}

fn is_option(argument: &OsString) -> bool {
    argument.len() > 1 && argument.as_encoded_bytes().starts_with(b"-")
}

fn joined(name: &str, values: Vec<OsString>) -> OsString {
    let mut out = OsString::from(name);
    for value in values {
        out.push("=");
        out.push(value);
    }
    out
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

    fn told(line: &str) -> Result<String, String> {
        let words = line.split_whitespace().map(OsString::from).collect();
        match for_clap(words) {
            Ok(words) => {
                let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
                Ok(words.join(" "))
            }
            Err(mistake) => Err(mistake.errors.join("; ")),
        }
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
            ("-cb", "--check-build"),
            ("--check", "--check-build"),
            ("-v", "--version"),
            ("--gloo -np 1 x", "--num-proc=1 -- x"),
            ("-np 1 x -np 2 --mpi -- y", "--num-proc=1 -- x -np 2 --mpi -- y"),
            ("-np 1 -- -x --verbose", "--num-proc=1 -- -x --verbose"),
            ("-np 1 - x", "--num-proc=1 -- - x"),
            ("--timeline-f t.json -np 1 x", "--timeline-filename=t.json --num-proc=1 -- x"),
            ("--nonsense x", "--nonsense -- x"),
            ("", ""),
        ] {
            assert_eq!(told(line), Ok(expected.into()), "{line}");
        }
    }

    #[test]
    fn what_is_not_supported_yet_is_named_all_at_once() {
        for (line, expected) in [
            ("--mpi -np 2 x", "`--mpi` is not supported yet"),
            ("-p 12345 -np 2 x", "`--ssh-port` is not supported yet"),
            ("--slots 2 x", "`--slots-per-host` is not supported yet"),
            ("--min-num 2 x", "`--min-np` is not supported yet"),
            (
                "--tcp --blacklist 1 2 -np 2 x",
                "`--tcp` is not supported yet; `--blacklist-cooldown-range` is not supported yet",
            ),
            ("-np4 -x x", "there is no option `-np4`; there is no option `-x`"),
            ("--ver x", "`--ver` may mean `--version` or `--verbose`"),
        ] {
            assert_eq!(told(line), Err(expected.into()), "{line}");
        }
    }
}
