//! When a job is over, and why.

use std::time::Duration;

use super::ending::Step;
use super::hosts::{Agent, Host};
use super::words::End;
use super::{Action, Machine, Outcome, PATIENCE, Reports, Terms, Told, World, words};
use crate::Time;
use crate::event::{Happening, Seconds, Source};

/// How long too few workers are borne in silence.
const SILENCE: Duration = Duration::from_secs(2);

impl Machine {
    /// Ends the job if nothing else is left to do.
    pub(super) fn may_end(&mut self, now: Time) {
        if self.is_over || self.reports == Reports::Nobody {
            return;
        }
        if self.agents_due().is_some_and(|due| due <= now) {
            self.miss_agents(now);
        }
        let idle = self.members.is_empty();
        if self.is_ending() || !self.terms.outlives_losses() {
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
            (true, true) => self.end(End::SomeFailed, now),
            (false, _) => self.end(End::AllFailed, now),
        }
    }

    /// The launcher was sent a signal.
    pub(super) fn interrupted(&mut self, signal: i32, now: Time) {
        let outlives = self.terms.outlives_losses();
        let ranks = match outlives {
            true => self.members.len(),
            false if self.begun => self.terms.start as usize,
            false => 0,
        };
        match outlives {
            true => self.verdict.end(End::Interrupted { signal, ranks }),
            false => self.verdict.end_unless_failed(End::Interrupted { signal, ranks }),
        }
        self.is_stopping = true;
        self.verdict.stopping();
        let step = self.ending.signalled(signal, now);
        self.take(step);
    }

    /// The job ends before it has begun, for the reason that this text gives.
    pub(super) fn called_off(&mut self, text: String, now: Time) {
        self.verdict.end(End::CalledOff(text));
        self.is_stopping = true;
        self.ending.failed(now);
    }

    /// Makes those end that are left, when it is time.
    pub(super) fn press(&mut self, now: Time) {
        let step = self.ending.tick(now);
        self.take(step);
    }

    fn take(&mut self, step: Option<Step>) {
        match step {
            Some(Step::Send(signal)) => {
                self.verdict.stopping();
                self.actions.push(Action::SignalAll(signal));
            }
            Some(Step::GiveUp) => self.actions.push(Action::GiveUp),
            None => {}
        }
    }

    /// Whether the job is coming to its end: nothing is started and no world formed any more.
    pub(super) fn is_ending(&self) -> bool {
        self.is_stopping || self.is_over
    }

    fn dismiss_all(&mut self) {
        self.is_over = true;
        self.actions.push(Action::Dismiss);
    }

    /// How the job has ended, when everything has been heard that workers wrote.
    pub fn outcome(&self) -> Outcome {
        self.verdict.outcome()
    }

    /// Ends the job once nobody has had the state for a moment: the word of one who has may still be
    /// on its way.
    fn miss_state(&mut self, now: Time) {
        let lost = self.progress
            && !self.finishing
            && !self.members.values().any(|member| member.has_state && member.exit.is_none());
        if !lost {
            self.stateless = None;
            return;
        }
        if now >= *self.stateless.get_or_insert(now) + PATIENCE {
            self.end(End::NoState, now);
        }
    }

    /// Ends the job when there have been too few workers for too long, or no more can come.
    fn miss_workers(&mut self, now: Time) {
        let (there, needed) = self.count();
        let whole = matches!(self.world, World::Whole | World::Forming(_));
        if self.is_ending() || self.finishing || whole || there >= needed {
            self.shortage = None;
            return;
        }
        let timeout = self.terms.timeout;
        let (since, told) = *self.shortage.get_or_insert((now, Told::No));
        let fixed = self.terms.source == Source::List;
        if fixed && !self.hosts.may_recover() && !self.more_are_going() {
            let hosts = self.describe_hosts(now);
            return self.end(End::Hopeless { there, needed, hosts }, now);
        }
        if now >= since + timeout {
            let hosts = self.describe_hosts(now);
            return self.end(End::TimedOut { there, needed, timeout, hosts }, now);
        }
        if told == Told::No && now >= since + SILENCE {
            self.shortage = Some((since, Told::Yes));
            let timeout_seconds = Seconds(timeout);
            self.happened(Happening::TooFewWorkers { there, needed, timeout_seconds });
        }
    }

    /// Until when agents that dial in may take before the job begins.
    pub(super) fn agents_due(&self) -> Option<Time> {
        let awaited = self.terms.source == Source::DialledIn && !self.begun && !self.is_ending();
        awaited.then_some(self.terms.timeout)
    }

    /// Too few agents have dialled in.
    fn miss_agents(&mut self, now: Time) {
        let there = self.hosts.count(|host| host.slots > 0);
        let Terms { least_hosts, start, timeout, .. } = self.terms;
        let option = match self.terms.outlives_losses() {
            true => "--elastic-timeout",
            false => "--start-timeout",
        };
        let text = words::too_few_agents(there, (least_hosts, start), (timeout, option));
        self.called_off(text, now);
    }

    /// Workers there, or slots before there are any; and how many there must be.
    fn count(&self) -> (u32, u32) {
        if self.begun {
            let there = self.members.values().filter(|member| member.stays()).count() as u32;
            return (there, self.terms.min.max(1));
        }
        (self.hosts.count(Host::is_ready).1, self.terms.start)
    }

    /// Whether workers are on their way out whose slots will be free again.
    fn more_are_going(&self) -> bool {
        self.members.values().any(|member| !member.stays())
    }

    /// When something is due about too few workers.
    pub(super) fn shortage_due(&self) -> Option<Time> {
        let (since, told) = self.shortage?;
        match told {
            Told::No => Some(since + SILENCE.min(self.terms.timeout)),
            Told::Yes => Some(since + self.terms.timeout),
        }
    }

    fn describe_hosts(&self, now: Time) -> Vec<String> {
        let describe = |host: &Host| {
            let state = match (host.slots, host.rest.map(|rest| rest.until), host.agent) {
                (0, _, _) => "not listed any more".to_owned(),
                (_, Some(None), _) => "has failed and takes no new ranks".into(),
                (_, Some(Some(until)), _) => {
                    format!("rests for {}", Seconds(until.saturating_sub(now)))
                }
                (_, None, Agent::Ready(_)) => "there".into(),
                (_, None, _) => "not reached".into(),
            };
            format!("`{}`: {} slots, {state}", host.name, host.slots)
        };
        let mut lines: Vec<String> = self.hosts.all.iter().map(describe).collect();
        if lines.is_empty() {
            lines.push("no host is known".into());
        }
        lines.extend(self.undiscovered.iter().map(|why| format!("the last discovery: {why}")));
        lines
    }

    /// Ends the job for this reason.
    pub(super) fn end(&mut self, end: End, now: Time) {
        self.verdict.end(end);
        self.ending.failed(now);
        self.dismiss_all();
    }
}
