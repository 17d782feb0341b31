//! Whether workers and hosts still answer: who is asked, and what their silence means for the job.

use std::collections::BTreeSet;

use super::{Action, AgentId, Machine};
use crate::event::Happening;
use crate::liveness::{self, Roll};
use crate::wire::DriverToRank;
use crate::{Connection, Time, Worker};

impl Machine {
    /// An agent is there, or has said something.
    pub(super) fn heard(&mut self, agent: AgentId, now: Time) -> Vec<Action> {
        if self.hosts.of(agent).is_some() && !self.is_over {
            self.liveness.heard_host(agent.0, now);
        }
        Vec::new()
    }

    /// A worker's process runs.
    pub(super) fn started(&mut self, worker: Worker, pid: u32) {
        let Some(member) = self.members.get_mut(&worker) else { return };
        member.pid = Some(pid);
        self.liveness.started(worker, member.agent.0, pid);
        self.happened(Happening::WorkerStarted { member: self.who(worker), pid });
    }

    /// A worker's process was stopped.
    pub(super) fn stopped(&mut self, worker: Worker, now: Time) {
        self.liveness.stopped(worker, now);
        if let Some(member) = self.member(worker) {
            member.stopped.get_or_insert(now);
        }
    }

    /// A worker's process goes on.
    pub(super) fn continued(&mut self, worker: Worker) {
        self.liveness.continued(worker);
        if let Some(member) = self.member(worker) {
            member.stopped = None;
        }
    }

    /// Asks who is still there, and tells the user who is not.
    pub(super) fn look_around(&mut self, now: Time) {
        if self.liveness.next_wakeup().is_none_or(|time| time > now) {
            return;
        }
        let roll = self.roll();
        for action in self.liveness.tick(&roll, now) {
            match action {
                liveness::Action::Ping(workers) => {
                    let ways = workers.iter().filter_map(|worker| self.way_to(*worker)).collect();
                    self.actions.push(Action::Tell(ways, DriverToRank::Ping));
                }
                liveness::Action::Look(host, workers) => {
                    self.actions.push(Action::Look(AgentId(host), workers));
                }
                liveness::Action::Overdue(worker, cause) => self.overdue(worker, cause, now),
                liveness::Action::HostOverdue(host, during) => {
                    self.actions.push(Action::Cut(AgentId(host), during));
                }
                news => self.tell_of_silence(&news, now),
            }
        }
    }

    /// Somebody is stopped or silent, or goes on.
    fn tell_of_silence(&mut self, news: &liveness::Action, now: Time) {
        match news {
            liveness::Action::Halted(worker, ..) => self.stopped(*worker, now),
            liveness::Action::Resumed(worker, _) => self.continued(*worker),
            _ => {}
        }
        let limit = self.terms.stopped.filter(|_| !self.terms.outlives_losses());
        let member = |worker| self.members.contains_key(&worker).then(|| self.who(worker));
        let host = |number| self.hosts.of(AgentId(number)).map(|index| self.hosts.name(index));
        if let Some(what) = news.happening(limit, member, host) {
            self.happened(what);
        }
    }

    fn way_to(&self, worker: Worker) -> Option<Connection> {
        self.members.get(&worker)?.connection
    }

    /// Who can be asked, and whom the others wait for.
    pub(super) fn roll(&self) -> Roll {
        let somebody_waits = self.members.values().any(|member| member.is_waiting());
        let mut roll = Roll { connected: BTreeSet::new(), missing: BTreeSet::new() };
        for (worker, member) in &self.members {
            match member.connection {
                Some(_) if member.answers => roll.connected.insert(*worker),
                None if somebody_waits => roll.missing.insert(*worker),
                _ => continue,
            };
        }
        roll
    }
}
