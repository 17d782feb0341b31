//! The table of `horovodrun`'s options: the spellings of each, its values, its key in the
//! configuration file, and its effect: it changes the launcher, sets a variable for the ranks, or
//! does nothing. It has every option of Horovod.
//!
//! The command line, the configuration file, the help, Python's `parse_args` and the page
//! `docs/reference/horovodrun.md` come from this table; names, defaults and effects of variables
//! come from `ronde_control::settings`. An option of the launcher is also a field in one of the
//! structs that clap fills, with a name and a type; [`described`] adds the rest
//! (`docs/design/0014-options.md`).

use std::ffi::OsString;

use clap::{Arg, Command, CommandFactory, FromArgMatches};
use ronde_control::settings::*;

use crate::form::Form;
use crate::tables;

/// A command-line option of `horovodrun`.
#[derive(Clone, Copy)]
pub(crate) struct Flag {
    /// The full name, then all other spellings.
    pub(crate) names: &'static [&'static str],
    pub(crate) form: Form,
    pub(crate) effect: Effect,
    pub(crate) key: Option<Key>,
    /// Its attribute in Python's `parse_args`, if that differs from its name.
    argument: Option<Argument>,
    about: &'static str,
    /// The default, unless it is that of its variable.
    default: &'static str,
    group: &'static str,
}

/// An attribute of the result of `horovod.runner.launch.parse_args`.
#[derive(Clone, Copy)]
struct Argument {
    name: &'static str,
    /// What a switch sets it to.
    means: bool,
}

/// A key of the configuration file, such as `params.cycle_time_ms`.
#[derive(Clone, Copy)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    /// The value that selects this option, if the key chooses between several.
    pub(crate) value: Option<&'static str>,
}

/// What an option does.
#[derive(Clone, Copy)]
pub(crate) enum Effect {
    /// The launcher uses it; it takes precedence over the variable, if there is one.
    Launcher(Option<&'static Setting>),
    /// It sets a variable for the ranks: a switch to this value, other options to their own.
    Sets(&'static Setting, &'static str),
    /// It has no effect.
    Nothing,
}

use Effect::{Launcher, Nothing, Sets};
use Form::{
    Address, Cores, Count, Decimal, Fraction, Level, Mebibytes, Names, Port, Processes, Seconds,
    SecondsRange, Switch, Text, Whole,
};

const fn flag(names: &'static [&'static str], form: Form, about: &'static str) -> Flag {
    let (effect, default, group) = (Launcher(None), "", "");
    Flag { names, form, effect, key: None, argument: None, about, default, group }
}

/// An option of Horovod that has no effect here.
const fn unused(name: &'static [&'static str], form: Form) -> Flag {
    flag(name, form, NO_EFFECT)
}

impl Flag {
    const fn key(mut self, name: &'static str) -> Flag {
        self.key = Some(Key { name, value: None });
        self
    }

    const fn key_is(mut self, name: &'static str, value: &'static str) -> Flag {
        self.key = Some(Key { name, value: Some(value) });
        self
    }

    const fn sets(mut self, setting: &'static Setting) -> Flag {
        self.effect = Sets(setting, "");
        self
    }

    const fn sets_to(mut self, setting: &'static Setting, value: &'static str) -> Flag {
        self.effect = Sets(setting, value);
        self
    }

    const fn before(mut self, setting: &'static Setting) -> Flag {
        self.effect = Launcher(Some(setting));
        self
    }

    const fn does_nothing(mut self) -> Flag {
        self.effect = Nothing;
        self
    }

    const fn default(mut self, default: &'static str) -> Flag {
        self.default = default;
        self
    }

    const fn within(mut self, group: &'static str) -> Flag {
        self.group = group;
        self
    }

    const fn makes(mut self, name: &'static str, means: bool) -> Flag {
        self.argument = Some(Argument { name, means });
        self
    }

    /// Its attribute in Python and what a switch sets it to. An option and its opposite share one.
    pub(crate) fn argument(&self) -> (String, bool) {
        if let Some(Argument { name, means }) = self.argument {
            return (name.to_owned(), means);
        }
        match self.field().strip_prefix("no_") {
            Some(opposite) => (opposite.to_owned(), false),
            None => (self.field(), true),
        }
    }

    /// Its field in clap's structs.
    fn field(&self) -> String {
        self.names[0].trim_start_matches('-').replace('-', "_")
    }

