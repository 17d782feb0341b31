//! The settings of a rank: their parsed form, and one [`table`] with name, default and meaning.
//!
//! Parsing takes a lookup function, so that nothing here reads the environment, and reports all
//! errors at once.

mod reach;
mod table;

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::autotune::{self, Parameter};
use crate::job::CooldownScope;
use crate::watching::{Cycles, DumpTo, MetricsAt, TimelineRequest, Watching};
use crate::wire::JobKey;
use crate::{PortRange, Rank, Tuning, Worker};
pub use reach::{ReachChoice, Reaching, hosts_with_ports, reaching};
pub use table::*;

/// Largest size of the flight recorder, in tensors; it allocates its memory at the start.
const MOST_RECORDS: usize = 1 << 20;

/// How tensors travel between ranks of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Shared memory where possible, sockets otherwise.
    Auto,
    /// Always sockets.
    Tcp,
}

/// Which tensors are encrypted in transit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encryption {
    /// Those sent to another host at an address that is not private.
    Auto,
    /// All that are sent through sockets.
    On,
    /// Never encrypt tensors.
    Off,
}

/// What the bits of a result may depend on, besides the ranks, their hosts and their tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bits {
    /// On which tensors travel in one bucket, over sockets and on GPUs.
    OfBuckets,
    /// On nothing else.
    Reproducible,
}

/// The settings that the user may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Maximum size of a fused bucket, in bytes.
    pub fusion_threshold: u64,
    /// Number of tensor descriptions to cache; cached tensors are sent as numbers.
    pub cache_capacity: usize,
    /// How long a stall lasts before it is reported; `None` means it never is.
    pub stall_warning: Option<Duration>,
    /// How long a stall lasts before the job is aborted; `None` means it never is.
    pub stall_shutdown: Option<Duration>,
    /// How to autotune; `None` if autotuning is off.
    pub autotune: Option<autotune::AutotuneOptions>,
    /// The file to which autotuning writes its measurements.
    pub autotune_log: Option<String>,
    /// How tensors travel between ranks of one host.
    pub transport: Transport,
    /// How many ranks may share memory, if there is a limit.
    pub shared_ranks: Option<u32>,
    /// Which tensors are encrypted in transit.
    pub encryption: Encryption,
    /// The thresholds between algorithms.
    pub tuning: Tuning,
    /// What the bits of a result may depend on.
    pub bits: Bits,
    /// Size of the arena, in bytes; 0 turns it off.
    pub arena: usize,
    /// How long to wait for the other ranks.
    pub join_timeout: Duration,
    /// Timeline, flight recorder and metrics.
    pub watching: Watching,
}

impl Settings {
    /// The same settings, with bits that do not depend on buckets. The order of additions in a ring
    /// depends on an element's position in its bucket, so no tensor is left to it.
    pub fn reproducible(mut self) -> Settings {
        self.bits = Bits::Reproducible;
        self.tuning.halving = u64::MAX;
        self
    }
}

/// The place of this process in the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankInfo {
    /// The rank of this process.
    pub rank: Rank,
    /// The number of processes.
    pub size: u32,
    /// The rank of this process among those on its host.
    pub local_rank: u32,
    /// The number of processes on this host.
    pub local_size: u32,
    /// The index of this host among those that have this local rank.
    pub cross_rank: u32,
    /// The number of hosts that have this local rank.
    pub cross_size: u32,
    /// The name of this host.
    pub host: String,
    /// How to reach the rendezvous; `None` for a world of one.
    pub rendezvous_info: Option<RendezvousInfo>,
}

/// How to reach the rendezvous of a job, and with which key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RendezvousInfo {
    /// All addresses of the rendezvous.
    pub addresses: Vec<SocketAddr>,
    /// The job's key.
    pub key: JobKey,
    /// The addresses at which other hosts reach the ranks of this host; empty if there are none.
    pub listen: Vec<IpAddr>,
    /// The ports to listen on.
    pub ports: PortRange,
    /// Who runs the rendezvous.
    pub keeper: RendezvousOwner,
}

/// Who runs the rendezvous and reports lost ranks to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RendezvousOwner {
    /// `horovodrun`.
    Launcher,
    /// Rank 0, under another launcher.
    FirstRank,
    /// `horovodrun` in an elastic job; it assigns this worker a rank in every new world.
    Elastic(Worker),
}

