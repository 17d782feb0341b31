//! When and why a job ends.

use std::time::Duration;

use super::ending::ShutdownStep;
use super::hosts::{AgentOnHost, KnownHost};
use super::messages::EndCause;
use super::{
    Announced, DeathReports, JobAction, JobMachine, JobOutcome, JobSpec, TIME_LIMIT, WorldPhase,
    messages,
};
use crate::event::{HostSourceKind, JobEventKind, Seconds};
use crate::{Time, counted};

/// How long there may be too few workers before that is reported.
const SILENCE: Duration = Duration::from_secs(2);

impl JobMachine {
    /// Ends the job if there is nothing left to do.
    pub(super) fn may_end(&mut self, now: Time) {
        if self.is_over || self.reports == DeathReports::Nobody {
            return;
        }
        if self.agents_due().is_some_and(|due| due <= now) {
            self.miss_agents(now);
        }
        let idle = self.members.is_empty();
        if self.is_ending() || !self.job_spec.outlives_losses() {
            if idle && (self.begun || self.is_ending()) {
                self.dismiss_all();
            }
            return;
        }
        if self.begun && idle && (self.finishing || self.verdict.failed()) {
            return self.all_gone(now);
        }
        self.miss_state(now);
        self.miss_workers(now);
    }

    /// Every worker has ended.
    fn all_gone(&mut self, now: Time) {
        match (self.finishing, self.verdict.failed()) {
            (true, false) => self.dismiss_all(),
            (true, true) => self.end(EndCause::SomeFailed, now),
            (false, _) => self.end(EndCause::AllFailed, now),
        }
    }

    /// The launcher was sent a signal.
    pub(super) fn interrupted(&mut self, signal: i32, now: Time) {
        let outlives = self.job_spec.outlives_losses();
        let ranks = match outlives {
            true => self.members.len(),
            false if self.begun => self.job_spec.start as usize,
            false => 0,
        };
        match outlives {
            true => self.verdict.end(EndCause::Interrupted { signal, ranks }),
            false => self.verdict.end_unless_failed(EndCause::Interrupted { signal, ranks }),
        }
        self.is_stopping = true;
        self.verdict.stopping();
        let step = self.ending.signalled(signal, now);
        self.carry_out(step);
    }

    /// The job ends before it has begun, with this error message.
    pub(super) fn called_off(&mut self, text: String, now: Time) {
        self.verdict.end(EndCause::CalledOff(text));
        self.is_stopping = true;
        self.ending.failed(now);
    }

    /// Ends the remaining workers when it is time.
    pub(super) fn end_remaining(&mut self, now: Time) {
        let step = self.ending.tick(now);
        self.carry_out(step);
    }

    fn carry_out(&mut self, step: Option<ShutdownStep>) {
        match step {
            Some(ShutdownStep::Send(signal)) => {
                self.verdict.stopping();
                self.actions.push(JobAction::SignalAll(signal));
            }
            Some(ShutdownStep::GiveUp) => self.actions.push(JobAction::GiveUp),
            None => {}
        }
    }

    /// Whether the job is ending: nothing new is started and no world is formed.
    pub(super) fn is_ending(&self) -> bool {
        self.is_stopping || self.is_over
    }

    fn dismiss_all(&mut self) {
        self.is_over = true;
        self.actions.push(JobAction::Dismiss);
    }

    /// How the job ended; call it once all output of the workers has been read.
    pub fn outcome(&self) -> JobOutcome {
        self.verdict.outcome()
    }

    /// Ends the job if no worker has had the training state for a moment: a message from one that
    /// has it may still be in flight.
    fn miss_state(&mut self, now: Time) {
        let lost = self.progress
            && !self.finishing
            && !self.members.values().any(|member| member.has_state && member.exit.is_none());
        if !lost {
            self.stateless = None;
            return;
        }
        if now >= *self.stateless.get_or_insert(now) + TIME_LIMIT {
            self.end(EndCause::NoState, now);
        }
    }

