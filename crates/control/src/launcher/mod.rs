//! Which launcher has started this process, when it was not `horovodrun`.
//!
//! Every launcher tells its processes who they are by variables of its own; one table here knows them.
//! Reading it is a decision without I/O: from a look-up to who this process is, or to words that name
//! what is missing. How the ranks of such a job find each other is decided in [`way`].
//!
//! Launchers nest: `srun` may start `mpirun`, and either may start `torchrun`. The table is ordered
//! from the one that usually stands innermost, whose word counts.

mod invitation;
mod way;

pub use invitation::Invitation;
pub use way::{Way, way};

use std::net::IpAddr;

use strum::{Display, IntoStaticStr};

use crate::Rank;
use crate::settings::BadSettings;

/// Who starts processes, by the name that people call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Display, IntoStaticStr)]
pub enum Launcher {
    /// PyTorch's own.
    #[strum(serialize = "torchrun")]
    Torchrun,
    /// `mpirun` of Open MPI or of what is made from it.
    #[strum(serialize = "Open MPI")]
    OpenMpi,
    /// `mpirun` of MPICH, Intel MPI and others of their family.
    #[strum(serialize = "MPICH")]
    Mpich,
    /// `srun`.
    Slurm,
    /// An indexed Job.
    Kubernetes,
    /// Whoever sets the variables of torch.distributed: a script, an operator, a cloud.
    #[strum(serialize = "torch.distributed's variables")]
    Variables,
}

/// A process of a job that another launcher has started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// By whom.
    pub launcher: Launcher,
    /// This process among all.
    pub rank: Rank,
    /// The number of processes.
    pub size: u32,
    /// This process among those of its host, if the launcher says so.
    pub local_rank: u32,
    /// Where the others are.
    pub spread: Spread,
    /// What tells this job from all others that run at the same time, if the launcher says so.
    pub job: Option<String>,
    /// The host of rank 0, if the launcher says so.
    pub first_host: Option<String>,
}

/// Where the ranks of a job are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// All on this host.
    OneHost,
    /// Perhaps on several.
    Hosts,
}

/// The variables of one launcher. Of several names for one thing, the first that is set counts.
struct Variables {
    launcher: Launcher,
    /// All of these must be set for the launcher to count.
    signs: &'static [&'static str],
    rank: &'static [&'static str],
    size: &'static [&'static str],
    local_rank: &'static [&'static str],
    local_size: &'static [&'static str],
    hosts: &'static [&'static str],
    /// What is set of these, put together, names the job.
    job: &'static [&'static str],
}

const TABLE: &[Variables] = &[
    Variables {
        launcher: Launcher::Torchrun,
        signs: &["TORCHELASTIC_RUN_ID"],
        rank: &["RANK"],
        size: &["WORLD_SIZE"],
        local_rank: &["LOCAL_RANK"],
        local_size: &["LOCAL_WORLD_SIZE"],
        hosts: &["GROUP_WORLD_SIZE"],
        // A restarted group of workers is another job: its rank 0 is another process.
        job: &["TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"],
    },
    Variables {
        launcher: Launcher::OpenMpi,
        signs: &["OMPI_COMM_WORLD_RANK"],
        rank: &["OMPI_COMM_WORLD_RANK"],
        size: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_size: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        hosts: &[],
        job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
    },
    Variables {
        launcher: Launcher::Mpich,
        signs: &["PMI_RANK"],
        rank: &["PMI_RANK"],
        size: &["PMI_SIZE"],
        local_rank: &["MPI_LOCALRANKID", "PMI_LOCAL_RANK"],
        local_size: &["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"],
        hosts: &[],
        job: &["PMI_JOBID"],
    },
    // A batch script has a SLURM_PROCID too; only what `srun` starts is a step.
    Variables {
        launcher: Launcher::Slurm,
        signs: &["SLURM_PROCID", "SLURM_STEP_ID"],
        rank: &["SLURM_PROCID"],
        size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"],
        local_rank: &["SLURM_LOCALID"],
        local_size: &[],
        hosts: &["SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"],
        job: &["SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"],
    },
    // The pods of an indexed Job need not belong together; a size says that they do.
    Variables {
        launcher: Launcher::Kubernetes,
        signs: &["JOB_COMPLETION_INDEX", "WORLD_SIZE"],
        rank: &["JOB_COMPLETION_INDEX"],
        size: &["WORLD_SIZE"],
        local_rank: &[],
        local_size: &[],
        hosts: &[],
        job: &["MASTER_ADDR", "MASTER_PORT"],
    },
    Variables {
        launcher: Launcher::Variables,
        signs: &["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"],
        rank: &["RANK"],
        size: &["WORLD_SIZE"],
        local_rank: &["LOCAL_RANK"],
        local_size: &["LOCAL_WORLD_SIZE"],
        hosts: &[],
        job: &["MASTER_ADDR", "MASTER_PORT"],
    },
];