    /// The variable that it sets for the ranks, if any.
    pub(crate) fn variable(&self) -> Option<&'static Setting> {
        match self.effect {
            Sets(setting, _) => Some(setting),
            Launcher(_) | Nothing => None,
        }
    }

    /// The value of that variable, or what is wrong with the given value.
    pub(crate) fn value(&self, given: Option<&OsString>) -> Result<OsString, String> {
        match (self.form, self.effect) {
            (Switch, Sets(_, value)) => Ok(value.into()),
            (form, _) => form.value(given),
        }
    }

    /// Whether the help leaves it out: the opposite of another option, or one that is deprecated or
    /// has no effect.
    pub(crate) fn is_hidden(&self) -> bool {
        matches!(self.about, "" | NO_EFFECT | DEPRECATED)
    }

    /// The help text, with the default.
    fn help(&self) -> String {
        let setting = match self.effect {
            Launcher(setting) => setting,
            Sets(setting, _) => Some(setting).filter(|_| self.form != Switch),
            Nothing => None,
        };
        let default = match (self.default, setting) {
            ("", Some(setting)) => self.form.shown(setting.default),
            (default, _) => default.to_owned(),
        };
        let default = if default.is_empty() { default } else { format!(" [default: {default}]") };
        format!("{}{default}", self.about)
    }

    /// Adds what the table knows to clap's argument.
    pub(crate) fn describe(&self, arg: Arg) -> Arg {
        let short = self.names.iter().find_map(|name| match name.as_bytes() {
            [b'-', letter] => Some(char::from(*letter)),
            _ => None,
        });
        let heading = Some(self.group).filter(|group| !group.is_empty());
        let arg = arg.long(self.names[0].trim_start_matches('-')).short(short);
        self.form.shape(arg.help(self.help()).help_heading(heading))
    }
}

const DEPRECATED: &str = "Deprecated spelling, still accepted";

