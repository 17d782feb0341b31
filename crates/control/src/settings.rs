//! The settings of a rank: one table with name, default and meaning, and their parsed form.
//!
//! Names that Horovod has are Horovod's; new ones start with `RONDE_`. The reference page
//! `docs/reference/settings.md` is made from [`TABLE`], and a test keeps the two equal. Parsing takes
//! a look-up function, so that nothing here reads the environment, and reports all mistakes at once.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::autotune::{self, Parameter};
use crate::watching::{Watching, Words};
use crate::wire::JobKey;
use crate::{Rank, Tuning, Worker};

/// More tensors than these the flight recorder cannot remember; it takes its memory at the start.
const MOST_RECORDS: usize = 1 << 20;

/// One line of the table.
pub struct Setting {
    /// The environment variable.
    pub name: &'static str,
    /// What holds when it is not set.
    pub default: &'static str,
    /// What it means.
    pub meaning: &'static str,
}

const fn setting(name: &'static str, default: &'static str, meaning: &'static str) -> Setting {
    Setting { name, default, meaning }
}

/// Everything a user may set.
pub const TABLE: &[Setting] = &[
    setting(
        "HOROVOD_FUSION_THRESHOLD",
        "134217728",
        "Bytes that one fused bucket may hold; 0 turns fusion off.",
    ),
    setting(
        "HOROVOD_CACHE_CAPACITY",
        "1024",
        "Tensors whose description travels once and then as a number; 0 turns it off.",
    ),
    setting("HOROVOD_STALL_CHECK_DISABLE", "0", "1 turns the reports about late ranks off."),
    setting(
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        "60",
        "After how long a tensor that some rank never submits is reported.",
    ),
    setting(
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        "0",
        "After how long such a stall ends the job; 0 is never.",
    ),
    setting(
        "HOROVOD_DYNAMIC_PROCESS_SETS",
        "0",
        "1 allows process sets to be added and removed after `hvd.init()`.",
    ),
    setting(
        "HOROVOD_AUTOTUNE",
        "0",
        "1 looks for better settings while the job runs: the fusion threshold, and between hosts the \
         number of connections and the way round. What is set stays.",
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
        "Accepted; the search here asks for no guess of the noise.",
    ),
    setting(
        "HOROVOD_LOG_LEVEL",
        "warning",
        "trace, debug, info, warning, error or fatal; `RONDE_LOG` says the same and comes first. \
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
        "How many ranks may share one memory; 0 is all of a host. For tests: the others take sockets.",
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
    setting(
        "RONDE_ARENA",
        "17179869184",
        "Bytes of memory that each rank may give out to gradients and that all ranks of its host see, \
         so that reducing them copies nothing; only what is used costs memory. 0 turns it off.",
    ),
    setting(
        "RONDE_JOIN_TIMEOUT_SECONDS",
        "600",
        "How long `hvd.init()` waits for the other ranks.",
    ),
    setting(
        "HOROVOD_START_TIMEOUT",
        "30",
        "Seconds until all hosts must have answered `horovodrun`; `--start-timeout` comes first.",
    ),
    setting(
        "HOROVOD_ELASTIC_TIMEOUT",
        "600",
        "Seconds for which an elastic job waits for enough ranks; `--elastic-timeout` comes first.",
    ),
    setting(
        "RONDE_BLACKLIST",
        "host",
        "What rests when a rank of an elastic job fails: its host, if there are enough ranks elsewhere, \
         or only its slot.",
    ),
    setting(
        "RONDE_ELASTIC_STOPPED_SECONDS",
        "5",
        "How long a rank of an elastic job may be stopped, as by SIGSTOP, before it counts as lost; 0 is \
         for ever.",
    ),
    setting(
        "RONDE_DISCOVERY_INTERVAL_SECONDS",
        "1",
        "The time from the end of the host discovery script to its next start.",
    ),
    setting(
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
        "Under another launcher, without a secret: a directory that all hosts share, for the note by \
         which the ranks meet; only you can read the note. Without it, `.ronde` in your home directory.",
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
        "Tensors whose way a rank remembers, for when something goes wrong; 0 turns it off.",
    ),
    setting(
        "RONDE_FLIGHT_RECORDER_DIR",
        "",
        "Where that is written on an error, a stall or SIGUSR1: a directory, `stderr` or `off`; \
         without it, the directory for temporary files, but not when an elastic job loses a rank.",
    ),
    setting(
        "RONDE_METRICS",
        "",
        "Where Prometheus may ask: `127.0.0.1:PORT`, to which each rank adds its local rank, or \
         `unix:PATH`, to which each adds a dot and its rank.",
    ),
];

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
    setting("HOROVOD_ELASTIC", "0", "1 in a job whose ranks may come and go."),
    setting("RONDE_WORKER", "", "The number of this process in such a job."),
    setting("RONDE_LATECOMER", "0", "1 if that job has been training before this process began."),
    setting("RONDE_JOB", "", "Marks every process of the job, so that none is left behind."),
];

