//! The one table of `horovodrun`'s options: every option that Horovod has, how it is spelled, the key
//! of the configuration file and the variable for the ranks that say the same, and whether it works.
//!
//! The command line, the configuration file, the help and `docs/reference/horovodrun.md` are made
//! from it. A test keeps the page equal to the table.

/// A command-line option of `horovodrun`.
#[derive(Clone, Copy)]
pub(crate) struct Flag {
    /// Its full name, then all other spellings.
    pub(crate) names: &'static [&'static str],
    /// How many values follow it.
    pub(crate) values: usize,
    pub(crate) support: Support,
    pub(crate) key: Option<Key>,
    /// What it tells the ranks, if that is all it does.
    pub(crate) sets: Option<Variable>,
    /// What `horovod.runner.launch.parse_args` calls it, where that is not its name.
    argument: Option<Argument>,
    pub(crate) about: &'static str,
    pub(crate) group: &'static str,
}

/// An attribute of what `horovod.runner.launch.parse_args` gives.
#[derive(Clone, Copy)]
pub(crate) struct Argument {
    pub(crate) name: &'static str,
    /// What the option makes of it, if it has no value.
    pub(crate) means: bool,
}

/// A key of the configuration file, as in `params.cycle_time_ms`.
#[derive(Clone, Copy)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    /// The value that means this option, where the key chooses between several.
    pub(crate) value: Option<&'static str>,
}

/// A variable in the environment of the ranks.
#[derive(Clone, Copy)]
pub(crate) struct Variable {
    pub(crate) name: &'static str,
    pub(crate) form: Form,
}

/// How a variable's value is made of an option's.
#[derive(Clone, Copy)]
pub(crate) enum Form {
    /// The option has no value and means this one.
    Says(&'static str),
    /// A whole number from 0.
    Whole,
    /// The same, in units of 1024 × 1024 bytes.
    Mebibytes,
    /// A number from 0.
    Decimal,
    /// A number from 0 to 1.
    Fraction,
    /// The name of a file.
    File,
    /// How much is logged.
    Level,
    /// Numbers of cores, separated by commas.
    Cores,
}

/// Whether an option works.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Support {
    Yes,
    /// It asks for what is so anyway, for this reason.
    Already(&'static str),
}
use Form::{Cores, Decimal, File, Fraction, Level, Mebibytes, Says, Whole};
use Support::{Already, Yes};

const fn flag(names: &'static [&'static str], about: &'static str) -> Flag {
    let (support, group) = (Yes, "");
    Flag { names, values: 0, support, key: None, sets: None, argument: None, about, group }
}

impl Flag {
    const fn takes(mut self, values: usize) -> Flag {
        self.values = values;
        self
    }

    const fn is(mut self, support: Support) -> Flag {
        self.support = support;
        self
    }

    const fn key(mut self, name: &'static str) -> Flag {
        self.key = Some(Key { name, value: None });
        self
    }

    const fn key_is(mut self, name: &'static str, value: &'static str) -> Flag {
        self.key = Some(Key { name, value: Some(value) });
        self
    }

