//! How a job stands at one moment, for those who ask: its workers in the order of their ranks, and what
//! each of them says of itself. Whoever has not answered in time is left out.

use std::collections::{BTreeMap, BTreeSet};

use super::{Action, Machine, World};
use crate::event;
use crate::status::{PATIENCE, Report, Standing, State, Status};
use crate::wire::DriverToRank;
use crate::{Rank, Time, Worker};

/// Whom somebody has asked, and what they have answered.
#[derive(Default)]
pub(super) struct Census {
    /// Until when those who are missing may answer, while somebody waits for them.
    pub(super) until: Option<Time>,
    pub(super) missing: BTreeSet<Worker>,
    reports: BTreeMap<Worker, Report>,
}

impl Machine {
    /// Somebody wants to know how the job stands: asks the workers of the world, unless they are just
    /// being asked for somebody else.
    pub(super) fn asked(&mut self, now: Time) {
        if self.census.until.is_some() {
            return;
        }
        let whole = !self.terms.outlives_losses() || self.world == World::Whole;
        let inside = self.members.iter().filter(|(_, member)| whole && member.is_seated());
        let inside = inside.filter_map(|(worker, member)| Some((*worker, member.connection?)));
        let (workers, connections): (BTreeSet<Worker>, Vec<_>) = inside.unzip();
        self.tell(connections, DriverToRank::Ask);
        self.census =
            Census { until: Some(now + PATIENCE), missing: workers, reports: BTreeMap::new() };
    }

    /// A worker has answered.
    pub(super) fn reported(&mut self, worker: Worker, report: Report) {
        // An answer that comes too late is not taken for one to a later question.
        if self.census.missing.remove(&worker) {
            self.census.reports.insert(worker, report);
        }
    }

    /// Answers those who have asked, once all have answered or had their time.
    pub(super) fn answer(&mut self, now: Time) {
        let Some(until) = self.census.until else { return };
        if self.census.missing.is_empty() || now >= until {
            self.census.until = None;
            self.actions.push(Action::Answer(self.status(now)));
        }
    }

    /// The job as it is.
    fn status(&self, now: Time) -> Status {
        let workers = match self.order.is_empty() {
            true => (0..self.workers).map(Worker).collect(),
            false => self.order.clone(),
        };
        let mut ranks: Vec<Standing> =
            workers.into_iter().map(|worker| self.standing(worker)).collect();
        if !self.terms.outlives_losses() {
            let starting = |(host, slot): (&str, u32)| Standing {
                rank: Rank(0),
                host: host.to_owned(),
                slot,
                pid: None,
                state: State::Starting,
                report: None,
            };
            let planned = self.hosts.seats().take(self.terms.start as usize);
            ranks.extend(planned.skip(ranks.len()).map(starting));
        }
        for (rank, standing) in (0..).map(Rank).zip(&mut ranks) {
            standing.rank = rank;
        }
        Status { age: now, epoch: self.epoch.0, ranks, events: Vec::new() }
    }

    fn standing(&self, worker: Worker) -> Standing {
        let report = self.census.reports.get(&worker).cloned();
        let state = match (self.members.get(&worker), self.verdict.exit(worker)) {
            (_, Some(exit)) => State::Ended(exit.to_string()),
            (None, None) => State::Ended("has gone".into()),
            (Some(_), _) if report.is_some() => State::Joined,
            (Some(_), _) if self.census.missing.contains(&worker) => State::Silent,
            (Some(member), _) if member.pid.is_some() => State::Running,
            (Some(_), _) => State::Starting,
        };
        let pid = self.members.get(&worker).and_then(|member| member.pid);
        let event::Member { host, slot, .. } = self.who(worker);
        Standing { rank: Rank(0), host, slot, pid, state, report }
    }
}