/// Which way tensors travel between ranks of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Shared memory where it can be had.
    Auto,
    /// Sockets, always.
    Tcp,
}

/// Which tensors are encrypted on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encryption {
    /// Those that leave the host for an address that is not private.
    Auto,
    /// All that travel through sockets.
    On,
    /// None.
    Off,
}

/// What the user set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes that one fused bucket may hold.
    pub fusion_threshold: u64,
    /// Tensors that are known by number.
    pub cache_capacity: usize,
    /// After how long a stall is reported, unless it is never.
    pub stall_warning: Option<Duration>,
    /// After how long a stall ends the job, unless it is never.
    pub stall_shutdown: Option<Duration>,
    /// How to look for better settings, if at all.
    pub autotune: Option<autotune::Options>,
    /// Where what autotuning measures is written.
    pub autotune_log: Option<String>,
    /// Which way tensors travel.
    pub transport: Transport,
    /// How many ranks may share one memory, if there is a limit.
    pub shared_ranks: Option<u32>,
    /// Which tensors are encrypted on their way.
    pub encryption: Encryption,
    /// The numbers that decide between algorithms.
    pub tuning: Tuning,
    /// Bytes of memory per rank that all ranks of its host see; none if zero.
    pub arena: usize,
    /// How long to wait for the other ranks.
    pub join_timeout: Duration,
    /// How this rank is watched.
    pub watching: Watching,
}

/// Where this process stands in the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// This process among all.
    pub rank: Rank,
    /// The number of processes.
    pub size: u32,
    /// This process among those of its host.
    pub local_rank: u32,
    /// The number of processes on this host.
    pub local_size: u32,
    /// This host among those that have this local rank.
    pub cross_rank: u32,
    /// The number of hosts that have this local rank.
    pub cross_size: u32,
    /// The name of this host.
    pub host: String,
    /// Where and with which key the ranks meet; none for a world of one.
    pub meeting: Option<Meeting>,
}

/// Where and with which key the ranks of a job meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// The rendezvous, by every address it has.
    pub addresses: Vec<SocketAddr>,
    /// The job's key.
    pub key: JobKey,
    /// The addresses of this host on which other hosts reach its ranks; none if they need not.
    pub listen: Vec<IpAddr>,
    /// Whose service it is.
    pub keeper: Keeper,
}

/// Who lets the ranks meet, and tells them of each other's death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// The launcher, which is `horovodrun`.
    Launcher,
    /// Rank 0, because the launcher is somebody else's.
    FirstRank,
    /// The launcher, in an elastic job: it says anew in every world which rank this worker is.
    Elastic(Worker),
}

/// All mistakes of one environment.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct BadSettings(pub Vec<String>);

/// Reads the settings and this process's place in the job.
pub fn read(look_up: impl Fn(&str) -> Option<String>) -> Result<(Settings, Place), BadSettings> {
    let mut reader = Reader { look_up: &look_up, mistakes: Vec::new() };
    let settings = reader.settings();
    let place = reader.place();
    match reader.mistakes.is_empty() {
        true => Ok((settings, place)),
        false => Err(BadSettings(reader.mistakes)),
    }
}