/// All errors found in one environment.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct BadSettings(pub Vec<String>);

/// Reads the settings and this process's place in the job.
pub fn read(look_up: impl Fn(&str) -> Option<String>) -> Result<(Settings, RankInfo), BadSettings> {
    read_all(look_up, |reader| (reader.settings(), reader.place()))
}

/// The settings that the launcher itself needs for any job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// How long hosts have to respond.
    pub start_timeout: Duration,
    /// How long the ranks may take to form a world.
    pub join_timeout: Duration,
    /// How many GPUs each rank gets; `None` leaves that to the ranks.
    pub gpus_per_rank: Option<u32>,
    /// How this machine can be reached.
    pub network: HostNetwork,
}

/// How a host can be reached, as far as that is set on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostNetwork {
    /// The ports to listen on.
    pub ports: PortRange,
    /// Further addresses at which others reach it, although no interface has them.
    pub advertised: Vec<IpAddr>,
}

/// Reads how this host can be reached.
pub fn host_network(look_up: impl Fn(&str) -> Option<String>) -> Result<HostNetwork, BadSettings> {
    read_all(look_up, |reader| reader.host_network())
}

/// Reads what the launcher needs, and checks what its ranks will read, so that errors are reported
/// before anything starts.
pub fn launch(look_up: impl Fn(&str) -> Option<String>) -> Result<Launch, BadSettings> {
    read_all(look_up, |reader| Launch {
        start_timeout: reader.seconds(HOROVOD_START_TIMEOUT),
        join_timeout: reader.settings().join_timeout,
        gpus_per_rank: Some(reader.number(RONDE_GPUS_PER_RANK)).filter(|count| *count > 0),
        network: reader.host_network(),
    })
}

/// The settings of an elastic job; only the launcher reads them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elasticity {
    /// How long to wait for enough ranks.
    pub timeout: Duration,
    /// What goes on cooldown when a rank fails.
    pub cooldown_scope: CooldownScope,
    /// How long a rank may be stopped before it counts as lost; `None` means forever.
    pub stopped: Option<Duration>,
    /// How long ranks have to leave when their agent is told to stop.
    pub leaving: Duration,
    /// The pause between two runs of the discovery script.
    pub discovery_interval: Duration,
    /// How long the discovery script may run.
    pub discovery_limit: Duration,
}

/// Reads the settings of an elastic job.
pub fn elastic(look_up: impl Fn(&str) -> Option<String>) -> Result<Elasticity, BadSettings> {
    read_all(look_up, |reader| Elasticity {
        timeout: reader.seconds(HOROVOD_ELASTIC_TIMEOUT),
        cooldown_scope: reader.choice(
            RONDE_BLACKLIST,
            &[("host", CooldownScope::Host), ("slot", CooldownScope::Slot)],
        ),
        stopped: reader.limit(RONDE_ELASTIC_STOPPED_SECONDS),
        leaving: reader.seconds(RONDE_LEAVE_TIMEOUT_SECONDS),
        discovery_interval: reader.seconds(RONDE_DISCOVERY_INTERVAL_SECONDS),
        discovery_limit: reader.seconds(RONDE_DISCOVERY_TIMEOUT_SECONDS),
    })
}

/// Reads the thresholds between algorithms, as all ranks use them if they are set on rank 0.
pub fn tuning(look_up: impl Fn(&str) -> Option<String>) -> Result<Tuning, BadSettings> {
    read_all(look_up, |reader| reader.settings().tuning)
}

/// Reads [`Settings::stall_shutdown`] alone and ignores errors, which the ranks report.
pub fn stall_shutdown(look_up: impl Fn(&str) -> Option<String>) -> Option<Duration> {
    Reader { look_up: &look_up, errors: Vec::new() }.settings().stall_shutdown
}

/// Reads how to reach the launcher's rendezvous, even in a world of one.
pub fn rendezvous_info(
    look_up: impl Fn(&str) -> Option<String>,
) -> Result<RendezvousInfo, BadSettings> {
    let rendezvous_info =
        read_all(look_up, |reader| reader.rendezvous_info(RendezvousOwner::Launcher))?;
    Ok(rendezvous_info.expect("no rendezvous without an error"))
}

