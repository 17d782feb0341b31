//! The settings of a rank: their parsed form, and one [`table`] with name, default and meaning.
//!
//! Parsing takes a look-up function, so that nothing here reads the environment, and reports all
//! mistakes at once.

mod table;

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use crate::autotune::{self, Parameter};
use crate::job::CooldownScope;
use crate::watching::{Cycles, DumpTo, MetricsAt, TimelineRequest, Watching};
use crate::wire::JobKey;
use crate::{Rank, Tuning, Worker};
pub use table::*;

/// More tensors than these the flight recorder cannot remember; it takes its memory at the start.
const MOST_RECORDS: usize = 1 << 20;

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
    /// Never encrypt tensors.
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
    pub autotune: Option<autotune::AutotuneOptions>,
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
pub struct RankInfo {
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
    pub rendezvous_info: Option<RendezvousInfo>,
}

/// Where and with which key the ranks of a job meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RendezvousInfo {
    /// The rendezvous, by every address it has.
    pub addresses: Vec<SocketAddr>,
    /// The job's key.
    pub key: JobKey,
    /// The addresses of this host on which other hosts reach its ranks; none if they need not.
    pub listen: Vec<IpAddr>,
    /// Whose service it is.
    pub keeper: RendezvousOwner,
}

/// Who lets the ranks meet, and tells them of each other's death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RendezvousOwner {
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
pub fn read(look_up: impl Fn(&str) -> Option<String>) -> Result<(Settings, RankInfo), BadSettings> {
    read_all(look_up, |reader| (reader.settings(), reader.place()))
}

/// What the launcher of any job reads itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// How long hosts have to answer.
    pub start_timeout: Duration,
    /// How long a gathering of the ranks may take.
    pub join_timeout: Duration,
}

/// Reads what the launcher needs, and what its ranks will read: their mistakes are better told before
/// anything starts.
pub fn launch(look_up: impl Fn(&str) -> Option<String>) -> Result<Launch, BadSettings> {
    read_all(look_up, |reader| Launch {
        start_timeout: reader.seconds(HOROVOD_START_TIMEOUT),
        join_timeout: reader.settings().join_timeout,
    })
}

/// What the user set for an elastic job; only the launcher reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elasticity {
    /// How long to wait for enough ranks.
    pub timeout: Duration,
    /// What rests when a rank fails.
    pub cooldown_scope: CooldownScope,
    /// How long a rank may be stopped, unless it is for ever.
    pub stopped: Option<Duration>,
    /// The time between two runs of the discovery script.
    pub discovery_interval: Duration,
    /// How long that script may take.
    pub discovery_limit: Duration,
}

/// Reads what the user set for an elastic job.
pub fn elastic(look_up: impl Fn(&str) -> Option<String>) -> Result<Elasticity, BadSettings> {
    read_all(look_up, |reader| Elasticity {
        timeout: reader.seconds(HOROVOD_ELASTIC_TIMEOUT),
        cooldown_scope: reader.choice(
            RONDE_BLACKLIST,
            &[("host", CooldownScope::Host), ("slot", CooldownScope::Slot)],
        ),
        stopped: reader.limit(RONDE_ELASTIC_STOPPED_SECONDS),
        discovery_interval: reader.seconds(RONDE_DISCOVERY_INTERVAL_SECONDS),
        discovery_limit: reader.seconds(RONDE_DISCOVERY_TIMEOUT_SECONDS),
    })
}

/// After how long a stall ends the job, unless it is never; mistakes are the ranks' to report.
pub fn stall_shutdown(look_up: impl Fn(&str) -> Option<String>) -> Option<Duration> {
    Reader { look_up: &look_up, mistakes: Vec::new() }.settings().stall_shutdown
}

/// Reads only where the launcher's rendezvous is, which a world of one has no use for.
pub fn rendezvous_info(
    look_up: impl Fn(&str) -> Option<String>,
) -> Result<RendezvousInfo, BadSettings> {
    let rendezvous_info =
        read_all(look_up, |reader| reader.rendezvous_info(RendezvousOwner::Launcher))?;
    Ok(rendezvous_info.expect("where there is no meeting, there is a mistake"))
}

/// Reads where the caller of `horovod.run` is: the launcher, or whoever has had another launcher start
/// the ranks.
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
    /// It stays what it is.
    Never,
    /// The user says that it may, but no launcher has started this process as a worker.
    Declared,
    /// This process is a worker of an elastic job.
    Elastic(Worker),
}