/// All options.
#[rustfmt::skip] // Keeps each row to a few lines.
pub(crate) const FLAGS: &[Flag] = &[
    flag(&["--help", "-h"], Switch, "Print help"),
    flag(&["--version", "-v"], Switch, "Print the version"),
    flag(&["--num-proc", "-np", "-n"], Processes,
         "Total number of processes; also written `-np <N>`. `auto`: one per slot of the given \
          hosts, or else one per GPU or core of this machine; `gpu`, `cpu`: one per GPU or core"),
    flag(&["--check-build", "-cb"], Switch,
         "Show what this installation supports; also written `-cb`"),
    flag(&["--disable-cache"], Switch,
         "Check all hosts again; has no effect because nothing is cached").does_nothing(),
    flag(&["--start-timeout"], Seconds, "How long to wait for all hosts to respond, in seconds")
        .before(HOROVOD_START_TIMEOUT),
    flag(&["--network-interfaces", "--network-interface"], Names,
         "Network interfaces to use between hosts, as in `eth0,ib0`; each host uses the ones it \
          has; may be repeated").default("any that work").makes("nics", true),
    flag(&["--port-range"], Text("LOW-HIGH"),
         "Ports to listen on, as in `29600-29700`, for firewalls and published ports of containers; \
          several ranges are separated by commas").sets(RONDE_PORT_RANGE).key("port_range")
        .default("chosen by the system"),
    flag(&["--workdir"], Text("DIRECTORY"), "Directory in which the command runs on every host")
        .default("the current directory").key("workdir"),
    flag(&["--gpus-per-rank"], Count,
         "Give each process this many GPUs of its host, by setting CUDA_VISIBLE_DEVICES")
        .before(RONDE_GPUS_PER_RANK).default("all GPUs").key("gpus_per_rank"),
    flag(&["--output-filename"], Text("DIRECTORY"),
         "Also save each rank's output to `rank.N/stdout` and `rank.N/stderr` in this directory"),
    flag(&["--event-log"], FILE, "Write the job's events to this file, as JSON lines")
        .key("event_log"),
    flag(&["--verbose"], Switch, "Log each step to standard error"),
    flag(&["--config-file"], FILE, "A YAML file with options; the command line takes precedence"),
    flag(&["--ssh-port", "-p"], Port, "SSH port on the other hosts").default(AS_SSH),
    flag(&["--ssh-identity-file", "-i"], FILE, "Private key for logging in").default(AS_SSH),
    flag(&["--ssh-strict"], Switch, "Refuse hosts with unknown host keys")
        .default("accept them on first use"),
    flag(&["--reach"], Text("WAY"),
         "How to reach other hosts: `agent` (standing agents, `ronde agent --listen`), `ssh`, or \
          `auto`: an agent where one answers that holds your key, otherwise ssh")
        .before(RONDE_REACH).key("reach"),
    flag(&["--agent-port"], Port, "Port of the standing agents").before(RONDE_AGENT_PORT)
        .key("agent_port"),
    flag(&["--agent-key-file"], FILE,
         "File with the key of the standing agents; must be readable only by you")
        .before(RONDE_AGENT_KEY_FILE).default("RONDE_AGENT_KEY, or ~/.config/ronde/agent.key"),
    flag(&["--rsh"], Text("COMMAND"),
         "Reach other hosts with this command instead of ssh, as in `docker exec -i {host} \
          {command}`; it must connect its standard input and output to that command's")
        .before(RONDE_RSH),
    flag(&["--hosts", "-H"], Text("HOSTS"),
         "Hosts and the number of processes on each (1 if omitted), as in `node-a:4,node-b:4`")
        .default("localhost:<N>"),
    flag(&["--hostfile", "-hostfile"], FILE,
         "A hostfile, with one host per line: `node-a slots=4`"),
    flag(&["--agents"], Count,
         "Wait for this many agents (`ronde agent --join`) instead of starting agents")
        .within(AGENTS),
    flag(&["--listen"], Address,
         "Address to listen on for agents, as in `10.0.0.1:4000` or `:4000`")
        .default("all addresses, any port").within(AGENTS),
    flag(&["--key-file"], FILE,
         "File with the job key that the agents use; must be readable only by you")
        .default("RONDE_JOB_KEY in the environment, or a new key").within(AGENTS),
    flag(&["--prefix-output-with-timestamp", "-prefix-timestamp"], Switch,
         "Prefix each line of rank output with a timestamp; also written `-prefix-timestamp`"),
    flag(&["--tty"], Text("RANKS"),
         "Ranks that get a terminal: `auto` (rank 0, if standard output is one), `none`, `all`, or \
          a list such as `0,2`").default("auto").key("tty"),
    flag(&["--ranks", "--only-rank"], Text("RANKS"),
         "Show only the output of these ranks, as in `0,2` or `0-3`; also written `--only-rank 0`")
        .key("ranks"),
    flag(&["--gloo"], Switch, "Start the ranks without MPI (the default)")
        .key_is("controller", "gloo").makes("use_gloo", true),
    flag(&["--mpi"], Switch, "Launch the ranks with `mpirun`; they find each other over MPI")
        .key_is("controller", "mpi").makes("use_mpi", true),
    flag(&["--jsrun"], Switch, "Launch the ranks with LSF's `jsrun`").makes("use_jsrun", true),
    flag(&["--mpi-args"], Text("ARGUMENTS"),
         "Extra arguments for `mpirun`, as one string, as in `--mpi-args=--oversubscribe`"),
    flag(&["--binding-args"], Text("ARGUMENTS"),
         "CPU binding arguments for `mpirun` or `jsrun`, replacing the default ones"),
    flag(&["--fusion-threshold-mb"], Mebibytes, "Maximum size of a fused bucket, in MiB")
        .key("params.fusion_threshold_mb").sets(HOROVOD_FUSION_THRESHOLD).within(TUNING),
    unused(&["--cycle-time-ms"], Decimal).key("params.cycle_time_ms").sets(HOROVOD_CYCLE_TIME),
    flag(&["--cache-capacity"], Whole, "Number of tensor descriptions to cache")
        .key("params.cache_capacity").sets(HOROVOD_CACHE_CAPACITY).within(TUNING),
    unused(&["--hierarchical-allreduce"], Switch).key_is("params.hierarchical_allreduce", "true")
        .sets_to(HOROVOD_HIERARCHICAL_ALLREDUCE, "1"),
    unused(&["--no-hierarchical-allreduce"], Switch)
        .key_is("params.hierarchical_allreduce", "false")
        .sets_to(HOROVOD_HIERARCHICAL_ALLREDUCE, "0"),
    unused(&["--hierarchical-allgather"], Switch).key_is("params.hierarchical_allgather", "true")
        .sets_to(HOROVOD_HIERARCHICAL_ALLGATHER, "1"),
    unused(&["--no-hierarchical-allgather"], Switch)
        .key_is("params.hierarchical_allgather", "false")
        .sets_to(HOROVOD_HIERARCHICAL_ALLGATHER, "0"),
    unused(&["--torus-allreduce"], Switch).key_is("params.torus_allreduce", "true")
        .sets_to(HOROVOD_TORUS_ALLREDUCE, "1"),
    unused(&["--no-torus-allreduce"], Switch).key_is("params.torus_allreduce", "false")
        .sets_to(HOROVOD_TORUS_ALLREDUCE, "0"),
    flag(&["--autotune"], Switch, "Tune settings while the job runs")
        .key_is("autotune.enabled", "true").sets_to(HOROVOD_AUTOTUNE, "1").within(TUNING),
    flag(&["--no-autotune"], Switch, "").key_is("autotune.enabled", "false")
        .sets_to(HOROVOD_AUTOTUNE, "0"),
    flag(&["--autotune-log-file"], FILE, "Write what autotuning measures to this file")
        .key("autotune.log_file").sets(HOROVOD_AUTOTUNE_LOG).within(TUNING),
    flag(&["--autotune-warmup-samples"], Whole, "Warm-up samples to discard")
        .key("autotune.warmup_samples").sets(HOROVOD_AUTOTUNE_WARMUP_SAMPLES).within(TUNING),
    flag(&["--autotune-steps-per-sample"], Whole, "Training steps per sample")
        .key("autotune.steps_per_sample").sets(HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE).within(TUNING),
    flag(&["--autotune-bayes-opt-max-samples"], Whole,
         "Maximum number of points to measure per setting, five samples each")
        .key("autotune.bayes_opt_max_samples").sets(HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES)
        .within(TUNING),
    unused(&["--autotune-gaussian-process-noise"], Fraction).key("autotune.gaussian_process_noise")
        .sets(HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE),
    flag(&["--min-np", "--min-num-proc"], Count,
         "Minimum number of processes; makes the job elastic").default("same as `-np`")
        .within(ELASTIC).makes("min_num_proc", true),
    flag(&["--max-np", "--max-num-proc"], Count, "Maximum number of processes in an elastic job")
        .default("one per slot").within(ELASTIC).makes("max_num_proc", true),
    flag(&["--slots-per-host"], Count,
         "Slots per host if the discovery script prints none").within(ELASTIC)
        .makes("slots", true),
    flag(&["--elastic-timeout"], Seconds,
         "How long an elastic job waits for enough slots, in seconds")
        .before(HOROVOD_ELASTIC_TIMEOUT).within(ELASTIC),
    flag(&["--reset-limit"], Whole, "Maximum number of times an elastic job may re-form its world")
        .default("unlimited").within(ELASTIC),
    flag(&["--blacklist-cooldown-range"], SecondsRange,
         "Minimum and maximum cooldown before a failed host is used again, in seconds; doubles \
          with each failure").default("never used again").within(ELASTIC)
        .makes("cooldown_range", true),
    flag(&["--host-discovery-script"], Text("SCRIPT"),
         "Script that prints the available hosts, one per line, as in `node-a:4`; run every \
          second").within(ELASTIC),
    flag(&["--timeline-filename"], FILE,
         "Write a timeline of all tensors to this file, for Perfetto or `chrome://tracing`")
        .key("timeline.filename").sets(HOROVOD_TIMELINE).within(WATCHING),
    flag(&["--timeline-mark-cycles"], Switch, "Mark in the timeline where each bucket begins")
        .key_is("timeline.mark_cycles", "true").sets_to(HOROVOD_TIMELINE_MARK_CYCLES, "1")
        .within(WATCHING),
    flag(&["--no-timeline-mark-cycles"], Switch, "").key_is("timeline.mark_cycles", "false")
        .sets_to(HOROVOD_TIMELINE_MARK_CYCLES, "0"),
    flag(&["--no-stall-check"], Switch, "Do not warn about stalled ranks")
        .key_is("stall_check.enabled", "false").sets_to(HOROVOD_STALL_CHECK_DISABLE, "1")
        .within(WATCHING).makes("no_stall_check", true),
    flag(&["--stall-check"], Switch, "").key_is("stall_check.enabled", "true")
        .sets_to(HOROVOD_STALL_CHECK_DISABLE, "0").makes("no_stall_check", false),
    flag(&["--stall-check-warning-time-seconds"], Whole,
         "Warn when a rank has stalled for this many seconds")
        .key("stall_check.warning_time_seconds").sets(HOROVOD_STALL_CHECK_TIME_SECONDS)
        .within(WATCHING),
    flag(&["--stall-check-shutdown-time-seconds"], Whole,
         "Abort the job when a rank has stalled for this many seconds; 0 means never")
        .key("stall_check.shutdown_time_seconds").sets(HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)
        .within(WATCHING),
    flag(&["--log-level"], Level,
         "Log level of launcher and ranks: TRACE, DEBUG, INFO, WARNING, ERROR or FATAL")
        .key("logging.level").sets(HOROVOD_LOG_LEVEL).within(WATCHING),
    flag(&["--log-without-timestamp"], Switch, "Omit timestamps from the ranks' log")
        .key_is("logging.with_timestamp", "false").sets_to(HOROVOD_LOG_HIDE_TIME, "1")
        .within(WATCHING).makes("log_with_timestamp", false),
    flag(&["--log-with-timestamp"], Switch, "").key_is("logging.with_timestamp", "true")
        .sets_to(HOROVOD_LOG_HIDE_TIME, "0").makes("log_with_timestamp", true),
    flag(&["--log-hide-timestamp"], Switch, DEPRECATED).key_is("logging.hide_timestamp", "true")
        .sets_to(HOROVOD_LOG_HIDE_TIME, "1").makes("log_with_timestamp", false),
    flag(&["--no-log-hide-timestamp"], Switch, DEPRECATED)
        .key_is("logging.hide_timestamp", "false").sets_to(HOROVOD_LOG_HIDE_TIME, "0")
        .makes("log_with_timestamp", true),
    flag(&["--tcp"], Switch, "Keep NCCL off InfiniBand").sets_to(NCCL_IB_DISABLE, "1")
        .within(LIBRARIES).makes("tcp_flag", true),
    flag(&["--mpi-threads-disable"], Switch, "Initialize MPI for one thread only")
        .key_is("library_options.mpi_threads_disable", "true")
        .sets_to(HOROVOD_MPI_THREADS_DISABLE, "1").within(LIBRARIES),
    flag(&["--no-mpi-threads-disable"], Switch, "")
        .key_is("library_options.mpi_threads_disable", "false")
        .sets_to(HOROVOD_MPI_THREADS_DISABLE, "0"),
    unused(&["--num-nccl-streams"], Whole).key("library_options.num_nccl_streams")
        .sets(HOROVOD_NUM_NCCL_STREAMS),
    unused(&["--thread-affinity"], Cores).key("library_options.thread_affinity")
        .sets(HOROVOD_THREAD_AFFINITY),
    unused(&["--gloo-timeout-seconds"], Whole).key("library_options.gloo_timeout_seconds")
        .sets(HOROVOD_GLOO_TIMEOUT_SECONDS),
];