    const fn sets(mut self, name: &'static str, form: Form) -> Flag {
        self.sets = Some(Variable { name, form });
        if !matches!(form, Says(_)) {
            self.values = 1;
        }
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

    /// What Python calls it: its name, with the opposite of an option under the same one.
    pub(crate) fn argument(&self) -> (String, bool) {
        if let Some(Argument { name, means }) = self.argument {
            return (name.to_owned(), means);
        }
        let name = self.names[0].trim_start_matches('-').replace('-', "_");
        match name.strip_prefix("no_") {
            Some(opposite) => (opposite.to_owned(), false),
            None => (name, true),
        }
    }

    /// Whether this is another spelling's opposite or an old name, which the help leaves out.
    pub(crate) fn is_hidden(&self) -> bool {
        self.about.is_empty() || matches!(self.about, NOTHING_HERE | DEPRECATED)
    }
}

const NOTHING_HERE: &str = "Accepted for compatibility; has no effect";
const DEPRECATED: &str = "Deprecated spelling, still accepted";

/// All options.
pub(crate) const FLAGS: &[Flag] = &[
    flag(&["--help", "-h"], "Print help"),
    flag(&["--version", "-v"], "Show the version"),
    flag(&["--num-proc", "-np", "-n"], "How many processes to start: a number, `auto`, `gpu` or `cpu`")
        .takes(1),
    flag(&["--check-build", "-cb"], "Show what this installation can do"),
    flag(&["--disable-cache"], "Check all hosts again")
        .is(Already("nothing about hosts is cached between jobs")),
    flag(&["--start-timeout"], "How long to wait for all hosts to respond, in seconds").takes(1),
    flag(
        &["--network-interfaces", "--network-interface"],
        "Network interfaces to use between hosts; may be repeated",
    )
    .takes(1).makes("nics", true),
    flag(
        &["--output-filename"],
        "Also save each rank's output in this directory: `rank.N/stdout` and `rank.N/stderr`",
    )
    .takes(1),
    flag(&["--event-log"], "Write what happens in the job to this file, as lines of JSON")
        .takes(1).key("event_log"),
    flag(&["--verbose"], "Tell each step on standard error"),
    flag(&["--config-file"], "A YAML file with options; those on the command line come first")
        .takes(1),
    flag(&["--ssh-port", "-p"], "SSH port on the other hosts").takes(1),
    flag(&["--ssh-identity-file", "-i"], "The private key to log in with").takes(1),
    flag(&["--ssh-strict"], "Refuse hosts whose host key is unknown"),
    flag(&["--hosts", "-H"], "Hosts and the number of processes on each").takes(1),
    flag(&["--hostfile", "-hostfile"], "A file of them: `node-a slots=4`, one host on a line")
        .takes(1),
    flag(&["--agents"], "Wait for this many agents (`ronde agent --join`) instead of starting \
                         agents").takes(1),
    flag(&["--listen"], "Address to listen on for agents, as in `10.0.0.1:4000` or `:4000`").takes(1),
    flag(&["--key-file"], "File with the job key that the agents use; must be readable only by you").takes(1),
    flag(
        &["--prefix-output-with-timestamp", "-prefix-timestamp"],
        "Put the time in front of every line that a rank writes",
    ),
    flag(
        &["--tty"],
        "Ranks that get a terminal: `auto` (rank 0, if standard output is one), `none`, `all`, or a list \
         such as `0,2`",
    )
    .takes(1).key("tty"),
    flag(&["--ranks", "--only-rank"], "Show only the output of these ranks, as in `0,2` or `0-3`")
        .takes(1).key("ranks"),
    flag(&["--gloo"], "Start the ranks without MPI (the default)")
        .key_is("controller", "gloo").makes("use_gloo", true),
    flag(&["--mpi"], "Launch the ranks with `mpirun`; they find each other over MPI").key_is("controller", "mpi").makes("use_mpi", true),
    flag(&["--jsrun"], "Launch the ranks with LSF's `jsrun`").makes("use_jsrun", true),
    flag(&["--mpi-args"], "Extra arguments for `mpirun`, as one string").takes(1),
    flag(
        &["--binding-args"],
        "CPU binding arguments for `mpirun` or `jsrun`, replacing the default ones",
    )
    .takes(1),
    flag(&["--fusion-threshold-mb"], "Maximum size of a fused bucket, in MiB [default: 128]")
        .key("params.fusion_threshold_mb")
        .sets("HOROVOD_FUSION_THRESHOLD", Mebibytes)
        .within(TUNING),
    flag(&["--cycle-time-ms"], NOTHING_HERE)
        .key("params.cycle_time_ms")
        .sets("HOROVOD_CYCLE_TIME", Decimal),
    flag(&["--cache-capacity"], "Number of tensor descriptions to cache [default: 1024]")
        .key("params.cache_capacity")
        .sets("HOROVOD_CACHE_CAPACITY", Whole)
        .within(TUNING),
    flag(&["--hierarchical-allreduce"], NOTHING_HERE)
        .key_is("params.hierarchical_allreduce", "true")
        .sets("HOROVOD_HIERARCHICAL_ALLREDUCE", Says("1")),
    flag(&["--no-hierarchical-allreduce"], NOTHING_HERE)
        .key_is("params.hierarchical_allreduce", "false")
        .sets("HOROVOD_HIERARCHICAL_ALLREDUCE", Says("0")),
    flag(&["--hierarchical-allgather"], NOTHING_HERE)
        .key_is("params.hierarchical_allgather", "true")
        .sets("HOROVOD_HIERARCHICAL_ALLGATHER", Says("1")),
    flag(&["--no-hierarchical-allgather"], NOTHING_HERE)
        .key_is("params.hierarchical_allgather", "false")
        .sets("HOROVOD_HIERARCHICAL_ALLGATHER", Says("0")),
    flag(&["--torus-allreduce"], NOTHING_HERE)
        .key_is("params.torus_allreduce", "true")
        .sets("HOROVOD_TORUS_ALLREDUCE", Says("1")),
    flag(&["--no-torus-allreduce"], NOTHING_HERE)
        .key_is("params.torus_allreduce", "false")
        .sets("HOROVOD_TORUS_ALLREDUCE", Says("0")),
    flag(&["--autotune"], "Tune settings while the job runs")
        .key_is("autotune.enabled", "true")
        .sets("HOROVOD_AUTOTUNE", Says("1"))
        .within(TUNING),
    flag(&["--no-autotune"], "")
        .key_is("autotune.enabled", "false")
        .sets("HOROVOD_AUTOTUNE", Says("0")),
    flag(&["--autotune-log-file"], "Write what autotuning measures to this file")
        .key("autotune.log_file")
        .sets("HOROVOD_AUTOTUNE_LOG", File)
        .within(TUNING),
    flag(&["--autotune-warmup-samples"], "Warm-up samples to discard [default: 3]")
        .key("autotune.warmup_samples")
        .sets("HOROVOD_AUTOTUNE_WARMUP_SAMPLES", Whole)
        .within(TUNING),
    flag(&["--autotune-steps-per-sample"], "Training steps per sample [default: 10]")
        .key("autotune.steps_per_sample")
        .sets("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", Whole)
        .within(TUNING),
    flag(
        &["--autotune-bayes-opt-max-samples"],
        "Maximum number of points to measure per setting, five samples each [default: 20]",
    )
    .key("autotune.bayes_opt_max_samples")
    .sets("HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", Whole)
    .within(TUNING),
    flag(&["--autotune-gaussian-process-noise"], NOTHING_HERE)
        .key("autotune.gaussian_process_noise")
        .sets("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", Fraction),
    flag(
        &["--min-np", "--min-num-proc"],
        "Minimum number of processes; makes the job elastic",
    )
    .takes(1).makes("min_num_proc", true),
    flag(&["--max-np", "--max-num-proc"], "Maximum number of processes in an elastic job").takes(1).makes("max_num_proc", true),
    flag(&["--slots-per-host"], "Slots per host where the discovery script prints no number")
        .takes(1).makes("slots", true),
    flag(
        &["--elastic-timeout"],
        "Seconds an elastic job waits for enough processes after a change [default: 600]",
    )
    .takes(1),
    flag(&["--reset-limit"], "Maximum number of times an elastic job may re-form its world").takes(1),
    flag(
        &["--blacklist-cooldown-range"],
        "Minimum and maximum cooldown before a failed host is used again, in seconds",
    )
    .takes(2).makes("cooldown_range", true),
    flag(
        &["--host-discovery-script"],
        "Script that prints the available hosts, one per line, as in `node-a:4`",
    )
    .takes(1),
    flag(
        &["--timeline-filename"],
        "Write a timeline of all tensors to this file, for Perfetto or `chrome://tracing`",
    )
    .key("timeline.filename")
    .sets("HOROVOD_TIMELINE", File)
    .within(WATCHING),
    flag(&["--timeline-mark-cycles"], "Show in the timeline where each bucket begins")
        .key_is("timeline.mark_cycles", "true")
        .sets("HOROVOD_TIMELINE_MARK_CYCLES", Says("1"))
        .within(WATCHING),
    flag(&["--no-timeline-mark-cycles"], "")
        .key_is("timeline.mark_cycles", "false")
        .sets("HOROVOD_TIMELINE_MARK_CYCLES", Says("0")),
    flag(&["--no-stall-check"], "Do not warn about stalled ranks")
        .key_is("stall_check.enabled", "false")
        .sets("HOROVOD_STALL_CHECK_DISABLE", Says("1"))
        .within(WATCHING).makes("no_stall_check", true),
    flag(&["--stall-check"], "")
        .key_is("stall_check.enabled", "true")
        .sets("HOROVOD_STALL_CHECK_DISABLE", Says("0")).makes("no_stall_check", false),
    flag(
        &["--stall-check-warning-time-seconds"],
        "Warn when a rank has stalled for this many seconds [default: 60]",
    )
    .key("stall_check.warning_time_seconds")
    .sets("HOROVOD_STALL_CHECK_TIME_SECONDS", Whole)
    .within(WATCHING),
    flag(
        &["--stall-check-shutdown-time-seconds"],
        "Abort the job when a rank has stalled for this many seconds [default: 0, never]",
    )
    .key("stall_check.shutdown_time_seconds")
    .sets("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", Whole)
    .within(WATCHING),
    flag(
        &["--log-level"],
        "Log level of launcher and ranks: TRACE, DEBUG, INFO, WARNING, ERROR or FATAL [default: WARNING]",
    )
    .key("logging.level")
    .sets("HOROVOD_LOG_LEVEL", Level)
    .within(WATCHING),
    flag(&["--log-without-timestamp"], "Omit timestamps from the ranks' log")
        .key_is("logging.with_timestamp", "false")
        .sets("HOROVOD_LOG_HIDE_TIME", Says("1"))
        .within(WATCHING).makes("log_with_timestamp", false),
    flag(&["--log-with-timestamp"], "")
        .key_is("logging.with_timestamp", "true")
        .sets("HOROVOD_LOG_HIDE_TIME", Says("0")).makes("log_with_timestamp", true),
    flag(&["--log-hide-timestamp"], DEPRECATED)
        .key_is("logging.hide_timestamp", "true")
        .sets("HOROVOD_LOG_HIDE_TIME", Says("1")).makes("log_with_timestamp", false),
    flag(&["--no-log-hide-timestamp"], DEPRECATED)
        .key_is("logging.hide_timestamp", "false")
        .sets("HOROVOD_LOG_HIDE_TIME", Says("0")).makes("log_with_timestamp", true),
    flag(&["--tcp"], "Keep NCCL off InfiniBand").sets("NCCL_IB_DISABLE", Says("1")).within(LIBRARIES).makes("tcp_flag", true),
    flag(&["--mpi-threads-disable"], "Initialise MPI for one thread only")
        .key_is("library_options.mpi_threads_disable", "true")
        .sets("HOROVOD_MPI_THREADS_DISABLE", Says("1"))
        .within(LIBRARIES),
    flag(&["--no-mpi-threads-disable"], "")
        .key_is("library_options.mpi_threads_disable", "false")
        .sets("HOROVOD_MPI_THREADS_DISABLE", Says("0")),
    flag(&["--num-nccl-streams"], NOTHING_HERE)
        .key("library_options.num_nccl_streams")
        .sets("HOROVOD_NUM_NCCL_STREAMS", Whole),
    flag(&["--thread-affinity"], NOTHING_HERE)
        .key("library_options.thread_affinity")
        .sets("HOROVOD_THREAD_AFFINITY", Cores),
    flag(&["--gloo-timeout-seconds"], NOTHING_HERE)
        .key("library_options.gloo_timeout_seconds")
        .sets("HOROVOD_GLOO_TIMEOUT_SECONDS", Whole),
];

const TUNING: &str = "Tuning";
const WATCHING: &str = "Watching";
const LIBRARIES: &str = "Libraries";

/// The name among `known` that somebody may have meant.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let like = known.map(|other| (strsim::jaro_winkler(name, other), other));
    let best = like.max_by(|(one, _), (other, _)| one.total_cmp(other));
    best.filter(|(likeness, _)| *likeness > 0.8).map(|(_, other)| other)
}

