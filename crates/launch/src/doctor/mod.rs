//! Checks the hosts of a future job: starts agents on them as a job would, asks each about its host
//! and which others it reaches, and dismisses them.
//!
//! `ronde-control` decides what to ask and what the answers mean; this module carries it out. It
//! never waits longer than the plan allows, whatever the hosts do.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ronde_control::doctor::{ClockOffset, DoctorInput, DoctorReport, DoctorRun, Gpus};
use ronde_control::host_setup::SetupHost;
use ronde_control::settings::HostNetwork;
use ronde_control::to_hex;
use ronde_control::wire::JobKey;
use ronde_control::wire::agent::{AgentToDriver, DriverToAgent};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use crate::driver::agent_handle::AgentHandle;
use crate::driver::start::Span;
use crate::driver::{DriverInput, entropy, service, start};
use crate::reach::ReachMethod;
use crate::supervise::{self, Scope};
use crate::{LaunchError, agent, block_on};

/// How long agents may take to exit.
const EXIT_LIMIT: Duration = Duration::from_millis(1500);

/// Number of inputs that may queue before senders have to wait.
const INPUT_QUEUE: usize = 1024;

/// The hosts to check, and how to reach them.
#[derive(Clone, Debug)]
pub struct DoctorPlan {
    /// The hosts, how each is reached, and how many ranks it would run.
    pub hosts: Vec<(String, ReachMethod, u32)>,
    /// This executable, which is also the agent.
    pub program: PathBuf,
    /// Network interfaces that hosts may use to reach each other; all of them if empty.
    pub interfaces: Vec<String>,
    /// How this machine can be reached, and the ports that hosts may use.
    pub network: HostNetwork,
    /// How long hosts may take to answer.
    pub limit: Duration,
}

/// Checks all hosts concurrently and returns the findings; blocks.
pub fn doctor_run(plan: &DoctorPlan) -> Result<DoctorReport, LaunchError> {
    block_on(run(plan))
}

/// Finds the GPUs of this host and the libraries for them; blocks. `program` is this executable.
pub fn gpus(program: &Path) -> Result<Gpus, LaunchError> {
    block_on(async { Ok(agent::gpus::find(program).await) })
}

async fn run(plan: &DoctorPlan) -> Result<DoctorReport, LaunchError> {
    let begin = Instant::now();
    let (sender, mut news) = mpsc::channel(INPUT_QUEUE);
    let mut doctor = Doctor::start(plan, sender).await?;
    while !doctor.doctor_run.is_over() {
        tokio::select! {
            Some(item) = news.recv() => doctor.on(item, begin.elapsed()),
            () = sleep_until(begin + doctor.doctor_run.next_wakeup()) => {}
        }
        doctor.doctor_run.tick(begin.elapsed());
    }
    let report = doctor.doctor_run.report();
    doctor.leave(&report, &mut news).await;
    Ok(report)
}

struct Doctor {
    doctor_run: DoctorRun,
    agents: Vec<AgentHandle>,
    /// When each agent was last asked for the time, on both clocks of this machine.
    asked: Vec<(Instant, u64)>,
    service: tokio::task::JoinHandle<()>,
}

impl Doctor {
    async fn start(
        plan: &DoctorPlan,
        news: mpsc::Sender<DriverInput>,
    ) -> Result<Doctor, LaunchError> {
        let key = JobKey::from_entropy(entropy()?);
        let span = Span::of(plan.hosts.iter().map(|(_, method, _)| method));
        let (listener, addresses) =
            start::listen(span, Ipv4Addr::LOCALHOST.into(), &plan.interfaces, &plan.network)?;
        let id = to_hex(&entropy::<12>()?);
        let agent = |(index, (host, method, _)): (usize, &(String, ReachMethod, u32))| {
            start::agent(index, (host, method), (&plan.program, &id), &news)
                .map_err(|source| LaunchError::Agent { host: host.clone(), source })
        };
        let agents: Vec<AgentHandle> =
            plan.hosts.iter().enumerate().map(agent).collect::<Result<_, _>>()?;
        let service = tokio::spawn(service::run(listener, key.clone(), news));
        let listen = (key, plan.interfaces.clone());
        let setup_host = |(name, method, slots): &(String, ReachMethod, u32)| {
            (SetupHost { name: name.clone(), here: method.traits().network }, *slots)
        };
        let setup_hosts = plan.hosts.iter().map(setup_host).collect();
        Ok(Doctor {
            doctor_run: DoctorRun::new(setup_hosts, addresses, listen, plan.limit)
                .within(plan.network.clone()),
            asked: vec![(Instant::now(), 0); agents.len()],
            agents,
            service,
        })
    }