const FILE: Form = Text("FILE");

const AS_SSH: &str = "as configured for ssh";

const TUNING: &str = "Tuning";
const WATCHING: &str = "Watching";
const LIBRARIES: &str = "Libraries";
const ELASTIC: &str = "Elastic jobs";
const AGENTS: &str = "Agents that dial in";

/// Adds what the table knows to those arguments of a command that have no help text.
pub(crate) fn described(command: Command) -> Command {
    let mut place = 0;
    let add = |arg: Arg| {
        place += 1;
        let arg = arg.display_order(place);
        match FLAGS.iter().find(|flag| flag.field() == arg.get_id().as_str()) {
            Some(flag) if arg.get_help().is_none() => flag.describe(arg),
            _ => arg,
        }
    };
    let width = usize::from(tables::terminal_width().map_or(HELP, |width| width.min(HELP)));
    command.mut_args(add).mut_subcommands(described).term_width(width)
}

/// The columns of help texts, unless the terminal has fewer.
const HELP: u16 = 100;

/// Parses the arguments of a command.
pub(crate) fn parse<A: CommandFactory + FromArgMatches>(
    words: impl IntoIterator<Item = OsString>,
) -> Result<A, clap::Error> {
    let command = described(A::command());
    let name = OsString::from(command.get_name());
    let matches = command.try_get_matches_from(std::iter::once(name).chain(words))?;
    A::from_arg_matches(&matches)
}

