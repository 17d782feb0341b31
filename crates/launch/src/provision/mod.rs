//! `ronde up` and `ronde down`: prepares hosts over ssh so that standing agents run there, and
//! removes what it has made.
//!
//! 1. All hosts report what they have, while the wheels are packed here.
//! 2. `control::provision` decides. If anything stands in the way on any host, all of it is
//!    reported, and nothing is changed anywhere.
//! 3. The missing steps are carried out, on all hosts at once. Keys and packages travel inside the
//!    ssh connection.
//!
//! What is made on a host is recorded there by the script that makes it; the hosts are recorded
//! here (`cluster_record`).

mod agent_key;
pub mod cluster_record;
mod host_shell;
mod login_key;
mod packages;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

pub use host_shell::HostShell;
pub use packages::{PackageSource, RequirementsLock};
use ronde_control::provision::{HostFacts, Runtime, Step, StepPlan, Wanted, decide};
use ronde_control::wire::JobKey;

use crate::hosts::{self, Host};
use crate::reach::HostProblem;
use crate::reach::ssh::SshOptions;
use crate::{LaunchError, block_on};
use cluster_record::ClusterRecord;
use host_shell::{ActionError, ActionInput, LONG, QUICK};
use packages::{OwnWheel, Packages, sha256};

/// Space that an environment needs, in KiB: for uv and the lists of files, and for the wheels, which
/// are there packed and unpacked.
const SPACE_KIB: u64 = 96 << 10;
const COPIES: u64 = 2;

/// What to prepare.
#[derive(Clone, Debug)]
pub struct UpPlan {
    /// The hosts.
    pub hosts: Vec<HostShell>,
    /// Port of the agents.
    pub port: u16,
    /// What to install, or the image and the mounts of the containers.
    pub content: UpContent,
    /// The file of the agents' key on this machine.
    pub key_file: PathBuf,
    /// The folder of the user's ssh keys.
    pub ssh_folder: PathBuf,
}

/// What the agents and their ranks run in.
#[derive(Clone, Debug)]
pub enum UpContent {
    /// An environment with these packages.
    Packages(PackageSource),
    /// Containers.
    Image {
        /// Name of the image.
        image: String,
        /// Bind mounts, in Docker's syntax.
        mounts: Vec<String>,
    },
}

/// What became of a host.
#[derive(Clone, Debug)]
pub struct HostOutcome {
    /// Name of the host.
    pub name: String,
    /// What is wrong, all at once.
    pub problems: Vec<HostProblem>,
    /// What the user should know.
    pub warnings: Vec<HostProblem>,
    /// What was done.
    pub done: Vec<Step>,
}

/// What became of a cluster.
#[derive(Clone, Debug)]
pub struct UpReport {
    /// The hosts, in the order of the plan.
    pub hosts: Vec<HostOutcome>,
    /// If an agents' key was made on this machine: the folders that were made for it, innermost
    /// first.
    pub made_key: Option<Vec<PathBuf>>,
    /// Whether anything was tried: not if there was a problem on any host.
    pub has_begun: bool,
    /// The requirements that were installed.
    pub lock: Option<RequirementsLock>,
    /// Whether a key pair for ssh was made on this machine, because the user had none.
    pub made_login: bool,
}

impl UpReport {
    /// Whether all hosts are ready.
    pub fn is_well(&self) -> bool {
        self.hosts.iter().all(|host| host.problems.is_empty())
    }
}

/// Called with the name of a host and with what happens there.
pub type OnStep = Arc<dyn Fn(&str, &str) + Send + Sync>;

/// Why nothing was done: a problem of this machine.
pub type UpResult = Result<UpReport, HostProblem>;

/// The script on a host of the list; ssh is not needed for this machine.
pub fn shell(host: &Host, ssh: &SshOptions) -> HostShell {
    let destination = (!hosts::is_here(host)).then(|| hosts::destination(host, ssh));
    HostShell { name: host.name.clone(), destination }
}

/// Prepares the hosts; blocks.
pub fn up(plan: &UpPlan, progress: &OnStep) -> Result<UpResult, LaunchError> {
    block_on(async { Ok(run_up(plan, progress).await) })
}

/// Asks all hosts what they have; blocks.
pub fn status(
    hosts: &[HostShell],
    port: u16,
    image: Option<&str>,
) -> Result<Vec<Result<HostFacts, HostProblem>>, LaunchError> {
    block_on(async {
        let probed = probe(hosts, port, image).await.into_iter();
        Ok(probed.map(|facts| facts.map_err(HostProblem::from)).collect())
    })
}