    fn on(&mut self, news: DriverInput, now: Duration) {
        let (index, event) = match news {
            DriverInput::Hello(index, version) => (index, DoctorInput::Hello { version }),
            DriverInput::AgentGone(index, problem) => {
                self.agents[index].gone = true;
                (index, DoctorInput::Gone(problem))
            }
            DriverInput::Agent(index, AgentToDriver::Time { unix_micros }) => {
                (index, DoctorInput::Clock(self.compare(index, unix_micros)))
            }
            DriverInput::Agent(index, message) => (index, DoctorInput::Said(message)),
            // No rank joins and no output arrives here.
            _ => return,
        };
        tracing::info!("{}: {}", self.agents[index].host, in_words(&event));
        for (host, command) in self.doctor_run.on(index, event, now) {
            if command == DriverToAgent::AskTime {
                self.asked[host] = (Instant::now(), unix_micros());
            }
            self.agents[host].tell(command);
        }
    }

    /// Offset of an agent's clock from this machine's.
    fn compare(&self, index: usize, unix_micros: u64) -> ClockOffset {
        let (asked, sent) = self.asked[index];
        let round_trip_micros = asked.elapsed().as_micros() as u64;
        let middle = sent + round_trip_micros / 2;
        ClockOffset { ahead_micros: unix_micros as i64 - middle as i64, round_trip_micros }
    }

    /// Dismisses the agents, without waiting for those that never connected or do not exit.
    async fn leave(mut self, report: &DoctorReport, news: &mut mpsc::Receiver<DriverInput>) {
        for (agent, host) in self.agents.iter_mut().zip(&report.hosts) {
            match host.facts.is_some() {
                true => agent.tell(DriverToAgent::End),
                false => agent.kill(),
            }
        }
        let _ = timeout(EXIT_LIMIT, async {
            while self.agents.iter().any(|agent| !agent.gone) {
                if let Some(DriverInput::AgentGone(index, _)) = news.recv().await {
                    self.agents[index].gone = true;
                }
            }
        })
        .await;
        self.service.abort();
        for agent in self.agents.iter().filter(|agent| agent.traits.child) {
            if !supervise::sweep(&agent.mark, Scope::Marked) {
                tracing::warn!(host = agent.host, "some processes cannot be killed");
            }
        }
    }
}

/// The time in microseconds since 1970, by this machine's clock.
pub(crate) fn unix_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}

/// What a host has said, for `--verbose`.
fn in_words(event: &DoctorInput) -> String {
    match event {
        DoctorInput::Hello { version } => format!("its agent is there, version {version}"),
        DoctorInput::Clock(_) => "it reported the time".into(),
        DoctorInput::Said(AgentToDriver::Listening { listeners, .. }) => {
            let at: Vec<String> = listeners.iter().map(|it| it.address.to_string()).collect();
            format!("its agent listens at {}", at.join(", "))
        }
        DoctorInput::Said(AgentToDriver::CannotListen { reason, .. }) => reason.clone(),
        DoctorInput::Said(AgentToDriver::Dialed { callee, address, outcome }) => {
            format!("it tried {callee} at {address}: {outcome}")
        }
        DoctorInput::Said(AgentToDriver::Examined { .. }) => "it has been examined".into(),
        DoctorInput::Said(AgentToDriver::Measured { callee, outcome: Ok(rate) }) => format!(
            "{} MB/s to {callee}, {} µs there and back",
            rate.bytes_per_second / 1_000_000,
            rate.round_trip_micros
        ),
        DoctorInput::Said(AgentToDriver::Measured { callee, outcome: Err(reason) }) => {
            format!("the speed to {callee} could not be measured: {reason}")
        }
        DoctorInput::Said(AgentToDriver::Problem { reason }) => reason.clone(),
        DoctorInput::Said(_) => "it has said something that nobody asked for".into(),
        DoctorInput::Gone(problem) => format!("it has gone: {}", problem.reason),
    }
}