/// Reads whether the number of ranks may change.
pub fn growth(look_up: impl Fn(&str) -> Option<String>) -> Growth {
    Reader { look_up: &look_up, mistakes: Vec::new() }.growth()
}

/// Reads something, or gives all mistakes that were found on the way.
fn read_all<T>(
    look_up: impl Fn(&str) -> Option<String>,
    read: impl FnOnce(&mut Reader<'_>) -> T,
) -> Result<T, BadSettings> {
    let mut reader = Reader { look_up: &look_up, mistakes: Vec::new() };
    let read = read(&mut reader);
    match reader.mistakes.is_empty() {
        true => Ok(read),
        false => Err(BadSettings(reader.mistakes)),
    }
}

struct Reader<'a> {
    look_up: &'a dyn Fn(&str) -> Option<String>,
    mistakes: Vec<String>,
}

impl Reader<'_> {
    fn settings(&mut self) -> Settings {
        let checks = !self.switch(HOROVOD_STALL_CHECK_DISABLE);
        Settings {
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
            arena: self.number(RONDE_ARENA),
            join_timeout: self.seconds(RONDE_JOIN_TIMEOUT_SECONDS),
            watching: self.watching(),
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
        let metrics = metrics.and_then(|text| self.noted(MetricsAt::parse(&text)));
        let records = self.number::<usize>(RONDE_FLIGHT_RECORDER).min(MOST_RECORDS);
        Watching { timeline, records, dump, metrics }
    }

    /// What the user has set stays as it is.
    fn autotune(&mut self) -> Option<autotune::AutotuneOptions> {
        let setting = |parameter: &Parameter| match parameter {
            Parameter::FusionThreshold => HOROVOD_FUSION_THRESHOLD,
            Parameter::Connections | Parameter::Halving => RONDE_TUNING,
        };
        let mut parameters = Parameter::OVER_SOCKETS.to_vec();
        parameters.retain(|parameter| self.given(setting(parameter)).is_none());
        let options = autotune::AutotuneOptions {
            parameters,
            warmup_samples: self.number(HOROVOD_AUTOTUNE_WARMUP_SAMPLES),
            steps_per_sample: self.number(HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE),
            most_points: self.number(HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES),
        };
        self.switch(HOROVOD_AUTOTUNE).then_some(options)
    }

    /// Whoever looks the variable up has put the content of the file in the place of its name.
    fn tuning(&mut self) -> Tuning {
        let tuning = Tuning::parse(&self.text(RONDE_TUNING)).map_err(|mistakes| {
            let mistakes = mistakes.join("; ");
            format!("RONDE_TUNING is neither a file that can be read nor numbers: {mistakes}")
        });
        self.noted(tuning).unwrap_or_default()
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
            self.mistakes.push(format!(
                "HOROVOD_RANK is `{}` and HOROVOD_SIZE is `{size}`: a rank lies below the size",
                rank.0
            ));
        }
        // In an elastic job even one rank alone must hear who comes.
        let keeper = match self.growth() {
            Growth::Elastic(worker) => RendezvousOwner::Elastic(worker),
            Growth::Never | Growth::Declared => RendezvousOwner::Launcher,
        };
        let meets = place.size > 1 || keeper != RendezvousOwner::Launcher;
        RankInfo {
            rendezvous_info: if meets { self.rendezvous_info(keeper) } else { None },
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
            self.mistakes.push(
                "HOROVOD_SIZE asks for several ranks but RONDE_RENDEZVOUS does not say where they \
                 meet: start the script with `horovodrun -np N python ...`"
                    .into(),
            );
            return None;
        }
        let addresses = self.addresses(RONDE_RENDEZVOUS);
        let listen = self.addresses(RONDE_ADDRESSES);
        let key = JobKey::from_hex(&self.text(RONDE_JOB_KEY));
        let key = self.noted(key.map_err(|error| format!("RONDE_JOB_KEY: {error}")))?;
        Some(RendezvousInfo { addresses, key, listen, keeper })
    }

    fn addresses<A: FromStr>(&mut self, setting: &Setting) -> Vec<A> {
        let text = self.given(setting);
        let parts = text.iter().flat_map(|text| text.split(','));
        let address = |part: &str| {
            self.noted(
                part.parse().map_err(|_| format!("{} has no address in `{part}`", setting.name)),
            )
        };
        parts.filter_map(address).collect()
    }

    /// What was read, unless it is a mistake, which is kept.
    fn noted<T>(&mut self, read: Result<T, String>) -> Option<T> {
        read.map_err(|mistake| self.mistakes.push(mistake)).ok()
    }

    /// What the user has set; empty is nothing.
    fn given(&self, setting: &Setting) -> Option<String> {
        (self.look_up)(setting.name).filter(|text| !text.is_empty())
    }

    fn text(&self, setting: &Setting) -> String {
        self.given(setting).unwrap_or_else(|| setting.default.into())
    }

    /// One of some words; the first in the place of a wrong one.
    fn choice<T: Copy>(&mut self, setting: &Setting, choices: &[(&str, T)]) -> T {
        let text = self.text(setting).to_ascii_lowercase();
        let found = choices.iter().find(|(word, _)| *word == text);
        let choice = found.ok_or_else(|| {
            let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
            let (last, others) = words.split_last().expect("there is a choice");
            format!("{} is `{text}`, it must be {} or {last}", setting.name, others.join(", "))
        });
        self.noted(choice).unwrap_or(&choices[0]).1
    }

    fn number<N: TryFrom<u64> + Default>(&mut self, setting: &Setting) -> N {
        let text = self.text(setting);
        let number = match text.trim().parse::<u64>() {
            Ok(number) => N::try_from(number).map_err(|_| "which is too large".to_owned()),
            Err(_) => Err(format!("it must be {}", setting.unit.must_be(&text))),
        };
        let number = number.map_err(|wrong| format!("{} is `{text}`, {wrong}", setting.name));
        self.noted(number).unwrap_or_default()
    }

    fn switch(&mut self, setting: &Setting) -> bool {
        self.number::<u64>(setting) > 0
    }

    fn seconds(&mut self, setting: &Setting) -> Duration {
        Duration::from_secs(self.number(setting))
    }

    /// Seconds of which 0 means never.
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
        let rendezvous_info = place.rendezvous_info.unwrap();
        assert_eq!((rendezvous_info.addresses.len(), rendezvous_info.listen.len()), (2, 2));
        assert_eq!(
            (rendezvous_info.keeper, settings.transport),
            (RendezvousOwner::Launcher, Transport::Tcp)
        );
    }

    #[test]
    fn a_worker_of_an_elastic_job_meets_the_launcher_even_alone() {
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
            "nobody calls it a worker"
        );
        pairs.push(("RONDE_WORKER", "7"));
        let rendezvous_info = read(look_up(&pairs)).unwrap().1.rendezvous_info.unwrap();
        assert_eq!(rendezvous_info.keeper, RendezvousOwner::Elastic(Worker(7)));
        assert_eq!(growth(look_up(&pairs)), Growth::Elastic(Worker(7)));
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
    fn the_launcher_knows_every_mistake_that_a_rank_would_refuse() {
        let pairs = [
            ("HOROVOD_FUSION_THRESHOLD", "64MB"),
            ("HOROVOD_START_TIMEOUT", "1m"),
            ("RONDE_TRANSPORT", "pigeon"),
            ("RONDE_METRICS", "0.0.0.0:9400"),
            // Where it is in the job is the business of each rank.
            ("HOROVOD_RANK", "7"),
        ];
        let BadSettings(mistakes) = launch(look_up(&pairs)).unwrap_err();
        assert_eq!(mistakes.len(), 4, "{mistakes:?}");
        let text =
            "HOROVOD_FUSION_THRESHOLD is `64MB`, it must be a number of bytes, here 67108864";
        assert!(mistakes.iter().any(|mistake| mistake == text), "{mistakes:?}");
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
    }

    #[test]
    fn an_elastic_job_is_set_like_everything_else() {
        let usual = elastic(|_| None).unwrap();
        assert_eq!(
            (usual.timeout, usual.cooldown_scope),
            (Duration::from_secs(600), CooldownScope::Host)
        );
        assert_eq!(usual.stopped, Some(Duration::from_secs(5)));
        let pairs = [("RONDE_BLACKLIST", "Slot"), ("RONDE_ELASTIC_STOPPED_SECONDS", "0")];
        let set = elastic(look_up(&pairs)).unwrap();
        assert_eq!((set.cooldown_scope, set.stopped), (CooldownScope::Slot, None));
        let pairs = [("RONDE_BLACKLIST", "rack"), ("HOROVOD_ELASTIC_TIMEOUT", "long")];
        assert_eq!(elastic(look_up(&pairs)).unwrap_err().0.len(), 2);
    }

    #[test]
    fn several_ranks_without_a_launcher_say_how_to_start() {
        let error = read(look_up(&[("HOROVOD_SIZE", "2")])).unwrap_err();
        assert!(error.to_string().contains("horovodrun -np"), "{error}");
    }
}
