//! Every variable that a rank reads, with its default and its meaning.
//!
//! Names that Horovod has are Horovod's; new ones start with `RONDE_`. The reference page
//! `docs/reference/settings.md` is made from here, and a test keeps the two equal.

/// One line of the table.
pub struct Setting {
    /// The environment variable.
    pub name: &'static str,
    /// What holds when it is not set.
    pub(super) default: &'static str,
    /// One sentence for the reference page.
    pub meaning: &'static str,
    /// What its number counts.
    pub(super) unit: Unit,
}

/// What the number of a setting counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// A plain count, or no number at all.
    Things,
    /// A size: `64MB` is answered with 67108864.
    Bytes,
    /// A time: `5m` is answered with 300.
    Seconds,
}

impl Unit {
    /// What a value must be, and what `text` was probably meant to say.
    pub(super) fn must_be(self, text: &str) -> String {
        let what = match self {
            Unit::Things => "a whole number from 0",
            Unit::Bytes => "a number of bytes",
            Unit::Seconds => "a whole number of seconds",
        };
        let text = text.trim().to_ascii_lowercase();
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let factor = match (self, unit.trim()) {
            (Unit::Bytes, "b") => 1,
            (Unit::Bytes, "k" | "kb" | "kib") => 1 << 10,
            (Unit::Bytes, "m" | "mb" | "mib") => 1 << 20,
            (Unit::Bytes, "g" | "gb" | "gib") => 1 << 30,
            (Unit::Seconds, "s" | "sec" | "seconds") => 1,
            (Unit::Seconds, "m" | "min" | "minutes") => 60,
            (Unit::Seconds, "h") => 3600,
            _ => return what.to_owned(),
        };
        match number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)) {
            Some(meant) => format!("{what}, here {meant}"),
            None => what.to_owned(),
        }
    }
}

const fn setting(name: &'static str, default: &'static str, meaning: &'static str) -> Setting {
    Setting { name, default, meaning, unit: Unit::Things }
}

const fn bytes(name: &'static str, default: &'static str, meaning: &'static str) -> Setting {
    Setting { unit: Unit::Bytes, ..setting(name, default, meaning) }
}

const fn seconds(name: &'static str, default: &'static str, meaning: &'static str) -> Setting {
    Setting { unit: Unit::Seconds, ..setting(name, default, meaning) }
}