/// What the user set for an elastic job; only the launcher reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elasticity {
    /// How long to wait for enough ranks.
    pub timeout: Duration,
    /// Whether only the slot of a rank that fails rests, instead of its host.
    pub rests_slot: bool,
    /// How long a rank may be stopped, unless it is for ever.
    pub stopped: Option<Duration>,
    /// The time between two runs of the discovery script.
    pub discovery_interval: Duration,
    /// How long that script may take.
    pub discovery_limit: Duration,
}

/// Reads what the user set for an elastic job.
pub fn elastic(look_up: impl Fn(&str) -> Option<String>) -> Result<Elasticity, BadSettings> {
    let mut reader = Reader { look_up: &look_up, mistakes: Vec::new() };
    let elasticity = reader.elasticity();
    match reader.mistakes.is_empty() {
        true => Ok(elasticity),
        false => Err(BadSettings(reader.mistakes)),
    }
}

/// Reads only where the launcher's rendezvous is, which a world of one has no use for.
pub fn meeting(look_up: impl Fn(&str) -> Option<String>) -> Result<Meeting, BadSettings> {
    let mut reader = Reader { look_up: &look_up, mistakes: Vec::new() };
    let meeting = reader.meeting();
    meeting.filter(|_| reader.mistakes.is_empty()).ok_or(BadSettings(reader.mistakes))
}

/// The number of this process if it is a worker of an elastic job.
pub fn worker(look_up: impl Fn(&str) -> Option<String>) -> Option<Worker> {
    Reader { look_up: &look_up, mistakes: Vec::new() }.worker()
}

struct Reader<'a> {
    look_up: &'a dyn Fn(&str) -> Option<String>,
    mistakes: Vec<String>,
}

