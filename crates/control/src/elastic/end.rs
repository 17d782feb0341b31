//! When an elastic job is over, and why.

use std::time::Duration;

use super::hosts::{Agent, Host};
use super::{Action, Elastic, Reason, Source, Told, World};
use crate::event::{self, Culprit, Happening};
use crate::rendezvous::{PATIENCE, Time};

/// How long too few workers are borne in silence.
const SILENCE: Duration = Duration::from_secs(2);

impl Elastic {
    /// Ends the job if nothing else is left to do.
    pub(super) fn may_end(&mut self, now: Time) {
        if self.ended {
            return;
        }
        if self.begun && self.members.is_empty() && (self.finishing || !self.failures.is_empty()) {
            return self.all_gone();
        }
        self.miss_state(now);
        self.miss_workers(now);
    }

    /// Every worker has ended.
    fn all_gone(&mut self) {
        match (self.finishing, self.first_failure()) {
            (_, None) => self.end(None, u8::from(!self.finishing)),
            (true, Some((first, code))) => self.end(Some(Reason::SomeFailed { first }), code),
            (false, Some((first, code))) => self.end(Some(Reason::AllFailed { first }), code),
        }
    }

    /// Who failed first since the last world was formed, and with which exit code.
    fn first_failure(&self) -> Option<(Culprit, u8)> {
        let failure = self.failures.first()?;
        let first = Culprit { member: failure.member.clone(), cause: failure.cause() };
        Some((first, failure.code.max(1)))
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
            let (first, code) = self.first_failure().unzip();
            self.end(Some(Reason::NoState { first }), code.unwrap_or(1));
        }
    }

    /// Ends the job when there have been too few workers for too long, or no more can come.
    fn miss_workers(&mut self, now: Time) {
        let (there, needed) = self.count();
        let whole = matches!(self.world, World::Whole | World::Forming(_));
        if self.ended || self.finishing || whole || there >= needed {
            self.shortage = None;
            return;
        }
        let timeout = self.limits.timeout;
        let (since, told) = *self.shortage.get_or_insert((now, Told::No));
        let fixed = self.limits.source == Source::List;
        if fixed && !self.hosts.may_recover() && !self.more_are_going() {
            let hosts = self.describe_hosts(now);
            let (first, code) = self.first_failure().unzip();
            let reason = Reason::Hopeless { there, needed, hosts, first };
            return self.end(Some(reason), code.unwrap_or(1));
        }
        if now >= since + timeout {
            let hosts = self.describe_hosts(now);
            let first = self.first_failure().map(|(first, _)| first);
            let reason = Reason::TimedOut { there, needed, timeout, hosts, first };
            return self.end(Some(reason), 1);
        }
        if told == Told::No && now >= since + SILENCE {
            self.shortage = Some((since, Told::Yes));
            let timeout_seconds = timeout;
            self.happened(Happening::TooFewWorkers { there, needed, timeout_seconds });
        }
    }

    /// Workers there, or slots before there are any; and how many there must be.
    fn count(&self) -> (u32, u32) {
        if self.begun {
            let there = self.members.values().filter(|member| member.stays()).count() as u32;
            return (there, self.limits.min.max(1));
        }
        let ready = |host: &&Host| host.is_open() && matches!(host.agent, Agent::Ready(_));
        let slots = self.hosts.all.iter().filter(ready).map(|host| host.slots);
        (slots.fold(0, u32::saturating_add), self.limits.start)
    }

    /// Whether workers are on their way out whose slots will be free again.
    fn more_are_going(&self) -> bool {
        self.members.values().any(|member| !member.stays())
    }

    /// When something is due about too few workers.
    pub(super) fn shortage_due(&self) -> Option<Time> {
        let (since, told) = self.shortage?;
        match told {
            Told::No => Some(since + SILENCE.min(self.limits.timeout)),
            Told::Yes => Some(since + self.limits.timeout),
        }
    }

    fn describe_hosts(&self, now: Time) -> Vec<String> {
        let describe = |host: &Host| {
            let state = match (host.slots, host.rest.map(|rest| rest.until), host.agent) {
                (0, _, _) => "not listed any more".to_owned(),
                (_, Some(None), _) => "has failed and takes no new ranks".into(),
                (_, Some(Some(until)), _) => {
                    format!("rests for {}", event::seconds(until.saturating_sub(now)))
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

    pub(super) fn no_progress(&mut self) {
        self.end(Some(Reason::NoProgress { worlds: self.fruitless }), 1);
    }

    pub(super) fn too_many_resets(&mut self, limit: u32) {
        let (first, code) = self.first_failure().unzip();
        self.end(Some(Reason::ResetLimit { limit, first }), code.unwrap_or(1));
    }

    fn end(&mut self, reason: Option<Reason>, code: u8) {
        self.ended = true;
        self.reason = reason;
        self.actions.push(Action::End { code, text: self.judgement().text });
    }
}
