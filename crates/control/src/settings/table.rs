//! Every variable that a rank reads, with its default and its meaning.
//!
//! Variables that Horovod has keep its names; new ones start with `RONDE_`. A test checks that the
//! reference page `docs/reference/settings.md` matches these tables.

/// A variable, its default and its meaning.
pub struct Setting {
    /// The environment variable.
    pub name: &'static str,
    /// The value if it is not set.
    pub default: &'static str,
    /// The text of the reference page.
    pub meaning: &'static str,
    /// The unit of a numeric value.
    pub(super) unit: Unit,
    /// Whether anything reads it.
    pub has_effect: bool,
}

/// The unit of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// A plain number, or not a number at all.
    Things,
    /// A size: for `64MB`, the error suggests 67108864.
    Bytes,
    /// A time: for `5m`, the error suggests 300.
    Seconds,
}

impl Unit {
    /// What a value must be, with the number that `text` probably means.
    pub(super) fn must_be(self, text: &str) -> String {
        let what = match self {
            Unit::Things => "a non-negative integer",
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

/// Defines a constant for each variable, under the variable's name, and a list of all of them.
macro_rules! settings {
    ($(#[$doc:meta])* $table:ident
     $($name:ident = $row:ident($($default:literal, $meaning:literal $(,)?)?);)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`. ", $($meaning)?)]
            pub const $name: &Setting =
                &Setting { name: stringify!($name), ..$row($($default, $meaning)?) };
        )*
        $(#[$doc])*
        pub const $table: &[&Setting] = &[$($name),*];
    };
}

const fn setting(default: &'static str, meaning: &'static str) -> Setting {
    Setting { name: "", default, meaning, unit: Unit::Things, has_effect: true }
}

const fn bytes(default: &'static str, meaning: &'static str) -> Setting {
    Setting { unit: Unit::Bytes, ..setting(default, meaning) }
}

const fn seconds(default: &'static str, meaning: &'static str) -> Setting {
    Setting { unit: Unit::Seconds, ..setting(default, meaning) }
}

const fn unused() -> Setting {
    Setting { has_effect: false, ..setting("", NO_EFFECT) }
}

/// The description of options and variables that only Horovod needs.
pub const NO_EFFECT: &str = "Accepted for compatibility; has no effect";

settings! {
    /// Everything a user may set.
    TABLE
    HOROVOD_FUSION_THRESHOLD = bytes(
        "134217728",
        "Maximum size of a fused bucket, in bytes; 0 turns fusion off.",
    );
    HOROVOD_CACHE_CAPACITY = setting(
        "1024",
        "Number of tensor descriptions to cache, so that each is sent only once; 0 turns the cache off.",
    );
    HOROVOD_STALL_CHECK_DISABLE = setting("0", "1 turns off warnings about stalled ranks.");
    HOROVOD_STALL_CHECK_TIME_SECONDS = seconds(
        "60",
        "How long some ranks may wait for a tensor that others have not submitted before a warning is \
         logged, in seconds.",
    );
    HOROVOD_STALL_SHUTDOWN_TIME_SECONDS = seconds(
        "0",
        "How long a stall may last before the job is aborted, in seconds, including a stopped rank \
         or a stuck transfer; 0 means forever.",
    );
    HOROVOD_DYNAMIC_PROCESS_SETS = setting(
        "0",
        "1 allows process sets to be added and removed after `hvd.init()`.",
    );
    HOROVOD_AUTOTUNE = setting(
        "0",
        "1 tunes settings while the job runs: the fusion threshold and, between hosts, the number of \
         connections and the algorithm. Explicit settings are not changed.",
    );
    HOROVOD_AUTOTUNE_LOG = setting("", "The file to which rank 0 writes what autotuning measures.");
    HOROVOD_AUTOTUNE_WARMUP_SAMPLES = setting(
        "3",
        "Warm-up samples that autotuning discards.",
    );
    HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE = setting("10", "Training steps per sample.");
    HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES = setting(
        "20",
        "Maximum number of points that autotuning measures per setting, five samples each.",
    );
    HOROVOD_LOG_LEVEL = setting(
        "warning",
        "trace, debug, info, warning, error or fatal; `RONDE_LOG` takes precedence. \
         debug shows which algorithms were chosen and why.",
    );
    HOROVOD_LOG_HIDE_TIME = setting("0", "1 omits timestamps from the log.");
    RONDE_TRANSPORT = setting(
        "auto",
        "auto: shared memory between ranks that can share it; tcp: sockets between all ranks.",
    );
    RONDE_SHARED_RANKS = setting(
        "0",
        "Maximum number of ranks that share memory; 0 means all ranks of a host. The \
         others use sockets. For tests.",
    );
    RONDE_ENCRYPTION = setting(
        "auto",
        "Whether tensors sent between ranks are encrypted. auto: unless both ends are on one host or a \
         private network; on: always, except in shared memory; off: never.",
    );
    RONDE_TUNING = setting(
        "",
        "The thresholds between algorithms: a file written by `ronde bench --calibrate`, or \
         `name=number,...`. All ranks use those of rank 0.",
    );
    RONDE_REPRODUCIBLE = setting(
        "0",
        "1 makes results over sockets and on GPUs independent of which tensors travel together, so \
         that they have the same bits in every run with the same ranks on the same hosts. Large \
         allreduces are slower; `RONDE_TUNING` loses its value for `halving`.",
    );
    RONDE_ARENA = bytes(
        "17179869184",
        "Size of the arena, in bytes: memory for gradients that all ranks of a host \
         share, so that reducing them needs no copy. Only the part in use takes memory; 0 \
         turns it off.",
    );
    RONDE_JOIN_TIMEOUT_SECONDS = seconds(
        "600",
        "How long `hvd.init()` waits for the other ranks, and how long a rank of an elastic job \
         may take to join after it starts, in seconds.",
    );
    HOROVOD_START_TIMEOUT = seconds(
        "30",
        "How long `horovodrun` waits for all hosts to respond, in seconds; `--start-timeout` takes \
         precedence.",
    );
    RONDE_REACH = setting(
        "auto",
        "How `horovodrun` reaches other hosts. auto: through a standing agent (`ronde agent \
         --listen`) if there is a key and an agent that holds it answers, otherwise through ssh; \
         ssh, agent: only that way. `--reach` takes precedence.",
    );
    RONDE_RSH = setting(
        "",
        "A command that replaces ssh, as in `docker exec -i {host} {command}`; `--rsh` takes \
         precedence.",
    );
    RONDE_AGENT_PORT = setting(
        "29508",
        "The port of standing agents; `--agent-port` takes precedence.",
    );
    RONDE_AGENT_KEY_FILE = setting(
        "",
        "The file with the key of standing agents, which only you can read; `--agent-key-file` takes \
         precedence. By default `~/.config/ronde/agent.key`, if it exists.",
    );
    RONDE_AGENT_KEY = setting(
        "",
        "The key of standing agents itself, 64 hexadecimal digits, for containers that get it from a \
         secret. Ranks do not inherit it.",
    );
    RONDE_HOST_ENV = setting(
        "",
        "Names of variables that belong to a host, separated by commas: its ranks get the values that \
         its agent has, not those of the launcher.",
    );
    RONDE_PORT_RANGE = setting(
        "",
        "The ports to listen on, as in `29600-29700`; several ranges are separated by commas. By \
         default the system chooses. A host with its own value uses that one.",
    );
    RONDE_ADVERTISE = setting(
        "",
        "Addresses at which others reach this host although no interface has them, separated by \
         commas: for containers with published ports, and behind NAT. Each host has its own value.",
    );
    HOROVOD_ELASTIC_TIMEOUT = seconds(
        "600",
        "How long an elastic job waits for enough slots, in seconds; `--elastic-timeout` takes \
         precedence.",
    );
    RONDE_BLACKLIST = setting(
        "host",
        "What goes on cooldown when a rank of an elastic job fails: `host`, if there are \
         enough ranks elsewhere, or only its `slot`.",
    );
    RONDE_ELASTIC_STOPPED_SECONDS = seconds(
        "5",
        "How long a rank of an elastic job may be stopped, for example by SIGSTOP, before it counts \
         as lost, in seconds; 0 means forever.",
    );
    RONDE_LEAVE_TIMEOUT_SECONDS = seconds(
        "30",
        "How long the ranks of an elastic job have to leave at a commit when the agent of their host \
         is told to stop, in seconds.",
    );
    RONDE_DISCOVERY_INTERVAL_SECONDS = seconds(
        "1",
        "The pause between two runs of the host discovery script, in seconds.",
    );
    RONDE_DISCOVERY_TIMEOUT_SECONDS = seconds(
        "30",
        "How long the host discovery script may run before it is killed, in seconds.",
    );
    RONDE_SECRET = setting(
        "",
        "Under a launcher other than `horovodrun`: a secret of 64 hexadecimal digits, the same on all \
         ranks, with which they connect to rank 0 at `MASTER_ADDR`.",
    );
    RONDE_RENDEZVOUS_PORT = setting(
        "29507",
        "The port on which rank 0 listens if `RONDE_SECRET` is set; `MASTER_PORT` belongs to \
         torch.distributed.",
    );
    RONDE_RENDEZVOUS_DIR = setting(
        "",
        "Under another launcher, without a secret: a directory shared by all hosts for \
         the rendezvous file, which only you can read. By default, `.ronde` in your home directory.",
    );
    HOROVOD_CONTROLLER = setting(
        "",
        "mpi: `hvd.init()` initializes MPI under any launcher; gloo: never. By default it does so \
         under `mpirun`, or if the program has already initialized MPI.",
    );
    HOROVOD_MPI_THREADS_DISABLE = setting("0", "1 initializes MPI for one thread only.");
    HOROVOD_SPARK_START_TIMEOUT = seconds(
        "600",
        "How long `horovod.spark.run` waits for Spark's tasks to start, in seconds.",
    );
    HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX = setting(
        "0",
        "1 lets ranks that tasks of Spark started see all GPUs of their host, not only those that \
         Spark assigned.",
    );
    HOROVOD_TIMELINE = setting(
        "",
        "The file that rank 0 writes a timeline to; `DYNAMIC` lets `hvd.start_timeline()` name it.",
    );
    HOROVOD_TIMELINE_MARK_CYCLES = setting(
        "0",
        "1 marks in the timeline where each bucket begins.",
    );
    RONDE_FLIGHT_RECORDER = setting(
        "512",
        "Number of recent tensors that the flight recorder keeps on each rank; 0 turns it off.",
    );
    RONDE_FLIGHT_RECORDER_DIR = setting(
        "",
        "Where the flight recorder is written on an error, a stall or SIGUSR1: a directory, `stderr` \
         or `off`. By default the directory for temporary files, which keeps the newest 64 files per \
         user; nothing is then written when an elastic job loses a rank.",
    );
    RONDE_METRICS = setting(
        "",
        "Where to serve Prometheus metrics: `127.0.0.1:PORT`, to which each rank adds its local rank, or \
         `unix:PATH`, to which each adds a dot and its rank.",
    );
    RONDE_GPUS_PER_RANK = setting(
        "0",
        "How many GPUs of its host `horovodrun` gives each rank by setting `CUDA_VISIBLE_DEVICES`; 0 \
         leaves that variable alone. `--gpus-per-rank` takes precedence.",
    );
    RONDE_NCCL = setting(
        "",
        "The NCCL library for GPU tensors. By default the one that the program has loaded, then \
         that of the package `nvidia-nccl-cu12` or `nvidia-nccl-cu13`, then the system's.",
    );
    RONDE_CUDA = setting("", "The library to open in place of NVIDIA's driver. For tests.");
    NCCL_RUNTIME_CONNECT = setting(
        "0",
        "0 makes NCCL connect all ranks at the start, not in the first collective. Ronde then launches \
         collectives from the calling thread, in a tenth of the time. `hvd.init()` sets it unless you \
         have.",
    );
    NCCL_MULTI_RANK_GPU_ENABLE = setting(
        "1",
        "1 lets several ranks share a GPU. NCCL reads it from version 2.30 on; `hvd.init()` sets it \
         unless you have.",
    );
}

settings! {
    /// What the launcher sets for each rank; users read these and do not set them.
    CONTRACT
    HOROVOD_RANK = setting("0", "The rank of this process.");
    HOROVOD_SIZE = setting("1", "The number of processes.");
    HOROVOD_LOCAL_RANK = setting("0", "The rank of this process among those on its host.");
    HOROVOD_LOCAL_SIZE = setting("1", "The number of processes on this host.");
    HOROVOD_CROSS_RANK = setting("0", "The index of this host among those that have this local rank.");
    HOROVOD_CROSS_SIZE = setting("1", "The number of hosts that have this local rank.");
    HOROVOD_HOSTNAME = setting("localhost", "The name of this host as the launcher knows it.");
    RONDE_ADDRESSES = setting(
        "",
        "Addresses at which other hosts reach the ranks of this host, separated by commas.",
    );
    RONDE_RENDEZVOUS = setting(
        "",
        "Where the launcher's rendezvous listens: one or more `address:port`, separated by commas.",
    );
    RONDE_JOB_KEY = setting("", "The job's secret; never on a command line, never in a log.");
    RONDE_CALL_ADDRESSES = setting(
        "",
        "Where ranks that `mpirun` starts for `horovod.run` fetch the function and deliver results, \
         in the format of `RONDE_RENDEZVOUS`.",
    );
    RONDE_CALL_KEY = setting("", "The key for `RONDE_CALL_ADDRESSES`.");
    HOROVOD_ELASTIC = setting("0", "1 in an elastic job, in which ranks may join and leave.");
    RONDE_WORKER = setting("", "The worker number of this process in an elastic job.");
    RONDE_LATECOMER = setting("0", "1 if the job was already training when this process started.");
    RONDE_PARENT = setting("", "Identifies a rank to its child processes; set by `hvd.init()`.");
    RONDE_JOB = setting("", "Marks every process of the job, so that all of them can be found and ended.");
}

settings! {
    /// Variables of Horovod that Ronde ignores.
    UNUSED
    HOROVOD_CYCLE_TIME = unused();
    HOROVOD_HIERARCHICAL_ALLREDUCE = unused();
    HOROVOD_HIERARCHICAL_ALLGATHER = unused();
    HOROVOD_TORUS_ALLREDUCE = unused();
    HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE = unused();
    HOROVOD_NUM_NCCL_STREAMS = unused();
    HOROVOD_THREAD_AFFINITY = unused();
    HOROVOD_GLOO_TIMEOUT_SECONDS = unused();
}

/// Read by NCCL.
pub const NCCL_IB_DISABLE: &Setting =
    &Setting { name: "NCCL_IB_DISABLE", ..setting("0", "1 keeps NCCL off InfiniBand.") };

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference page of all settings, in Markdown.
    fn reference_page() -> String {
        let mut page = String::from(
            "# Settings\n\nEvery variable that a rank reads, made from the tables in \
             `crates/control/src/settings/table.rs`.\n\n## What you may set\n\n",
        );
        page += &rows("default", TABLE);
        page += "\n## What the launcher sets\n\n";
        page += &rows("without a launcher", CONTRACT);
        page += &format!("\n## What Horovod reads\n\n{NO_EFFECT}: ");
        let unused: Vec<String> = UNUSED.iter().map(|row| format!("`{}`", row.name)).collect();
        page + &unused.join(", ") + ".\n"
    }

    fn rows(middle: &str, table: &[&Setting]) -> String {
        let mut text = format!("| variable | {middle} | meaning |\n| --- | --- | --- |\n");
        for Setting { name, default, meaning, .. } in table {
            let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
            text += &format!("| `{name}` | {default} | {meaning} |\n");
        }
        text
    }

    #[test]
    fn a_number_with_a_unit_gets_a_suggestion() {
        for (unit, text, expected) in [
            (Unit::Bytes, "64MB", "a number of bytes, here 67108864"),
            (Unit::Bytes, " 2 GiB", "a number of bytes, here 2147483648"),
            (Unit::Bytes, "99999999999 G", "a number of bytes"),
            (Unit::Bytes, "much", "a number of bytes"),
            (Unit::Seconds, "5min", "a whole number of seconds, here 300"),
            (Unit::Seconds, "1.5", "a whole number of seconds"),
            (Unit::Things, "3k", "a non-negative integer"),
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
        assert_eq!(page, reference_page(), "run the test with BLESS=1 to rewrite the page");
    }
}