/// The reference page of all options, in Markdown.
#[cfg(test)]
fn reference_page() -> String {
    let mut page = String::from(
        "# The command `horovodrun`\n\n`horovodrun [OPTIONS] <COMMAND> [ARGUMENTS]...` starts \
         `COMMAND` on as many processes as `-np` says; everything after the options is the \
         command. Options may be shortened as long as they stay unambiguous. `python -m \
         horovod.runner.launch` is the same. [How output, files and options \
         behave](../guide/horovodrun.md).\n\nMade from the table in `crates/cli/src/flags.rs`, \
         which has every option of Horovod. The key is that of the file given with \
         `--config-file`, the variable is set in the ranks' environment.\n\n| option | what it \
         does | key | variable | works |\n| --- | --- | --- | --- | --- |\n",
    );
    for flag in FLAGS {
        let names: Vec<String> = flag.names.iter().map(|name| format!("`{name}`")).collect();
        let about = match flag.about {
            "" => "Negates the option above",
            about => about,
        };
        let key = match flag.key {
            Some(Key { name, value: Some(value) }) => format!("`{name}: {value}`"),
            Some(Key { name, value: None }) => format!("`{name}`"),
            None => String::new(),
        };
        let variable = match flag.sets {
            Some(Variable { name, form: Says(value) }) => format!("`{name}={value}`"),
            Some(Variable { name, .. }) => format!("`{name}`"),
            None => String::new(),
        };
        let works = match flag.support {
            Yes if flag.about == NOTHING_HERE => "has no effect".into(),
            Yes => "yes".into(),
            Already(why) => format!("has no effect: {why}"),
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
        assert_eq!(page, reference_page(), "run the test with BLESS=1 to write the page anew");
    }

    #[test]
    fn no_spelling_stands_twice_and_every_option_takes_what_its_variable_needs() {
        let mut names: Vec<&str> = FLAGS.iter().flat_map(|flag| flag.names).copied().collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for flag in FLAGS {
            let says = matches!(flag.sets, Some(Variable { form: Says(_), .. }));
            assert!(!says || flag.values == 0, "{}", flag.names[0]);
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
