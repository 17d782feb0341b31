//! A visit to the hosts of a job that is not there yet: their agents are started as for a job, asked
//! how they are and how they reach each other, and dismissed.
//!
//! What is asked, and what the answers mean, is decided in `ronde-control`; this is its hands. It
//! never waits longer than the visit says, whatever the hosts do.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ronde_control::VERSION;
use ronde_control::doctor::{Action, Clock, Event, Report, Visit};
use ronde_control::muster::Guest;
use ronde_control::wire::agent::{AgentToDriver, DriverToAgent, Target};
use ronde_control::wire::{Callee, JobKey};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use crate::driver::hands::Hands;
use crate::driver::start::Span;
use crate::driver::{News, entropy, hex, service, start};
use crate::reach::Way;
use crate::supervise::{self, Scope};
use crate::{LaunchError, machine};

/// How long a call between hosts may take: one lost packet is sent again within it.
const CALL: Duration = Duration::from_millis(1500);

/// How long two hosts send to measure the way between them.
const LOAD: Duration = Duration::from_millis(80);

/// How long agents have to say goodbye.
const FAREWELL: Duration = Duration::from_millis(1500);

/// News that may wait; whoever brings more waits.
const NEWS: usize = 1024;

/// Whom to visit.
#[derive(Clone, Debug)]
pub struct Rounds {
    /// The hosts, how each is reached, and how many ranks it is to take.
    pub hosts: Vec<(String, Way, u32)>,
    /// This executable, which is also the agent.
    pub program: PathBuf,
    /// The interfaces by which hosts may reach each other; all if there are none.
    pub interfaces: Vec<String>,
    /// How long hosts have to answer.
    pub limit: Duration,
}

/// Visits all hosts at once and gives what was found: the blocking form for `main`.
pub fn visit(rounds: &Rounds) -> Result<Report, LaunchError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(machine("start the event loop"))?;
    let report = runtime.block_on(run(rounds));
    runtime.shutdown_background();
    report
}

async fn run(rounds: &Rounds) -> Result<Report, LaunchError> {
    let begin = Instant::now();
    let (sender, mut news) = mpsc::channel(NEWS);
    let mut doctor = Doctor::start(rounds, sender).await?;
    while !doctor.visit.is_over() {
        tokio::select! {
            Some(item) = news.recv() => doctor.on(item, begin.elapsed()),
            () = sleep_until(begin + doctor.visit.next_wakeup()) => {}
        }
        doctor.visit.tick(begin.elapsed());
    }
    let report = doctor.visit.report();
    doctor.leave(&report, &mut news).await;
    Ok(report)
}

struct Doctor {
    visit: Visit,
    agents: Vec<Hands>,
    key: JobKey,
    interfaces: Vec<String>,
    /// When each agent was last asked for the time, by both clocks of this machine.
    asked: Vec<(Instant, u64)>,
    service: tokio::task::JoinHandle<()>,
}

impl Doctor {
    async fn start(rounds: &Rounds, news: mpsc::Sender<News>) -> Result<Doctor, LaunchError> {
        let key = JobKey::from_entropy(entropy()?);
        let ways = rounds.hosts.iter().map(|(name, way, _)| (name.clone(), way.clone()));
        let ways: Vec<(String, Way)> = ways.collect();
        let (listener, addresses) =
            start::listen(Span::of(&ways), Ipv4Addr::LOCALHOST.into(), &rounds.interfaces).await?;
        let agents = start::agents(&ways, &rounds.program, &hex(&entropy()?[..12]), &news)?;
        let service = tokio::spawn(service::run(listener, key.clone(), news));
        let guest = |(name, way, slots): &(String, Way, u32)| {
            (Guest { name: name.clone(), here: way.ties().network }, *slots)
        };
        let guests = rounds.hosts.iter().map(guest).collect();
        Ok(Doctor {
            visit: Visit::new(VERSION, guests, addresses, rounds.limit),
            asked: vec![(Instant::now(), 0); agents.len()],
            agents,
            key,
            interfaces: rounds.interfaces.clone(),
            service,
        })
    }

    fn on(&mut self, news: News, now: Duration) {
        let (index, event) = match news {
            News::Hello(index, version) => (index, Event::Hello { version }),
            News::AgentGone(index, trouble) => {
                self.agents[index].gone = true;
                (index, Event::Gone(trouble))
            }
            News::Agent(index, message) => match self.hear(index, message) {
                Some(event) => (index, event),
                None => return,
            },
            // Nobody joins, and nobody has anything to print.
            _ => return,
        };
        tracing::info!(host = self.agents[index].host, ?event, "news of a host");
        for action in self.visit.on(index, event, now) {
            self.carry_out(action);
        }
    }

    fn hear(&self, index: usize, message: AgentToDriver) -> Option<Event> {
        match message {
            AgentToDriver::Time { unix_micros } => {
                let (asked, sent) = self.asked[index];
                let round_trip_micros = asked.elapsed().as_micros() as u64;
                let middle = sent + round_trip_micros / 2;
                let ahead_micros = unix_micros as i64 - middle as i64;
                Some(Event::Told(Clock { ahead_micros, round_trip_micros }))
            }
            AgentToDriver::Examined { facts } => Some(Event::Examined(facts)),
            AgentToDriver::Listening { listeners, known, .. } => {
                Some(Event::Listening { listeners, known })
            }
            AgentToDriver::Dialled { callee, address, outcome } => {
                Some(Event::Dialled { callee, address, outcome })
            }
            AgentToDriver::Measured { callee, outcome } => {
                Some(Event::Measured { callee, outcome })
            }
            _ => None,
        }
    }

    fn carry_out(&mut self, action: Action) {
        let (host, command) = match action {
            Action::AskTime(host) => {
                self.asked[host] = (Instant::now(), unix_micros());
                (host, DriverToAgent::AskTime)
            }
            Action::Examine(host) => (host, DriverToAgent::Examine),
            Action::Listen(host) => (host, self.listen(host)),
            Action::Dial(host, targets) => (host, dial(targets)),
            Action::Measure(from, to, address) => (from, measure(to, address)),
        };
        self.agents[host].tell(command);
    }

    fn listen(&self, host: usize) -> DriverToAgent {
        let (key, interfaces) = (self.key.clone(), self.interfaces.clone());
        DriverToAgent::Listen { key, host: host as u32, interfaces, ports: 0 }
    }

    /// Dismisses the agents; those that never came, or do not go, are not waited for.
    async fn leave(mut self, report: &Report, news: &mut mpsc::Receiver<News>) {
        for (agent, host) in self.agents.iter_mut().zip(&report.hosts) {
            match host.facts.is_some() {
                true => agent.tell(DriverToAgent::End),
                false => agent.kill(),
            }
        }
        let _ = timeout(FAREWELL, async {
            while self.agents.iter().any(|agent| !agent.gone) {
                if let Some(News::AgentGone(index, _)) = news.recv().await {
                    self.agents[index].gone = true;
                }
            }
        })
        .await;
        self.service.abort();
        for agent in self.agents.iter().filter(|agent| agent.ties.child) {
            if !supervise::sweep(&agent.mark, Scope::Marked) {
                tracing::warn!(host = agent.host, "some processes cannot be killed");
            }
        }
    }
}

fn dial(targets: Vec<Target>) -> DriverToAgent {
    DriverToAgent::Dial { targets, limit_millis: CALL.as_millis() as u32 }
}

fn measure(to: usize, address: SocketAddr) -> DriverToAgent {
    let callee = Callee::Host(to as u32);
    DriverToAgent::Measure { callee, address, millis: LOAD.as_millis() as u32 }
}

fn unix_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}
