//! Detects which launcher started this process, if it was not `horovodrun`.
//!
//! Every launcher sets its own variables to tell processes their rank; one table lists them all.
//! Detection does no I/O: it takes a look-up function and returns this process's place in the job,
//! or an error that names what is missing. [`rendezvous_method`] decides how the ranks of such a
//! job find each other.
//!
//! Launchers nest: `srun` may start `mpirun`, and either may start `torchrun`. The innermost one
//! counts, so the table lists first the launchers that are usually innermost.

mod invitation;
mod rendezvous_method;

pub use invitation::Invitation;
pub use rendezvous_method::{RendezvousMethod, rendezvous_method};

use std::net::IpAddr;

use strum::{Display, IntoStaticStr};

use crate::Rank;
use crate::settings::{BadSettings, HOROVOD_RANK, HOROVOD_SIZE, HostNetwork, host_network};

/// A launcher, by its usual name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Display, IntoStaticStr)]
pub enum LauncherKind {
    /// PyTorch's launcher.
    #[strum(serialize = "torchrun")]
    Torchrun,
    /// `mpirun` of Open MPI or one of its derivatives.
    #[strum(serialize = "Open MPI")]
    OpenMpi,
    /// `mpirun` of MPICH, Intel MPI and related implementations.
    #[strum(serialize = "MPICH")]
    Mpich,
    /// Slurm's `srun`.
    Slurm,
    /// An indexed Job of Kubernetes.
    Kubernetes,
    /// Anything that sets the variables of torch.distributed: a script, an operator, a cloud
    /// service.
    #[strum(serialize = "torch.distributed's variables")]
    Variables,
    /// The program itself, which gave this process its rank.
    #[strum(serialize = "the program itself")]
    Program,
}

/// A process that another launcher has started, and its place in the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchedProcess {
    /// The launcher that started this process.
    pub launcher: LauncherKind,
    /// Its rank.
    pub rank: Rank,
    /// The number of processes.
    pub size: u32,
    /// Its number on its host; 0 if the launcher does not say.
    pub local_rank: u32,
    /// Whether the job is on one host.
    pub spread: Spread,
    /// Distinguishes this job from others that run at the same time, if the launcher says so.
    pub job: Option<String>,
    /// The host of rank 0, if the launcher says so.
    pub first_host: Option<String>,
    /// How its host can be reached.
    pub network: HostNetwork,
}

/// Whether the ranks of a job are on one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// All ranks are on this host.
    OneHost,
    /// The ranks may be on several hosts.
    Hosts,
}

/// The variables of one launcher. Where a field lists several names, the first that is set counts.
struct LauncherVariables {
    launcher: LauncherKind,
    /// The launcher is detected if all of these are set.
    signs: &'static [&'static str],
    rank: &'static [&'static str],
    size: &'static [&'static str],
    local_rank: &'static [&'static str],
    local_size: &'static [&'static str],
    hosts: &'static [&'static str],
    /// The values of those that are set, joined, identify the job.
    job: &'static [&'static str],
}

const TABLE: &[LauncherVariables] = &[
    LauncherVariables {
        launcher: LauncherKind::Torchrun,
        signs: &["TORCHELASTIC_RUN_ID"],
        rank: &["RANK"],
        size: &["WORLD_SIZE"],
        local_rank: &["LOCAL_RANK"],
        local_size: &["LOCAL_WORLD_SIZE"],
        hosts: &["GROUP_WORLD_SIZE"],
        // A restarted group of workers is a different job: its rank 0 is a different process.
        job: &["TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"],
    },
    LauncherVariables {
        launcher: LauncherKind::OpenMpi,
        signs: &["OMPI_COMM_WORLD_RANK"],
        rank: &["OMPI_COMM_WORLD_RANK"],
        size: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_size: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        hosts: &[],
        job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
    },
    LauncherVariables {
        launcher: LauncherKind::Mpich,
        signs: &["PMI_RANK"],
        rank: &["PMI_RANK"],
        size: &["PMI_SIZE"],
        local_rank: &["MPI_LOCALRANKID", "PMI_LOCAL_RANK"],
        local_size: &["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"],
        hosts: &[],
        job: &["PMI_JOBID"],
    },
    // A batch script has a SLURM_PROCID too; only what `srun` starts is a step.
    LauncherVariables {
        launcher: LauncherKind::Slurm,
        signs: &["SLURM_PROCID", "SLURM_STEP_ID"],
        rank: &["SLURM_PROCID"],
        size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"],
        local_rank: &["SLURM_LOCALID"],
        local_size: &[],
        hosts: &["SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"],
        job: &["SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"],
    },
    // Pods of an indexed Job may be independent of each other; a size shows that they are not.
    LauncherVariables {
        launcher: LauncherKind::Kubernetes,
        signs: &["JOB_COMPLETION_INDEX", "WORLD_SIZE"],
        rank: &["JOB_COMPLETION_INDEX"],
        size: &["WORLD_SIZE"],
        local_rank: &[],
        local_size: &[],
        hosts: &[],
        job: &["MASTER_ADDR", "MASTER_PORT"],
    },
    LauncherVariables {
        launcher: LauncherKind::Variables,
        signs: &["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"],
        rank: &["RANK"],
        size: &["WORLD_SIZE"],
        local_rank: &["LOCAL_RANK"],
        local_size: &["LOCAL_WORLD_SIZE"],
        hosts: &[],
        job: &["MASTER_ADDR", "MASTER_PORT"],
    },
];