/// The known name that is most similar to `name`, if any is similar enough.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let like = known.map(|other| (strsim::jaro_winkler(name, other), other));
    let best = like.max_by(|(one, _), (other, _)| one.total_cmp(other));
    best.filter(|(likeness, _)| *likeness > 0.8).map(|(_, other)| other)
}

/// The reference page of all options, in Markdown.
#[cfg(test)]
fn reference_page() -> String {
    let mut page = String::from(
        "# The command `horovodrun`\n\n`horovodrun [OPTIONS] <COMMAND> [ARGUMENTS]...` runs \
         `COMMAND` in the number of processes given with `-np`; everything after the options is the \
         command. Options may be abbreviated if they stay unambiguous. `python -m \
         horovod.runner.launch` is the same. [How output, files and options \
         behave](../guide/horovodrun.md).\n\nMade from the table in `crates/cli/src/flags.rs`, \
         which has every option of Horovod. `key` is the key in the file given with \
         `--config-file`, `variable` what the option sets in the environment of the ranks.\n\n| option | what it \
         does | key | variable | works |\n| --- | --- | --- | --- | --- |\n",
    );
    for flag in FLAGS {
        let names: Vec<String> = flag.names.iter().map(|name| format!("`{name}`")).collect();
        let about = match flag.about {
            "" => "Negates the option above".into(),
            _ => flag.help(),
        };
        let key = match flag.key {
            Some(Key { name, value: Some(value) }) => format!("`{name}: {value}`"),
            Some(Key { name, value: None }) => format!("`{name}`"),
            None => String::new(),
        };
        let variable = match flag.effect {
            Sets(setting, "") => format!("`{}`", setting.name),
            Sets(setting, value) => format!("`{}={value}`", setting.name),
            Launcher(_) | Nothing => String::new(),
        };
        let works = match flag.effect {
            Sets(Setting { has_effect: false, .. }, _) | Nothing => "has no effect",
            Sets(..) | Launcher(_) => "yes",
        };
        page += &format!("| {} | {about} | {key} | {variable} | {works} |\n", names.join(", "));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_page_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/horovodrun.md");
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(path, reference_page()).unwrap();
        }
        let page = std::fs::read_to_string(path).unwrap();
        assert_eq!(page, reference_page(), "run the test with BLESS=1 to rewrite the page");
    }

    #[test]
    fn spellings_are_unique_and_switches_have_a_value_for_their_variable() {
        let mut names: Vec<&str> = FLAGS.iter().flat_map(|flag| flag.names).copied().collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for flag in FLAGS {
            let Sets(setting, value) = flag.effect else { continue };
            assert_eq!(flag.form == Switch, !value.is_empty(), "{}", flag.names[0]);
            assert_eq!(flag.about == NO_EFFECT, !setting.has_effect, "{}", flag.names[0]);
        }
    }

    #[test]
    fn every_option_of_the_launcher_has_a_field_of_its_type() {
        for flag in FLAGS.iter().filter(|flag| matches!(flag.effect, Launcher(_))).skip(1) {
            let words: &[&str] = match flag.form {
                Switch => &[],
                SecondsRange => &["1", "2"],
                Address => &[":1"],
                _ => &["1"],
            };
            let needs = matches!(flag.names[0], "--listen" | "--key-file").then_some("--agents=1");
            let words = needs.iter().chain(&flag.names[..1]).chain(words).map(OsString::from);
            let read = parse::<crate::horovodrun::Arguments>(words);
            assert!(read.is_ok(), "{}: {}", flag.names[0], read.unwrap_err());
        }
    }

    #[test]
    fn the_nearest_name_is_near() {
        let all = || FLAGS.iter().flat_map(|flag| flag.names).copied();
        for (word, expected) in [
            ("--num-pros", Some("--num-proc")),
            ("--output-file-name", Some("--output-filename")),
            ("--min-nump", Some("--min-np")),
            ("--autotunes", Some("--autotune")),
            ("--timeline-file", Some("--timeline-filename")),
            ("--nonsense", None),
            ("-x", None),
        ] {
            assert_eq!(nearest(word, all()), expected, "{word}");
        }
    }
}