/// Reads how to reach the caller of `horovod.run`: the launcher, or the process that had another
/// launcher start the ranks.
pub fn call(look_up: impl Fn(&str) -> Option<String>) -> Result<RendezvousInfo, BadSettings> {
    let delegated = look_up(RONDE_CALL_ADDRESSES.name).is_some();
    let renamed = [(RONDE_RENDEZVOUS, RONDE_CALL_ADDRESSES), (RONDE_JOB_KEY, RONDE_CALL_KEY)];
    rendezvous_info(|name| {
        let other = renamed.iter().find(|(ours, _)| delegated && ours.name == name);
        look_up(other.map_or(name, |(_, theirs)| theirs.name))
    })
}

/// Whether the number of ranks may change while this process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// It is fixed.
    Never,
    /// The user declared it elastic, but no launcher started this process as a worker.
    Declared,
    /// This process is a worker of an elastic job.
    Elastic(Worker),
}

/// Reads whether the number of ranks may change.
pub fn growth(look_up: impl Fn(&str) -> Option<String>) -> Growth {
    Reader { look_up: &look_up, errors: Vec::new() }.growth()
}

/// The libraries for GPU tensors that the user has named, and how NCCL is set up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedLibraries {
    /// The driver.
    pub driver: Option<String>,
    /// NCCL.
    pub nccl: Option<String>,
    /// Whether a communicator of NCCL makes all its connections when it is made.
    pub connects_early: bool,
}

/// Reads which libraries to open for GPU tensors.
pub fn named_libraries(look_up: impl Fn(&str) -> Option<String>) -> NamedLibraries {
    let reader = Reader { look_up: &look_up, errors: Vec::new() };
    NamedLibraries {
        driver: reader.given(RONDE_CUDA),
        nccl: reader.given(RONDE_NCCL),
        connects_early: reader.given(NCCL_RUNTIME_CONNECT).as_deref() == Some("0"),
    }
}

/// Runs `read`, and fails with all errors that it found.
fn read_all<T>(
    look_up: impl Fn(&str) -> Option<String>,
    read: impl FnOnce(&mut Reader<'_>) -> T,
) -> Result<T, BadSettings> {
    let mut reader = Reader { look_up: &look_up, errors: Vec::new() };
    let read = read(&mut reader);
    match reader.errors.is_empty() {
        true => Ok(read),
        false => Err(BadSettings(reader.errors)),
    }
}

struct Reader<'a> {
    look_up: &'a dyn Fn(&str) -> Option<String>,
    errors: Vec<String>,
}

