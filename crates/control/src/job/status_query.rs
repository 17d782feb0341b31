//! The status of a job, for watchers: its workers in rank order, and what each of them reports.
//! Workers that do not answer in time are left out.

use std::collections::{BTreeMap, BTreeSet};

use super::{JobAction, JobMachine, WorldPhase};
use crate::event;
use crate::status::{RankReport, RankState, RankStatus, Status, TIME_LIMIT};
use crate::wire::DriverToRank;
use crate::{Rank, Time, Worker};

/// The workers that were asked, and their answers.
#[derive(Default)]
pub(super) struct StatusQuery {
    /// How long to wait for the missing answers, while a watcher waits.
    pub(super) until: Option<Time>,
    pub(super) missing: BTreeSet<Worker>,
    reports: BTreeMap<Worker, RankReport>,
}

impl JobMachine {
    /// A watcher asks for the status: asks the workers of the world, unless they are being asked
    /// already.
    pub(super) fn asked(&mut self, now: Time) {
        if self.status_query.until.is_some() {
            return;
        }
        let whole = !self.job_spec.outlives_losses() || self.world == WorldPhase::Whole;
        let inside = self.members.iter().filter(|(_, member)| whole && member.has_rank());
        let inside = inside.filter_map(|(worker, member)| Some((*worker, member.connection?)));
        let (workers, connections): (BTreeSet<Worker>, Vec<_>) = inside.unzip();
        self.tell(connections, DriverToRank::Ask);
        self.status_query = StatusQuery {
            until: Some(now + TIME_LIMIT),
            missing: workers,
            reports: BTreeMap::new(),
        };
    }

    /// A worker has answered.
    pub(super) fn reported(&mut self, worker: Worker, report: RankReport) {
        // A late answer is not taken for an answer to the next question.
        if self.status_query.missing.remove(&worker) {
            self.status_query.reports.insert(worker, report);
        }
    }

    /// Answers the watchers, once all workers have answered or the time is up.
    pub(super) fn answer(&mut self, now: Time) {
        let Some(until) = self.status_query.until else { return };
        if self.status_query.missing.is_empty() || now >= until {
            self.status_query.until = None;
            self.actions.push(JobAction::Answer(self.status(now)));
        }
    }

    /// The current status of the job.
    fn status(&self, now: Time) -> Status {
        let workers = match self.order.is_empty() {
            true => (0..self.workers).map(Worker).collect(),
            false => self.order.clone(),
        };
        let mut ranks: Vec<RankStatus> =
            workers.into_iter().map(|worker| self.rank_status(worker)).collect();
        if !self.job_spec.outlives_losses() {
            let starting = |(host, slot): (&str, u32)| RankStatus {
                rank: Rank(0),
                host: host.to_owned(),
                slot,
                pid: None,
                state: RankState::Starting,
                report: None,
            };
            let planned = self.hosts.slots_in_order().take(self.job_spec.start as usize);
            ranks.extend(planned.skip(ranks.len()).map(starting));
        }
        for (rank, rank_status) in (0..).map(Rank).zip(&mut ranks) {
            rank_status.rank = rank;
        }
        Status { age: now, epoch: self.epoch.0, ranks, events: Vec::new() }
    }

    fn rank_status(&self, worker: Worker) -> RankStatus {
        let report = self.status_query.reports.get(&worker).cloned();
        let state = match (self.members.get(&worker), self.verdict.exit(worker)) {
            (_, Some(exit)) => RankState::Ended(exit.to_string()),
            (None, None) => RankState::Ended("is gone".into()),
            (Some(_), _) if report.is_some() => RankState::Joined,
            (Some(_), _) if self.status_query.missing.contains(&worker) => RankState::Silent,
            (Some(member), _) if member.pid.is_some() => RankState::Running,
            (Some(_), _) => RankState::Starting,
        };
        let pid = self.members.get(&worker).and_then(|member| member.pid);
        let event::WorkerInfo { host, slot, .. } = self.who(worker);
        RankStatus { rank: Rank(0), host, slot, pid, state, report }
    }
}