    /// Ends the job if there have been too few workers for too long, or no more can be started.
    fn miss_workers(&mut self, now: Time) {
        let (there, needed) = self.count();
        let whole = matches!(self.world, WorldPhase::Whole | WorldPhase::Forming(_));
        if self.is_ending() || self.finishing || whole || there >= needed {
            self.shortage = None;
            return;
        }
        let timeout = self.job_spec.timeout;
        let (since, announced) = *self.shortage.get_or_insert((now, Announced::No));
        let fixed = self.job_spec.source == HostSourceKind::List;
        if fixed && !self.hosts.may_recover() && !self.more_are_going() {
            let hosts = self.describe_hosts(now);
            return self.end(EndCause::Hopeless { there, needed, hosts }, now);
        }
        if now >= since + timeout {
            let hosts = self.describe_hosts(now);
            return self.end(EndCause::TimedOut { there, needed, timeout, hosts }, now);
        }
        if announced == Announced::No && now >= since + SILENCE {
            self.shortage = Some((since, Announced::Yes));
            let timeout_seconds = Seconds(timeout);
            self.happened(JobEventKind::TooFewWorkers { there, needed, timeout_seconds });
        }
    }

    /// Before the job begins: how long agents have to dial in.
    pub(super) fn agents_due(&self) -> Option<Time> {
        let awaited =
            self.job_spec.source == HostSourceKind::DialedIn && !self.begun && !self.is_ending();
        awaited.then_some(self.job_spec.timeout)
    }

    /// Too few agents have dialed in.
    fn miss_agents(&mut self, now: Time) {
        let there = self.hosts.count(|host| host.slots > 0);
        let JobSpec { least_hosts, start, timeout, .. } = self.job_spec;
        let option = match self.job_spec.outlives_losses() {
            true => "--elastic-timeout",
            false => "--start-timeout",
        };
        let text = messages::too_few_agents(there, (least_hosts, start), (timeout, option));
        self.called_off(text, now);
    }

    /// The number of workers (before the start, of ready slots), and how many are needed.
    fn count(&self) -> (u32, u32) {
        if self.begun {
            let there = self.members.values().filter(|member| member.stays()).count() as u32;
            return (there, self.job_spec.min.max(1));
        }
        (self.hosts.count(KnownHost::is_ready).1, self.job_spec.start)
    }

    /// Whether workers are leaving whose slots will be free again.
    fn more_are_going(&self) -> bool {
        self.members.values().any(|member| !member.stays())
    }

    /// When something is due about the shortage of workers.
    pub(super) fn shortage_due(&self) -> Option<Time> {
        let (since, announced) = self.shortage?;
        match announced {
            Announced::No => Some(since + SILENCE.min(self.job_spec.timeout)),
            Announced::Yes => Some(since + self.job_spec.timeout),
        }
    }

    fn describe_hosts(&self, now: Time) -> Vec<String> {
        let describe = |host: &KnownHost| {
            let state = match (host.slots, host.cooldown.map(|cooldown| cooldown.until), host.agent)
            {
                (0, _, _) => "no longer listed".to_owned(),
                (_, Some(None), _) => "has failed and gets no new ranks".into(),
                (_, Some(Some(until)), _) if host.unreached > 0 => {
                    format!("not reached, next try in {}", Seconds(until.saturating_sub(now)))
                }
                (_, Some(Some(until)), _) => {
                    format!("on cooldown for {}", Seconds(until.saturating_sub(now)))
                }
                (_, None, AgentOnHost::Ready(_)) => "ready".into(),
                (_, None, _) => "not reached".into(),
            };
            format!("`{}`: {}, {state}", host.name, counted(host.slots, "slot"))
        };
        let mut lines: Vec<String> = self.hosts.all.iter().map(describe).collect();
        if lines.is_empty() {
            lines.push("no hosts are known".into());
        }
        lines.extend(self.undiscovered.iter().map(|why| format!("last discovery: {why}")));
        lines
    }

    /// Ends the job for this reason.
    pub(super) fn end(&mut self, end: EndCause, now: Time) {
        self.verdict.end(end);
        self.ending.failed(now);
        self.dismiss_all();
    }
}