/// Removes what was made on all hosts; blocks. Returns what was removed from each.
pub fn down(hosts: &[HostShell]) -> Result<Vec<Result<Vec<String>, HostProblem>>, LaunchError> {
    block_on(async {
        let removed = |output: String| {
            output
                .lines()
                .filter_map(|line| line.strip_prefix("removed=").map(String::from))
                .collect()
        };
        let one = |host: HostShell| async move {
            Ok(removed(host.run(&["down"], ActionInput::Nothing, QUICK).await?))
        };
        Ok(together(hosts.iter().cloned().map(one)).await)
    })
}

async fn run_up(plan: &UpPlan, progress: &OnStep) -> UpResult {
    let known_key = agent_key::existing(&plan.key_file)?;
    let image = match &plan.content {
        UpContent::Image { image, .. } => Some(image.as_str()),
        UpContent::Packages(_) => None,
    };
    let wheels = async {
        match &plan.content {
            UpContent::Packages(source) => source.own_wheels().await,
            UpContent::Image { .. } => Ok(Vec::new()),
        }
    };
    let (wheels, probed) = tokio::join!(wheels, probe(&plan.hosts, plan.port, image));
    let packages = plan.packages(&wheels?, &probed).await?;
    let wanted = plan.wanted(packages.as_ref(), known_key.as_ref());
    let refused = probed.iter().any(|it| matches!(it, Err(ActionError::LoginRefused(_))));
    let made_login = refused && login_key::make_if_none(&plan.ssh_folder).await?;
    let plans: Vec<StepPlan> = probed.into_iter().map(|facts| judged(&wanted, facts)).collect();
    if plans.iter().any(|plan| !plan.problems.is_empty()) {
        let nothing = vec![HostWork::default(); plans.len()];
        let hosts = plan.report(plans, nothing);
        return Ok(UpReport { hosts, made_key: None, has_begun: false, lock: None, made_login });
    }
    let (key, made_key) = match known_key {
        Some(key) => (key, None),
        None => {
            let folders = agent_key::missing_folders(&plan.key_file);
            (agent_key::make(&plan.key_file)?, Some(folders))
        }
    };
    let installs = plans.iter().any(|plan| plan.steps.contains(&Step::Install));
    let files = match (&plan.content, &packages) {
        (UpContent::Packages(source), Some(packages)) if installs => source.files(packages).await?,
        _ => Vec::new(),
    };
    let (content, progress) = (plan.content.clone(), progress.clone());
    let work = Arc::new(Work { content, wanted, files, key, progress });
    let host_work = |(host, plan): (&HostShell, &StepPlan)| {
        let (work, host, steps) = (work.clone(), host.clone(), plan.steps.clone());
        async move { work.carry_out(&host, &steps).await }
    };
    let done = together(plan.hosts.iter().zip(&plans).map(host_work)).await;
    let lock = packages.and_then(|packages| packages.lock);
    let hosts = plan.report(plans, done);
    Ok(UpReport { hosts, made_key, has_begun: true, lock, made_login })
}

fn judged(wanted: &Wanted, facts: Result<HostFacts, ActionError>) -> StepPlan {
    match facts {
        Ok(facts) => decide(wanted, &facts),
        Err(error) => StepPlan { problems: vec![error.into()], ..StepPlan::default() },
    }
}

impl UpPlan {
    async fn packages(
        &self,
        wheels: &[OwnWheel],
        probed: &[Result<HostFacts, ActionError>],
    ) -> Result<Option<Packages>, HostProblem> {
        let UpContent::Packages(source) = &self.content else { return Ok(None) };
        let oldest = ronde_control::provision::OLDEST_PYTHON;
        let versions = probed.iter().flatten().filter_map(|facts| facts.python_version);
        let lowest = versions.filter(|version| *version >= oldest).min().unwrap_or(oldest);
        source.packages(wheels, lowest).await.map(Some)
    }

    fn wanted(&self, packages: Option<&Packages>, key: Option<&JobKey>) -> Wanted {
        let runtime = match &self.content {
            UpContent::Packages(_) => Runtime::Environment {
                digest: packages.map(|it| it.digest.clone()).unwrap_or_default(),
            },
            UpContent::Image { image, mounts } => {
                Runtime::Container { image: image.clone(), mounts: mounts.clone() }
            }
        };
        let uv = match &self.content {
            UpContent::Packages(source) => source.uv(),
            UpContent::Image { .. } => None,
        };
        let machine = rustix::system::uname().machine().to_string_lossy().into_owned();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Wanted {
            port: self.port,
            key_digest: key.map(|key| sha256(key.to_hex().as_bytes())),
            runtime,
            space_kib: SPACE_KIB + packages.map_or(0, |it| (it.bytes >> 10) * COPIES),
            uv_machine: uv.map(|_| machine),
            unix_seconds: now.as_secs(),
        }
    }