impl Reader<'_> {
    fn settings(&mut self) -> Settings {
        let seconds = |value: u64| (value > 0).then(|| Duration::from_secs(value));
        let quiet = self.number("HOROVOD_STALL_CHECK_DISABLE") > 0;
        Settings {
            fusion_threshold: self.number("HOROVOD_FUSION_THRESHOLD"),
            cache_capacity: self.number("HOROVOD_CACHE_CAPACITY") as usize,
            stall_warning: seconds(self.number("HOROVOD_STALL_CHECK_TIME_SECONDS"))
                .filter(|_| !quiet),
            stall_shutdown: seconds(self.number("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"))
                .filter(|_| !quiet),
            autotune: self.autotune(),
            autotune_log: Some(self.text("HOROVOD_AUTOTUNE_LOG")).filter(|path| !path.is_empty()),
            transport: self.transport(),
            shared_ranks: Some(self.small("RONDE_SHARED_RANKS")).filter(|ranks| *ranks > 0),
            encryption: self.encryption(),
            tuning: self.tuning(),
            arena: self.number("RONDE_ARENA") as usize,
            join_timeout: Duration::from_secs(self.number("RONDE_JOIN_TIMEOUT_SECONDS")),
            watching: self.watching(),
        }
    }

    fn elasticity(&mut self) -> Elasticity {
        let stopped = self.number("RONDE_ELASTIC_STOPPED_SECONDS");
        let rests = self.text("RONDE_BLACKLIST").to_ascii_lowercase();
        if !matches!(rests.as_str(), "host" | "slot") {
            self.mistakes.push(format!("RONDE_BLACKLIST is `{rests}`, it must be host or slot"));
        }
        Elasticity {
            timeout: Duration::from_secs(self.number("HOROVOD_ELASTIC_TIMEOUT")),
            rests_slot: rests == "slot",
            stopped: (stopped > 0).then(|| Duration::from_secs(stopped)),
            discovery_interval: Duration::from_secs(
                self.number("RONDE_DISCOVERY_INTERVAL_SECONDS"),
            ),
            discovery_limit: Duration::from_secs(self.number("RONDE_DISCOVERY_TIMEOUT_SECONDS")),
        }
    }

    fn watching(&mut self) -> Watching {
        let words = Words {
            timeline: self.text("HOROVOD_TIMELINE"),
            mark_cycles: self.number("HOROVOD_TIMELINE_MARK_CYCLES") > 0,
            records: (self.number("RONDE_FLIGHT_RECORDER") as usize).min(MOST_RECORDS),
            dump: self.text("RONDE_FLIGHT_RECORDER_DIR"),
            metrics: self.text("RONDE_METRICS"),
        };
        let (watching, mistakes) = Watching::parse(words);
        self.mistakes.extend(mistakes);
        watching
    }

    /// What the user has set stays as it is.
    fn autotune(&mut self) -> Option<autotune::Options> {
        let is_free = |name: &str| (self.look_up)(name).is_none_or(|text| text.is_empty());
        let threshold = is_free("HOROVOD_FUSION_THRESHOLD").then_some(Parameter::FusionThreshold);
        let others = [Parameter::Connections, Parameter::Halving];
        let others = others.into_iter().filter(|_| is_free("RONDE_TUNING"));
        let options = autotune::Options {
            parameters: threshold.into_iter().chain(others).collect(),
            warmup_samples: self.small("HOROVOD_AUTOTUNE_WARMUP_SAMPLES"),
            steps_per_sample: self.small("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE"),
            most_points: self.number("HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES") as usize,
        };
        (self.number("HOROVOD_AUTOTUNE") > 0).then_some(options)
    }

    fn transport(&mut self) -> Transport {
        match self.text("RONDE_TRANSPORT").to_ascii_lowercase().as_str() {
            "auto" => Transport::Auto,
            "tcp" => Transport::Tcp,
            other => {
                self.mistakes.push(format!("RONDE_TRANSPORT is `{other}`, it must be auto or tcp"));
                Transport::Auto
            }
        }
    }

    fn encryption(&mut self) -> Encryption {
        match self.text("RONDE_ENCRYPTION").to_ascii_lowercase().as_str() {
            "auto" => Encryption::Auto,
            "on" => Encryption::On,
            "off" => Encryption::Off,
            other => {
                let mistake = format!("RONDE_ENCRYPTION is `{other}`, it must be auto, on or off");
                self.mistakes.push(mistake);
                Encryption::Auto
            }
        }
    }

    /// Whoever looks the variable up has put the content of the file in the place of its name.
    fn tuning(&mut self) -> Tuning {
        Tuning::parse(&self.text("RONDE_TUNING")).unwrap_or_else(|mistakes| {
            self.mistakes.push(format!(
                "RONDE_TUNING is neither a file that can be read nor numbers: {}",
                mistakes.join("; ")
            ));
            Tuning::default()
        })
    }

    fn place(&mut self) -> Place {
        let place = Place {
            rank: Rank(self.small("HOROVOD_RANK")),
            size: self.small("HOROVOD_SIZE"),
            local_rank: self.small("HOROVOD_LOCAL_RANK"),
            local_size: self.small("HOROVOD_LOCAL_SIZE"),
            cross_rank: self.small("HOROVOD_CROSS_RANK"),
            cross_size: self.small("HOROVOD_CROSS_SIZE"),
            host: self.text("HOROVOD_HOSTNAME"),
            meeting: None,
        };
        if place.size == 0 || place.rank.0 >= place.size {
            let Place { rank, size, .. } = &place;
            self.mistakes.push(format!(
                "HOROVOD_RANK is `{}` and HOROVOD_SIZE is `{size}`: a rank lies below the size",
                rank.0
            ));
        }
        // In an elastic job even one rank alone must hear who comes.
        let worker = self.worker();
        let meets = place.size > 1 || worker.is_some();
        let meeting = if meets { self.meeting() } else { None };
        let keeper = worker.map_or(Keeper::Launcher, Keeper::Elastic);
        Place { meeting: meeting.map(|meeting| Meeting { keeper, ..meeting }), ..place }
    }

    fn worker(&mut self) -> Option<Worker> {
        let named = !(self.look_up)("RONDE_WORKER").unwrap_or_default().is_empty();
        (self.number("HOROVOD_ELASTIC") > 0 && named).then(|| Worker(self.small("RONDE_WORKER")))
    }

    fn meeting(&mut self) -> Option<Meeting> {
        let Some(text) = (self.look_up)("RONDE_RENDEZVOUS") else {
            self.mistakes.push(
                "HOROVOD_SIZE asks for several ranks but RONDE_RENDEZVOUS does not say where they \
                 meet: start the script with `horovodrun -np N python ...`"
                    .into(),
            );
            return None;
        };
        let mut addresses = Vec::new();
        for part in text.split(',') {
            match part.parse() {
                Ok(address) => addresses.push(address),
                Err(_) => {
                    self.mistakes.push(format!("RONDE_RENDEZVOUS has no address in `{part}`"));
                }
            }
        }
        let listen = self.listen();
        match JobKey::from_hex(&(self.look_up)("RONDE_JOB_KEY").unwrap_or_default()) {
            Ok(key) => Some(Meeting { addresses, key, listen, keeper: Keeper::Launcher }),
            Err(error) => {
                self.mistakes.push(format!("RONDE_JOB_KEY: {error}"));
                None
            }
        }
    }

    fn listen(&mut self) -> Vec<IpAddr> {
        let text = (self.look_up)("RONDE_ADDRESSES").unwrap_or_default();
        let parts = text.split(',').filter(|part| !part.is_empty());
        let mut addresses = Vec::new();
        for part in parts {
            match part.parse() {
                Ok(address) => addresses.push(address),
                Err(_) => self.mistakes.push(format!("RONDE_ADDRESSES has no address in `{part}`")),
            }
        }
        addresses
    }

    fn text(&self, name: &str) -> String {
        (self.look_up)(name).filter(|text| !text.is_empty()).unwrap_or_else(|| default(name).into())
    }

    fn number(&mut self, name: &str) -> u64 {
        let text = self.text(name);
        text.trim().parse().unwrap_or_else(|_| {
            self.mistakes.push(format!("{name} is `{text}`, it must be a whole number from 0"));
            0
        })
    }

    fn small(&mut self, name: &str) -> u32 {
        let number = self.number(name);
        u32::try_from(number).unwrap_or_else(|_| {
            self.mistakes.push(format!("{name} is `{number}`, which is too large"));
            0
        })
    }
}