/// This process's place in the job, if a launcher other than `horovodrun` started it.
pub fn detect(
    look_up: impl Fn(&str) -> Option<String>,
) -> Result<Option<LaunchedProcess>, BadSettings> {
    let look_up = |name: &str| look_up(name).filter(|text| !text.is_empty());
    if look_up(HOROVOD_RANK.name).is_some() || look_up(HOROVOD_SIZE.name).is_some() {
        return Ok(None);
    }
    let is_there = |row: &&LauncherVariables| row.signs.iter().all(|sign| look_up(sign).is_some());
    match TABLE.iter().find(is_there) {
        Some(row) => row.read(&look_up).map(Some),
        None => Ok(None),
    }
}

impl LauncherVariables {
    fn read(
        &self,
        look_up: &dyn Fn(&str) -> Option<String>,
    ) -> Result<LaunchedProcess, BadSettings> {
        let mut errors = Vec::new();
        let by = format!("this process was started by {}", self.launcher);
        let mut needed = |names: &[&str]| match first(names, look_up) {
            Some((name, text)) => text.trim().parse::<u32>().unwrap_or_else(|_| {
                errors.push(format!("{by}, but {name} is `{text}`, which is not a number"));
                0
            }),
            None => {
                errors.push(format!("{by}, but {} is not set", names.join(" or ")));
                0
            }
        };
        let (rank, size) = (needed(self.rank), needed(self.size));
        if errors.is_empty() && rank >= size {
            let (rank_name, size_name) = (self.rank[0], self.size[0]);
            errors.push(format!(
                "{by}, but {rank_name} is `{rank}` and {size_name} is `{size}`: the rank must be \
                 less than the size"
            ));
        }
        if !errors.is_empty() {
            return Err(BadSettings(errors));
        }
        let number = |names: &[&str]| {
            first(names, look_up).and_then(|(_, text)| text.trim().parse::<u32>().ok())
        };
        let nodes = match self.launcher {
            LauncherKind::Slurm => first(&["SLURM_STEP_NODELIST", "SLURM_NODELIST"], look_up),
            _ => None,
        };
        let first_host =
            look_up("MASTER_ADDR").or_else(|| nodes.and_then(|(_, list)| first_node(&list)));
        // If all ranks are to find rank 0 at the loopback address, all are on its host.
        let near = self.job.contains(&"MASTER_ADDR") && first_host.as_deref().is_some_and(is_here);
        let alone = number(self.local_size) == Some(size) || number(self.hosts) == Some(1) || near;
        let job: Vec<String> = self.job.iter().filter_map(|name| look_up(name)).collect();
        Ok(LaunchedProcess {
            launcher: self.launcher,
            rank: Rank(rank),
            size,
            local_rank: number(self.local_rank).unwrap_or(0),
            spread: if alone { Spread::OneHost } else { Spread::Hosts },
            job: (!job.is_empty()).then(|| job.join("-")),
            first_host,
            network: host_network(look_up)?,
        })
    }
}

fn is_here(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn first<'a>(
    names: &[&'a str],
    look_up: &dyn Fn(&str) -> Option<String>,
) -> Option<(&'a str, String)> {
    names.iter().find_map(|name| look_up(name).map(|text| (*name, text)))
}

/// The first host of a Slurm host list: `node03-ib` for `node[03-05,9]-ib,other`.
fn first_node(list: &str) -> Option<String> {
    let (prefix, rest) = list.split_at(list.find(['[', ',']).unwrap_or(list.len()));
    let Some(rest) = rest.strip_prefix('[') else {
        return Some(prefix.to_owned()).filter(|name| !name.is_empty());
    };
    let (numbers, after) = rest.split_once(']')?;
    let number = numbers.split(['-', ',']).next()?;
    let suffix = after.split(',').next().unwrap_or_default();
    Some(format!("{prefix}{number}{suffix}"))
}

#[cfg(test)]
mod tests;