    fn report(&self, plans: Vec<StepPlan>, work: Vec<HostWork>) -> Vec<HostOutcome> {
        let outcome = |((host, plan), work): ((&HostShell, StepPlan), HostWork)| HostOutcome {
            name: host.name.clone(),
            problems: plan.problems.into_iter().chain(work.problem).collect(),
            warnings: plan.warnings,
            done: work.done,
        };
        self.hosts.iter().zip(plans).zip(work).map(outcome).collect()
    }
}

/// What was done on a host, and what kept the rest from being done.
#[derive(Clone, Debug, Default)]
struct HostWork {
    done: Vec<Step>,
    problem: Option<HostProblem>,
}

/// What the steps on all hosts need.
struct Work {
    content: UpContent,
    wanted: Wanted,
    files: Vec<PathBuf>,
    key: JobKey,
    progress: OnStep,
}

impl Work {
    async fn carry_out(&self, host: &HostShell, steps: &[Step]) -> HostWork {
        let mut work = HostWork::default();
        for step in steps {
            (self.progress)(&host.name, &step.to_string());
            if let Err(error) = self.take(host, *step).await {
                let HostProblem { reason, hint } = error.into();
                let reason = format!("could not {step}: {reason}");
                return HostWork { problem: Some(HostProblem { reason, hint }), ..work };
            }
            work.done.push(*step);
        }
        work
    }

    async fn take(&self, host: &HostShell, step: Step) -> Result<(), ActionError> {
        match step {
            // On this machine it is the same file.
            Step::SendKey if host.destination.is_none() => Ok(()),
            Step::SendKey => {
                let text = ActionInput::Text(format!("{}\n", self.key.to_hex()));
                host.run(&["key"], text, QUICK).await.map(drop)
            }
            Step::SendUv => match &self.content {
                UpContent::Packages(source) => {
                    let uv = source.uv().unwrap_or_default();
                    host.run(&["put", "uv"], ActionInput::File(uv), LONG).await.map(drop)
                }
                UpContent::Image { .. } => Ok(()),
            },
            Step::Install => self.install(host).await,
            Step::StopAgent => host.run(&["stop"], ActionInput::Nothing, QUICK).await.map(drop),
            Step::StartAgent => self.start(host).await,
        }
    }

    async fn install(&self, host: &HostShell) -> Result<(), ActionError> {
        let Runtime::Environment { digest } = &self.wanted.runtime else { return Ok(()) };
        for path in &self.files {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let place = format!("files-{digest}/{name}");
            host.run(&["put", &place], ActionInput::File(path.clone()), LONG).await?;
        }
        host.run(&["install", digest], ActionInput::Nothing, LONG).await.map(drop)
    }

    async fn start(&self, host: &HostShell) -> Result<(), ActionError> {
        let (port, spec) = (self.wanted.port.to_string(), self.wanted.agent_spec());
        let options: Vec<&str> = match &self.wanted.runtime {
            Runtime::Environment { digest } => vec!["start", &port, &spec, digest],
            Runtime::Container { image, mounts } => {
                let mounts = mounts.iter().flat_map(|mount| ["-v", mount.as_str()]);
                ["start_container", &port, &spec, image].into_iter().chain(mounts).collect()
            }
        };
        host.run(&options, ActionInput::Nothing, LONG).await.map(drop)
    }
}

async fn probe(
    hosts: &[HostShell],
    port: u16,
    image: Option<&str>,
) -> Vec<Result<HostFacts, ActionError>> {
    let one = |host: HostShell| {
        let image = image.map(str::to_owned);
        async move { host.facts(port, image.as_deref()).await }
    };
    together(hosts.iter().cloned().map(one)).await
}

/// Does all of this at once; the results are in the order of the work.
async fn together<T: Send + 'static>(
    work: impl Iterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let tasks: Vec<_> = work.map(tokio::spawn).collect();
    let mut results = Vec::with_capacity(tasks.len());
    for task in tasks {
        match task.await {
            Ok(result) => results.push(result),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
    results
}

/// Reads the record of the hosts that were prepared from this machine.
pub fn record(path: &Path) -> Result<ClusterRecord, HostProblem> {
    ClusterRecord::read(path).map_err(|error| {
        let hint = "name the hosts with `-H`, or remove the file if it is broken";
        HostProblem::new(format!("`{}` cannot be read: {error}", path.display()), hint)
    })
}