pub(crate) fn default(name: &str) -> &'static str {
    let mut rows = TABLE.iter().chain(CONTRACT);
    rows.find(|row| row.name == name).expect("every setting that is read stands in a table").default
}

/// The reference page of all settings, in Markdown.
pub fn reference_page() -> String {
    let mut page = String::from(
        "# Settings\n\nEvery variable that a rank reads, made from the table in \
         `crates/control/src/settings.rs`.\n\n## What you may set\n\n",
    );
    page += &rows("default", TABLE);
    page += "\n## What the launcher sets\n\n";
    page += &rows("without a launcher", CONTRACT);
    page
}

fn rows(middle: &str, table: &[Setting]) -> String {
    let mut text = format!("| variable | {middle} | meaning |\n| --- | --- | --- |\n");
    for Setting { name, default, meaning } in table {
        let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
        text += &format!("| `{name}` | {default} | {meaning} |\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look_up<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
    }

    #[test]
    fn an_empty_environment_is_a_world_of_one_with_the_defaults() {
        let (settings, place) = read(|_| None).unwrap();
        assert_eq!((place.rank, place.size, place.meeting), (Rank(0), 1, None));
        assert_eq!(settings.fusion_threshold, 128 << 20);
        assert_eq!(settings.stall_warning, Some(Duration::from_secs(60)));
        assert_eq!(settings.stall_shutdown, None);
    }

    #[test]
    fn a_launched_rank_knows_where_to_meet() {
        let key = "ab".repeat(32);
        let pairs = [
            ("HOROVOD_RANK", "1"),
            ("HOROVOD_SIZE", "2"),
            ("RONDE_RENDEZVOUS", "127.0.0.1:9,[::1]:9"),
            ("RONDE_ADDRESSES", "10.0.0.1,fe80::1"),
            ("RONDE_JOB_KEY", key.as_str()),
            ("RONDE_TRANSPORT", "TCP"),
        ];
        let (settings, place) = read(look_up(&pairs)).unwrap();
        let meeting = place.meeting.unwrap();
        assert_eq!((meeting.addresses.len(), meeting.listen.len()), (2, 2));
        assert_eq!((meeting.keeper, settings.transport), (Keeper::Launcher, Transport::Tcp));
    }

    #[test]
    fn a_worker_of_an_elastic_job_meets_the_launcher_even_alone() {
        let key = "ab".repeat(32);
        let mut pairs = vec![
            ("HOROVOD_ELASTIC", "1"),
            ("RONDE_RENDEZVOUS", "127.0.0.1:9"),
            ("RONDE_JOB_KEY", key.as_str()),
        ];
        assert_eq!(read(look_up(&pairs)).unwrap().1.meeting, None, "nobody calls it a worker");
        pairs.push(("RONDE_WORKER", "7"));
        let meeting = read(look_up(&pairs)).unwrap().1.meeting.unwrap();
        assert_eq!(meeting.keeper, Keeper::Elastic(Worker(7)));
        assert_eq!(worker(look_up(&pairs)), Some(Worker(7)));
    }

    #[test]
    fn all_mistakes_are_reported_at_once_and_the_key_is_not_shown() {
        let pairs = [
            ("HOROVOD_RANK", "5"),
            ("HOROVOD_SIZE", "2"),
            ("HOROVOD_FUSION_THRESHOLD", "-1"),
            ("RONDE_RENDEZVOUS", "nowhere"),
            ("RONDE_ADDRESSES", "somewhere"),
            ("RONDE_JOB_KEY", "secret"),
            ("RONDE_TRANSPORT", "pigeon"),
            ("RONDE_ENCRYPTION", "rot13"),
            ("RONDE_TUNING", "no-such-file"),
            ("RONDE_METRICS", "0.0.0.0:9400"),
        ];
        let BadSettings(mistakes) = read(look_up(&pairs)).unwrap_err();
        assert_eq!(mistakes.len(), 9, "{mistakes:?}");
        assert!(!mistakes.join(" ").contains("secret"));
    }

    #[test]
    fn autotuning_is_off_unless_asked_for_and_leaves_alone_what_is_set() {
        let autotune = |pairs: &[(&str, &str)]| read(look_up(pairs)).unwrap().0.autotune;
        let (on, steps) = (("HOROVOD_AUTOTUNE", "1"), ("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "7"));
        assert_eq!(autotune(&[steps]), None);
        let options = autotune(&[on, steps]).unwrap();
        assert_eq!((options.warmup_samples, options.steps_per_sample), (3, 7));
        assert_eq!(options.most_points, 20);
        assert_eq!(options.parameters.len(), 3);
        let fixed = autotune(&[on, ("HOROVOD_FUSION_THRESHOLD", "1000")]).unwrap();
        assert_eq!(fixed.parameters, [Parameter::Connections, Parameter::Halving]);
        let fixed = autotune(&[on, ("RONDE_TUNING", "connections=2")]).unwrap();
        assert_eq!(fixed.parameters, [Parameter::FusionThreshold]);
    }

    #[test]
    fn an_elastic_job_is_set_like_everything_else() {
        let usual = elastic(|_| None).unwrap();
        assert_eq!((usual.timeout, usual.rests_slot), (Duration::from_secs(600), false));
        assert_eq!(usual.stopped, Some(Duration::from_secs(5)));
        let pairs = [("RONDE_BLACKLIST", "Slot"), ("RONDE_ELASTIC_STOPPED_SECONDS", "0")];
        let set = elastic(look_up(&pairs)).unwrap();
        assert!(set.rests_slot && set.stopped.is_none());
        let pairs = [("RONDE_BLACKLIST", "rack"), ("HOROVOD_ELASTIC_TIMEOUT", "long")];
        assert_eq!(elastic(look_up(&pairs)).unwrap_err().0.len(), 2);
    }

    #[test]
    fn several_ranks_without_a_launcher_say_how_to_start() {
        let error = read(look_up(&[("HOROVOD_SIZE", "2")])).unwrap_err();
        assert!(error.to_string().contains("horovodrun -np"), "{error}");
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
