//! The options of elastic jobs, and the job specification that follows from them.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use ronde_control::event::JobKind;
use ronde_control::job::JobSpec;
use ronde_control::settings;
use ronde_launch::hosts::{self, Host, HostsError};
use ronde_launch::reach::{ReachMethod, ReachOptions};
use ronde_launch::source::{DialedIn, HostSource, Script};

use crate::horovodrun::about_hosts;
use crate::messages::{UserError, both, print_stderr};

/// Maximum cooldown of a failed host, in seconds, as in Horovod.
const LONGEST_COOLDOWN: u64 = 3600;

/// The options of `horovodrun` for elastic jobs.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Elastic {
    min_np: Option<u32>,
    max_np: Option<u32>,
    #[arg(conflicts_with_all = ["hosts", "hostfile"])]
    host_discovery_script: Option<OsString>,
    slots_per_host: Option<u32>,
    elastic_timeout: Option<u64>,
    reset_limit: Option<u32>,
    blacklist_cooldown_range: Option<Vec<u64>>,
}

/// The hosts of a job, unless a script lists them.
pub(crate) enum HostList {
    /// Hosts named by the user, if any.
    Hosts(Option<Vec<Host>>),
    /// Hosts whose agents dial in.
    Agents(DialedIn),
    /// Hosts with standing agents, which have said how many slots they have.
    Reached(Vec<(Host, ReachMethod)>),
}

impl HostList {
    /// Minimum number of hosts before the job starts.
    fn least(&self) -> u32 {
        match self {
            HostList::Hosts(_) | HostList::Reached(_) => 1,
            HostList::Agents(agents) => agents.agents,
        }
    }
}

impl Elastic {
    /// Whether the job is elastic.
    pub(crate) fn is_wanted(&self) -> bool {
        self.min_np.is_some() || self.host_discovery_script.is_some()
    }

    /// Whether a script lists the hosts.
    pub(crate) fn discovers(&self) -> bool {
        self.host_discovery_script.is_some()
    }

    /// Warns about options that only have an effect in an elastic job.
    pub(crate) fn warn(&self) {
        for (flag, given) in [
            ("--max-np", self.max_np.is_some()),
            ("--slots-per-host", self.slots_per_host.is_some()),
            ("--elastic-timeout", self.elastic_timeout.is_some()),
            ("--reset-limit", self.reset_limit.is_some()),
            ("--blacklist-cooldown-range", self.blacklist_cooldown_range.is_some()),
        ] {
            if given {
                let text = format!(
                    "warning: `{flag}` has no effect without `--min-np` or `--host-discovery-script`"
                );
                print_stderr(&text);
            }
        }
    }

    /// The job's specification and hosts: `count` is the value of `-np`, `named` the hosts that
    /// were named or the agents that dial in, `joining` how long a worker may take to join.
    pub(crate) fn job_spec(
        &self,
        count: Option<u32>,
        named: HostList,
        reach: ReachOptions,
        joining: Duration,
    ) -> Result<(JobSpec, HostSource), UserError> {
        let set = settings::elastic(|name| std::env::var(name).ok()).map_err(UserError::from);
        let (set, (start, min)) = both(set, self.numbers(count))?;
        let least_hosts = named.least();
        let hosts = match (&self.host_discovery_script, named) {
            (_, HostList::Agents(agents)) => HostSource::DialedIn(agents),
            (Some(command), _) => {
                let (command, slots) = (command.clone(), self.slots_per_host);
                let (interval, limit) = (set.discovery_interval, set.discovery_limit);
                HostSource::Script(Script { command, slots, interval, limit }, reach)
            }
            (None, HostList::Hosts(listed)) => {
                let hosts =
                    listed.unwrap_or_else(|| vec![Host::local(self.max_np.unwrap_or(start))]);
                require(&hosts, start)?;
                HostSource::Listed(hosts::reached(hosts, &hosts::hostname(), &reach))
            }
            (None, HostList::Reached(hosts)) => {
                let listed: Vec<Host> = hosts.iter().map(|(host, _)| host.clone()).collect();
                require(&listed, start)?;
                HostSource::Listed(hosts)
            }
        };
        let job_spec = JobSpec {
            kind: JobKind::Elastic,
            source: hosts.kind(),
            start,
            min,
            max: self.max_np,
            least_hosts,
            timeout: self.elastic_timeout.map_or(set.timeout, Duration::from_secs),
            joining,
            stopped: set.stopped,
            leaving: set.leaving,
            resets: self.reset_limit,
            cooldown: self.cooldown()?,
            cooldown_scope: set.cooldown_scope,
        };
        Ok((job_spec, hosts))
    }