/// Who this process is, if another launcher than `horovodrun` has started it.
pub fn detect(look_up: impl Fn(&str) -> Option<String>) -> Result<Option<Started>, BadSettings> {
    let look_up = |name: &str| look_up(name).filter(|text| !text.is_empty());
    if look_up("HOROVOD_RANK").is_some() || look_up("HOROVOD_SIZE").is_some() {
        return Ok(None);
    }
    let is_there = |row: &&Variables| row.signs.iter().all(|sign| look_up(sign).is_some());
    match TABLE.iter().find(is_there) {
        Some(row) => row.read(&look_up).map(Some),
        None => Ok(None),
    }
}

impl Variables {
    fn read(&self, look_up: &dyn Fn(&str) -> Option<String>) -> Result<Started, BadSettings> {
        let mut mistakes = Vec::new();
        let by = format!("this process was started by {}", self.launcher);
        let mut needed = |names: &[&str]| match first(names, look_up) {
            Some((name, text)) => text.trim().parse::<u32>().unwrap_or_else(|_| {
                mistakes.push(format!("{by}, but {name} is `{text}`, which is no number"));
                0
            }),
            None => {
                mistakes.push(format!("{by}, but {} is not set", names.join(" or ")));
                0
            }
        };
        let (rank, size) = (needed(self.rank), needed(self.size));
        if mistakes.is_empty() && rank >= size {
            let (rank_name, size_name) = (self.rank[0], self.size[0]);
            mistakes.push(format!(
                "{by}, but {rank_name} is `{rank}` and {size_name} is `{size}`: a rank lies below \
                 the size"
            ));
        }
        if !mistakes.is_empty() {
            return Err(BadSettings(mistakes));
        }
        let number = |names: &[&str]| {
            first(names, look_up).and_then(|(_, text)| text.trim().parse::<u32>().ok())
        };
        let nodes = match self.launcher {
            Launcher::Slurm => first(&["SLURM_STEP_NODELIST", "SLURM_NODELIST"], look_up),
            _ => None,
        };
        let first_host =
            look_up("MASTER_ADDR").or_else(|| nodes.and_then(|(_, list)| first_node(&list)));
        // Where all must find rank 0 at the loopback address, all are on its host.
        let near = self.job.contains(&"MASTER_ADDR") && first_host.as_deref().is_some_and(is_here);
        let alone = number(self.local_size) == Some(size) || number(self.hosts) == Some(1) || near;
        let job: Vec<String> = self.job.iter().filter_map(|name| look_up(name)).collect();
        Ok(Started {
            launcher: self.launcher,
            rank: Rank(rank),
            size,
            local_rank: number(self.local_rank).unwrap_or(0),
            spread: if alone { Spread::OneHost } else { Spread::Hosts },
            job: (!job.is_empty()).then(|| job.join("-")),
            first_host,
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

/// The first host of Slurm's short form: `node03` of `node[03-05,9]-ib,other`.
fn first_node(list: &str) -> Option<String> {
    let (prefix, rest) = list.split_at(list.find(['[', ',']).unwrap_or(list.len()));
    let Some(rest) = rest.strip_prefix('[') else {
        return Some(prefix.to_owned()).filter(|name| !name.is_empty());
    };
    let (numbers, behind) = rest.split_once(']')?;
    let number = numbers.split(['-', ',']).next()?;
    let suffix = behind.split(',').next().unwrap_or_default();
    Some(format!("{prefix}{number}{suffix}"))
}

#[cfg(test)]
mod tests;