/// Everything a user may set.
const TABLE: &[Setting] = &[
    bytes(
        "HOROVOD_FUSION_THRESHOLD",
        "134217728",
        "Bytes that one fused bucket may hold; 0 turns fusion off.",
    ),
    setting(
        "HOROVOD_CACHE_CAPACITY",
        "1024",
        "Number of tensor descriptions to cache, so that each is sent only once; 0 turns the cache off.",
    ),
    setting("HOROVOD_STALL_CHECK_DISABLE", "0", "1 turns the reports about late ranks off."),
    seconds(
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        "60",
        "After how long a tensor that some rank never submits is reported.",
    ),
    seconds(
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        "0",
        "How long a stall may last before the job is aborted, including a stopped rank \
         or a stuck transfer; 0 means forever.",
    ),
    setting(
        "HOROVOD_DYNAMIC_PROCESS_SETS",
        "0",
        "1 allows process sets to be added and removed after `hvd.init()`.",
    ),
    setting(
        "HOROVOD_AUTOTUNE",
        "0",
        "1 looks for better settings while the job runs: the fusion threshold, and, between hosts, \
         the number of connections and the algorithm. Explicit settings are not changed.",
    ),
    setting("HOROVOD_AUTOTUNE_LOG", "", "A file for what autotuning measures, written by rank 0."),
    setting(
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
        "3",
        "Samples that autotuning throws away at the start.",
    ),
    setting("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "10", "Training steps of a sample."),
    setting(
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        "20",
        "The most points, of five samples each, that autotuning measures for one setting.",
    ),
    setting(
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
        "0.8",
        "Accepted for compatibility; has no effect.",
    ),
    setting(
        "HOROVOD_LOG_LEVEL",
        "warning",
        "trace, debug, info, warning, error or fatal; `RONDE_LOG` takes precedence. \
         debug says which algorithms were chosen and why.",
    ),
    setting("HOROVOD_LOG_HIDE_TIME", "0", "1 leaves the time out of that log."),
    setting(
        "RONDE_TRANSPORT",
        "auto",
        "auto: shared memory between ranks that can share it; tcp: sockets between all ranks.",
    ),
    setting(
        "RONDE_SHARED_RANKS",
        "0",
        "Maximum number of ranks that share memory; 0 means all ranks of a host. For tests: the \
         others use sockets.",
    ),
    setting(
        "RONDE_ENCRYPTION",
        "auto",
        "Tensors on the way between ranks. auto: encrypted unless both ends are on one host or a \
         private network; on: always, except in shared memory; off: never.",
    ),
    setting(
        "RONDE_TUNING",
        "",
        "The numbers that decide between algorithms: a file as `ronde bench --calibrate` writes it, \
         or `name=number,...`. Rank 0's count for all.",
    ),
    bytes(
        "RONDE_ARENA",
        "17179869184",
        "Size of the arena, in bytes: memory for gradients that all ranks of a host \
         share, so that reducing them needs no copy. Only what is used costs memory; 0 \
         turns it off.",
    ),
    seconds(
        "RONDE_JOIN_TIMEOUT_SECONDS",
        "600",
        "How long `hvd.init()` waits for the other ranks, and how long a rank of an elastic job \
         may take from its start until it joins.",
    ),
    seconds(
        "HOROVOD_START_TIMEOUT",
        "30",
        "How long `horovodrun` waits for all hosts to respond, in seconds; `--start-timeout` takes \
         precedence.",
    ),
    seconds(
        "HOROVOD_ELASTIC_TIMEOUT",
        "600",
        "How long an elastic job waits for enough slots, in seconds; `--elastic-timeout` comes first.",
    ),
    setting(
        "RONDE_BLACKLIST",
        "host",
        "What goes on cooldown when a rank of an elastic job fails: `host`, if there are \
         enough ranks elsewhere, or only its `slot`.",
    ),
    seconds(
        "RONDE_ELASTIC_STOPPED_SECONDS",
        "5",
        "How long a rank of an elastic job may be stopped, as by SIGSTOP, before it counts as \
         lost; 0 means forever.",
    ),
    seconds(
        "RONDE_DISCOVERY_INTERVAL_SECONDS",
        "1",
        "The time from the end of the host discovery script to its next start.",
    ),
    seconds(
        "RONDE_DISCOVERY_TIMEOUT_SECONDS",
        "30",
        "How long that script may take before it is killed.",
    ),
    setting(
        "RONDE_SECRET",
        "",
        "Under another launcher than `horovodrun`: a secret of 64 hexadecimal digits, the same on all \
         ranks, with which they meet at `MASTER_ADDR`.",
    ),
    setting(
        "RONDE_RENDEZVOUS_PORT",
        "29507",
        "The port on which rank 0 then listens; `MASTER_PORT` belongs to torch.distributed.",
    ),
    setting(
        "RONDE_RENDEZVOUS_DIR",
        "",
        "Under another launcher, without a secret: a directory shared by all hosts for \
         the rendezvous file, which only you can read. Without it, `.ronde` in your home directory.",
    ),
    setting(
        "HOROVOD_CONTROLLER",
        "",
        "mpi: `hvd.init()` initialises MPI whatever the launcher; gloo: never. Otherwise it does so \
         under `mpirun`, and where the program has initialised MPI already.",
    ),
    setting("HOROVOD_MPI_THREADS_DISABLE", "0", "1 initialises MPI for one thread only."),
    setting(
        "HOROVOD_TIMELINE",
        "",
        "The file that rank 0 writes a timeline to; `DYNAMIC` lets `hvd.start_timeline()` name it.",
    ),
    setting(
        "HOROVOD_TIMELINE_MARK_CYCLES",
        "0",
        "1 shows in that timeline where each bucket begins.",
    ),
    setting(
        "RONDE_FLIGHT_RECORDER",
        "512",
        "Number of recent tensors that the flight recorder keeps on each rank; 0 turns it off.",
    ),
    setting(
        "RONDE_FLIGHT_RECORDER_DIR",
        "",
        "Where that is written on an error, a stall or SIGUSR1: a directory, `stderr` or `off`; \
         without it, the directory for temporary files, where the newest 64 of a user stay, but not \
         when an elastic job loses a rank.",
    ),
    setting(
        "RONDE_METRICS",
        "",
        "Where to serve Prometheus metrics: `127.0.0.1:PORT`, to which each rank adds its local rank, or \
         `unix:PATH`, to which each adds a dot and its rank.",
    ),
];

/// The names of the variables by which ranks of another launcher reach the caller of `horovod.run`.
pub const CALL_ADDRESSES: &str = "RONDE_CALL_ADDRESSES";
/// Environment variable with the key for `CALL_ADDRESSES`.
pub const CALL_KEY: &str = "RONDE_CALL_KEY";

/// What the launcher tells a rank, for the reference page; users read these and do not set them.
pub const CONTRACT: &[Setting] = &[
    setting("HOROVOD_RANK", "0", "This process among all."),
    setting("HOROVOD_SIZE", "1", "The number of processes."),
    setting("HOROVOD_LOCAL_RANK", "0", "This process among those of its host."),
    setting("HOROVOD_LOCAL_SIZE", "1", "The number of processes on this host."),
    setting("HOROVOD_CROSS_RANK", "0", "This host among those that have this local rank."),
    setting("HOROVOD_CROSS_SIZE", "1", "The number of hosts that have this local rank."),
    setting("HOROVOD_HOSTNAME", "localhost", "The name of this host as the launcher knows it."),
    setting(
        "RONDE_ADDRESSES",
        "",
        "Addresses of this host on which other hosts reach its ranks, separated by commas.",
    ),
    setting(
        "RONDE_RENDEZVOUS",
        "",
        "Where the launcher's rendezvous listens, `address:port`, several separated by commas.",
    ),
    setting("RONDE_JOB_KEY", "", "The job's secret; never on a command line, never in a log."),
    setting(
        CALL_ADDRESSES,
        "",
        "Where ranks that `mpirun` starts for `horovod.run` fetch the function and deliver results, \
         as in RONDE_RENDEZVOUS.",
    ),
    setting(CALL_KEY, "", "The key for `RONDE_CALL_ADDRESSES`."),
    setting("HOROVOD_ELASTIC", "0", "1 in a job whose ranks may come and go."),
    setting("RONDE_WORKER", "", "The number of this process in such a job."),
    setting("RONDE_LATECOMER", "0", "1 if the job was already training when this process started."),
    setting("RONDE_PARENT", "", "What a rank's child processes know of it; set by `hvd.init()`."),
    setting("RONDE_JOB", "", "Marks every process of the job, so that none is left behind."),
];

pub(crate) fn default(name: &str) -> &'static str {
    row(name).default
}