impl Reader<'_> {
    fn settings(&mut self) -> Settings {
        let checks = !self.switch(HOROVOD_STALL_CHECK_DISABLE);
        let settings = Settings {
            fusion_threshold: self.number(HOROVOD_FUSION_THRESHOLD),
            cache_capacity: self.number(HOROVOD_CACHE_CAPACITY),
            stall_warning: self.limit(HOROVOD_STALL_CHECK_TIME_SECONDS).filter(|_| checks),
            stall_shutdown: self.limit(HOROVOD_STALL_SHUTDOWN_TIME_SECONDS).filter(|_| checks),
            autotune: self.autotune(),
            autotune_log: self.given(HOROVOD_AUTOTUNE_LOG),
            transport: self
                .choice(RONDE_TRANSPORT, &[("auto", Transport::Auto), ("tcp", Transport::Tcp)]),
            shared_ranks: Some(self.number(RONDE_SHARED_RANKS)).filter(|ranks| *ranks > 0),
            encryption: self.choice(
                RONDE_ENCRYPTION,
                &[("auto", Encryption::Auto), ("on", Encryption::On), ("off", Encryption::Off)],
            ),
            tuning: self.tuning(),
            bits: Bits::OfBuckets,
            arena: self.number(RONDE_ARENA),
            join_timeout: self.seconds(RONDE_JOIN_TIMEOUT_SECONDS),
            watching: self.watching(),
        };
        match self.switch(RONDE_REPRODUCIBLE) {
            true => settings.reproducible(),
            false => settings,
        }
    }

    fn watching(&mut self) -> Watching {
        let marks = self.switch(HOROVOD_TIMELINE_MARK_CYCLES);
        let cycles = if marks { Cycles::Marked } else { Cycles::Unmarked };
        let timeline = self.given(HOROVOD_TIMELINE).map(|path| TimelineRequest {
            path: (!path.eq_ignore_ascii_case("dynamic")).then(|| path.into()),
            cycles,
        });
        let dump = match self.given(RONDE_FLIGHT_RECORDER_DIR).as_deref() {
            None => DumpTo::Temporary,
            Some("stderr") => DumpTo::Stderr,
            Some("off") => DumpTo::Nowhere,
            Some(directory) => DumpTo::Directory(directory.into()),
        };
        let metrics = self.given(RONDE_METRICS);
        let metrics = metrics.and_then(|text| self.or_record(MetricsAt::parse(&text)));
        let records = self.number::<usize>(RONDE_FLIGHT_RECORDER).min(MOST_RECORDS);
        Watching { timeline, records, dump, metrics }
    }

    /// Leaves out the parameters that the user has set.
    fn autotune(&mut self) -> Option<autotune::AutotuneOptions> {
        let setting = |parameter: &Parameter| match parameter {
            Parameter::FusionThreshold => HOROVOD_FUSION_THRESHOLD,
            Parameter::Connections | Parameter::Halving => RONDE_TUNING,
        };
        let mut parameters = Parameter::OVER_SOCKETS.to_vec();
        parameters.retain(|parameter| self.given(setting(parameter)).is_none());
        if self.switch(RONDE_REPRODUCIBLE) {
            parameters.retain(|parameter| *parameter != Parameter::Halving);
        }
        let options = autotune::AutotuneOptions {
            parameters,
            warmup_samples: self.number(HOROVOD_AUTOTUNE_WARMUP_SAMPLES),
            steps_per_sample: self.number(HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE),
            most_points: self.number(HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES),
        };
        self.switch(HOROVOD_AUTOTUNE).then_some(options)
    }

    /// The lookup function has already replaced a file name with the content of the file.
    fn tuning(&mut self) -> Tuning {
        let tuning = Tuning::parse(&self.text(RONDE_TUNING)).map_err(|errors| {
            let errors = errors.join("; ");
            format!("RONDE_TUNING is neither a readable file nor `name=number,...`: {errors}")
        });
        self.or_record(tuning).unwrap_or_default()
    }

    fn place(&mut self) -> RankInfo {
        let place = RankInfo {
            rank: Rank(self.number(HOROVOD_RANK)),
            size: self.number(HOROVOD_SIZE),
            local_rank: self.number(HOROVOD_LOCAL_RANK),
            local_size: self.number(HOROVOD_LOCAL_SIZE),
            cross_rank: self.number(HOROVOD_CROSS_RANK),
            cross_size: self.number(HOROVOD_CROSS_SIZE),
            host: self.text(HOROVOD_HOSTNAME),
            rendezvous_info: None,
        };
        if place.rank.0 >= place.size {
            let RankInfo { rank, size, .. } = &place;
            self.errors.push(format!(
                "HOROVOD_RANK is `{}` and HOROVOD_SIZE is `{size}`: the rank must be less than the size",
                rank.0
            ));
        }
        // Even a single rank of an elastic job must learn about new ranks.
        let keeper = match self.growth() {
            Growth::Elastic(worker) => RendezvousOwner::Elastic(worker),
            Growth::Never | Growth::Declared => RendezvousOwner::Launcher,
        };
        let needs_rendezvous = place.size > 1 || keeper != RendezvousOwner::Launcher;
        RankInfo {
            rendezvous_info: if needs_rendezvous { self.rendezvous_info(keeper) } else { None },
            ..place
        }
    }

    fn growth(&mut self) -> Growth {
        match self.switch(HOROVOD_ELASTIC) {
            false => Growth::Never,
            true if self.given(RONDE_WORKER).is_none() => Growth::Declared,
            true => Growth::Elastic(Worker(self.number(RONDE_WORKER))),
        }
    }

    fn rendezvous_info(&mut self, keeper: RendezvousOwner) -> Option<RendezvousInfo> {
        if self.given(RONDE_RENDEZVOUS).is_none() {
            self.errors.push(
                "HOROVOD_SIZE asks for several ranks, but RONDE_RENDEZVOUS, where they connect, is not \
                 set: start the script with `horovodrun -np N python ...`"
                    .into(),
            );
            return None;
        }
        let addresses = self.addresses(RONDE_RENDEZVOUS);
        let listen = self.addresses(RONDE_ADDRESSES);
        let ports = self.ports();
        let key = JobKey::from_hex(&self.text(RONDE_JOB_KEY));
        let key = self.or_record(key.map_err(|error| format!("RONDE_JOB_KEY: {error}")))?;
        Some(RendezvousInfo { addresses, key, listen, ports, keeper })
    }

    fn ports(&mut self) -> PortRange {
        let ports = self.text(RONDE_PORT_RANGE).parse::<PortRange>();
        let name = RONDE_PORT_RANGE.name;
        self.or_record(ports.map_err(|error| format!("{name} contains {error}")))
            .unwrap_or_default()
    }

    fn host_network(&mut self) -> HostNetwork {
        HostNetwork { ports: self.ports(), advertised: self.addresses(RONDE_ADVERTISE) }
    }

    fn addresses<A: FromStr>(&mut self, setting: &Setting) -> Vec<A> {
        let text = self.given(setting);
        let parts = text.iter().flat_map(|text| text.split(','));
        let address = |part: &str| {
            self.or_record(part.trim().parse().map_err(|_| {
                format!("{} contains `{part}`, which is not an address", setting.name)
            }))
        };
        parts.filter_map(address).collect()
    }

    /// The value that was read; an error is recorded.
    fn or_record<T>(&mut self, read: Result<T, String>) -> Option<T> {
        read.map_err(|error| self.errors.push(error)).ok()
    }

    /// The value that the user has set; an empty one counts as not set.
    fn given(&self, setting: &Setting) -> Option<String> {
        (self.look_up)(setting.name).filter(|text| !text.is_empty())
    }

    fn text(&self, setting: &Setting) -> String {
        self.given(setting).unwrap_or_else(|| setting.default.into())
    }

    /// One of several words; an invalid one is recorded as an error and read as the first choice.
    fn choice<T: Copy>(&mut self, setting: &Setting, choices: &[(&str, T)]) -> T {
        let text = self.text(setting).to_ascii_lowercase();
        let found = choices.iter().find(|(word, _)| *word == text);
        let choice = found.ok_or_else(|| {
            let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
            let (last, others) = words.split_last().expect("at least one choice");
            format!("{} is `{text}`, but must be {} or {last}", setting.name, others.join(", "))
        });
        self.or_record(choice).unwrap_or(&choices[0]).1
    }

    fn number<N: TryFrom<u64> + Default>(&mut self, setting: &Setting) -> N {
        let text = self.text(setting);
        let number = match text.trim().parse::<u64>() {
            Ok(number) => N::try_from(number).map_err(|_| "which is too large".to_owned()),
            Err(_) => Err(format!("but must be {}", setting.unit.must_be(&text))),
        };
        let number = number.map_err(|wrong| format!("{} is `{text}`, {wrong}", setting.name));
        self.or_record(number).unwrap_or_default()
    }

    /// A TCP port.
    fn port(&mut self, setting: &Setting) -> u16 {
        let port = self.number(setting);
        if port == 0 {
            self.errors.push(format!("{} must be a port from 1 to 65535", setting.name));
        }
        port
    }

    fn switch(&mut self, setting: &Setting) -> bool {
        self.number::<u64>(setting) > 0
    }

    fn seconds(&mut self, setting: &Setting) -> Duration {
        Duration::from_secs(self.number(setting))
    }

    /// A time limit in seconds; 0 means none.
    fn limit(&mut self, setting: &Setting) -> Option<Duration> {
        Some(self.seconds(setting)).filter(|limit| !limit.is_zero())
    }
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
        assert_eq!((place.rank, place.size, place.rendezvous_info), (Rank(0), 1, None));
        assert_eq!(settings.fusion_threshold, 128 << 20);
        assert_eq!(settings.stall_warning, Some(Duration::from_secs(60)));
        assert_eq!(settings.stall_shutdown, None);
    }

    #[test]
    fn a_launched_rank_knows_its_rendezvous() {
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
        let rendezvous_info = place.rendezvous_info.unwrap();
        assert_eq!((rendezvous_info.addresses.len(), rendezvous_info.listen.len()), (2, 2));
        assert_eq!(
            (rendezvous_info.keeper, settings.transport),
            (RendezvousOwner::Launcher, Transport::Tcp)
        );
    }

    #[test]
    fn a_single_worker_of_an_elastic_job_has_a_rendezvous() {
        let key = "ab".repeat(32);
        let mut pairs = vec![
            ("HOROVOD_ELASTIC", "1"),
            ("RONDE_RENDEZVOUS", "127.0.0.1:9"),
            ("RONDE_JOB_KEY", key.as_str()),
        ];
        assert_eq!(growth(look_up(&pairs[1..])), Growth::Never);
        assert_eq!(growth(look_up(&pairs)), Growth::Declared);
        assert_eq!(
            read(look_up(&pairs)).unwrap().1.rendezvous_info,
            None,
            "not started as a worker"
        );
        pairs.push(("RONDE_WORKER", "7"));
        let rendezvous_info = read(look_up(&pairs)).unwrap().1.rendezvous_info.unwrap();
        assert_eq!(rendezvous_info.keeper, RendezvousOwner::Elastic(Worker(7)));
        assert_eq!(growth(look_up(&pairs)), Growth::Elastic(Worker(7)));
    }

    #[test]
    fn all_errors_are_reported_at_once_and_the_key_is_not_shown() {
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
            ("RONDE_PORT_RANGE", "9-8"),
        ];
        let BadSettings(errors) = read(look_up(&pairs)).unwrap_err();
        assert_eq!(errors.len(), 10, "{errors:?}");
        assert!(!errors.join(" ").contains("secret"));
    }

    #[test]
    fn the_launcher_reports_every_error_that_a_rank_would() {
        let pairs = [
            ("HOROVOD_FUSION_THRESHOLD", "64MB"),
            ("HOROVOD_START_TIMEOUT", "1m"),
            ("RONDE_TRANSPORT", "pigeon"),
            ("RONDE_METRICS", "0.0.0.0:9400"),
            ("RONDE_PORT_RANGE", "29600:29700"),
            ("RONDE_ADVERTISE", "10.0.0.1,node-a"),
            // The launcher does not check the place of a rank.
            ("HOROVOD_RANK", "7"),
        ];
        let BadSettings(errors) = launch(look_up(&pairs)).unwrap_err();
        assert_eq!(errors.len(), 6, "{errors:?}");
        let text =
            "HOROVOD_FUSION_THRESHOLD is `64MB`, but must be a number of bytes, here 67108864";
        assert!(errors.iter().any(|error| error == text), "{errors:?}");
        let usual = launch(|_| None).unwrap();
        assert_eq!((usual.start_timeout.as_secs(), usual.join_timeout.as_secs()), (30, 600));
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
        let fixed = autotune(&[on, ("RONDE_REPRODUCIBLE", "1")]).unwrap();
        assert_eq!(fixed.parameters, [Parameter::FusionThreshold, Parameter::Connections]);
    }

    #[test]
    fn reproducible_bits_leave_no_tensor_to_the_ring() {
        let pairs = [("RONDE_REPRODUCIBLE", "1"), ("RONDE_TUNING", "halving=0,connections=2")];
        let (settings, _) = read(look_up(&pairs)).unwrap();
        assert_eq!((settings.bits, settings.tuning.halving), (Bits::Reproducible, u64::MAX));
        assert_eq!(settings.tuning.connections, 2);
    }

    #[test]
    fn elastic_settings_have_defaults_and_are_checked() {
        let usual = elastic(|_| None).unwrap();
        assert_eq!(
            (usual.timeout, usual.cooldown_scope),
            (Duration::from_secs(600), CooldownScope::Host)
        );
        assert_eq!(usual.stopped, Some(Duration::from_secs(5)));
        assert_eq!(usual.leaving, Duration::from_secs(30));
        let pairs = [
            ("RONDE_BLACKLIST", "Slot"),
            ("RONDE_ELASTIC_STOPPED_SECONDS", "0"),
            ("RONDE_LEAVE_TIMEOUT_SECONDS", "110"),
        ];
        let set = elastic(look_up(&pairs)).unwrap();
        assert_eq!(set.leaving, Duration::from_secs(110));
        assert_eq!((set.cooldown_scope, set.stopped), (CooldownScope::Slot, None));
        let pairs = [("RONDE_BLACKLIST", "rack"), ("HOROVOD_ELASTIC_TIMEOUT", "long")];
        assert_eq!(elastic(look_up(&pairs)).unwrap_err().0.len(), 2);
    }

    #[test]
    fn several_ranks_without_a_launcher_get_a_hint() {
        let error = read(look_up(&[("HOROVOD_SIZE", "2")])).unwrap_err();
        assert!(error.to_string().contains("horovodrun -np"), "{error}");
    }
}