    /// How many processes to start with, and the minimum to go on with.
    fn numbers(&self, count: Option<u32>) -> Result<(u32, u32), UserError> {
        let example = "for example: `horovodrun -np 4 --min-np 2 --max-np 8 ...`";
        let Some(start) = count.or(self.min_np) else {
            let error = "the number of processes was not given: use `-np <N>` or `--min-np <N>`";
            return Err(UserError::new(error, example));
        };
        let min = self.min_np.unwrap_or(start);
        let mut errors = Vec::new();
        if min > start {
            errors.push(format!("`--min-np {min}` is greater than `-np {start}`"));
        }
        if let Some(max) = self.max_np.filter(|max| *max < start) {
            let flag = if count.is_some() { "-np" } else { "--min-np" };
            errors.push(format!("`{flag} {start}` is more than `--max-np {max}` allows"));
        }
        match errors.is_empty() {
            true => Ok((start, min)),
            false => Err(UserError { errors, hint: example.into() }),
        }
    }

    fn cooldown(&self) -> Result<Option<(Duration, Duration)>, UserError> {
        let Some([min, max]) = self.blacklist_cooldown_range.as_deref() else { return Ok(None) };
        if *min >= 1 && min <= max && *max <= LONGEST_COOLDOWN {
            return Ok(Some((Duration::from_secs(*min), Duration::from_secs(*max))));
        }
        Err(UserError::new(
            format!(
                "`--blacklist-cooldown-range {min} {max}` must be two numbers of seconds from 1 to \
                 {LONGEST_COOLDOWN}, the smaller one first"
            ),
            "for example: `--blacklist-cooldown-range 10 60`",
        ))
    }
}

/// A fixed list of hosts cannot grow, so it must have enough slots from the start.
fn require(hosts: &[Host], requested: u32) -> Result<(), UserError> {
    let available = hosts.iter().fold(0u32, |sum, host| sum.saturating_add(host.slots));
    match requested > available {
        true => Err(about_hosts(&HostsError::TooFew { requested, available })),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use ronde_control::event::HostSourceKind;

    use super::*;

    fn listed(text: &str) -> Option<Vec<Host>> {
        Some(hosts::parse(text).unwrap())
    }

    fn job_spec(
        flags: &Elastic,
        count: Option<u32>,
        hosts: Option<Vec<Host>>,
    ) -> Result<JobSpec, String> {
        let (named, limit) = (HostList::Hosts(hosts), Duration::from_secs(600));
        let job_spec = flags.job_spec(count, named, ReachOptions::default(), limit);
        job_spec.map(|(job_spec, _)| job_spec).map_err(|error| error.errors.join("; "))
    }

    #[test]
    fn missing_numbers_are_derived_from_the_given_ones() {
        for (np, min, max, expected) in [
            (None, Some(2), None, (2, 2, None)),
            (Some(4), Some(2), None, (4, 2, None)),
            (Some(4), Some(2), Some(8), (4, 2, Some(8))),
        ] {
            let flags = Elastic { min_np: min, max_np: max, ..Elastic::default() };
            let it = job_spec(&flags, np, listed("localhost:8")).unwrap();
            assert_eq!((it.start, it.min, it.max), expected);
        }
        let script = Elastic { host_discovery_script: Some("x".into()), ..Elastic::default() };
        let it = job_spec(&script, Some(3), None).unwrap();
        assert_eq!((it.start, it.min, it.source), (3, 3, HostSourceKind::Script));
        assert!(job_spec(&script, None, None).unwrap_err().contains("`-np <N>` or `--min-np <N>`"));
    }

    #[test]
    fn contradicting_numbers_are_reported_all_at_once() {
        let flags = Elastic { min_np: Some(5), max_np: Some(3), ..Elastic::default() };
        assert_eq!(
            job_spec(&flags, Some(4), None).unwrap_err(),
            "`--min-np 5` is greater than `-np 4`; `-np 4` is more than `--max-np 3` \
             allows"
        );
        let flags = Elastic { min_np: Some(5), ..Elastic::default() };
        let text = "Requested more processes (5) than there are available slots (4)";
        assert_eq!(job_spec(&flags, None, listed("a:2,b:2")).unwrap_err(), text);
    }

    #[test]
    fn a_cooldown_is_between_a_second_and_an_hour() {
        let flags = |range: [u64; 2]| Elastic {
            min_np: Some(1),
            blacklist_cooldown_range: Some(range.to_vec()),
            ..Elastic::default()
        };
        let it = job_spec(&flags([10, 60]), None, None).unwrap();
        assert_eq!(it.cooldown, Some((Duration::from_secs(10), Duration::from_secs(60))));
        for range in [[0, 60], [60, 10], [1, 3601]] {
            let error = job_spec(&flags(range), None, None).unwrap_err();
            assert!(error.contains("from 1 to 3600"), "{error}");
        }
    }
}