pub(super) fn row(name: &str) -> &'static Setting {
    let mut rows = TABLE.iter().chain(CONTRACT);
    rows.find(|row| row.name == name).expect("every setting that is read stands in a table")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference page of all settings, in Markdown.
    fn reference_page() -> String {
        let mut page = String::from(
            "# Settings\n\nEvery variable that a rank reads, made from the table in \
             `crates/control/src/settings/table.rs`.\n\n## What you may set\n\n",
        );
        page += &rows("default", TABLE);
        page += "\n## What the launcher sets\n\n";
        page += &rows("without a launcher", CONTRACT);
        page
    }

    fn rows(middle: &str, table: &[Setting]) -> String {
        let mut text = format!("| variable | {middle} | meaning |\n| --- | --- | --- |\n");
        for Setting { name, default, meaning, .. } in table {
            let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
            text += &format!("| `{name}` | {default} | {meaning} |\n");
        }
        text
    }

    #[test]
    fn a_number_with_its_unit_is_told_what_to_be() {
        for (unit, text, expected) in [
            (Unit::Bytes, "64MB", "a number of bytes, here 67108864"),
            (Unit::Bytes, " 2 GiB", "a number of bytes, here 2147483648"),
            (Unit::Bytes, "99999999999 G", "a number of bytes"),
            (Unit::Bytes, "much", "a number of bytes"),
            (Unit::Seconds, "5min", "a whole number of seconds, here 300"),
            (Unit::Seconds, "1.5", "a whole number of seconds"),
            (Unit::Things, "3k", "a whole number from 0"),
        ] {
            assert_eq!(unit.must_be(text), expected, "{text}");
        }
    }

    #[test]
    fn the_reference_page_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/settings.md");
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(path, reference_page()).unwrap();
        }
        let page = std::fs::read_to_string(path).unwrap();
        assert_eq!(page, reference_page(), "run the test with BLESS=1 to write the page anew");
    }
}
