//! Whether workers and hosts answer, and what their silence means for the job.

use super::{AgentId, JobAction, JobMachine};
use crate::event::JobEventKind;
use crate::liveness::{self, Roster};
use crate::wire::DriverToRank;
use crate::{Time, Worker};

impl JobMachine {
    /// An agent has connected or sent something.
    pub(super) fn heard(&mut self, agent: AgentId, now: Time) -> Vec<JobAction> {
        if self.hosts.of(agent).is_some() && !self.is_over {
            self.liveness.heard_host(agent.0, now);
        }
        Vec::new()
    }

    /// A worker's process was started.
    pub(super) fn started(&mut self, worker: Worker, pid: u32) {
        let Some(member) = self.members.get_mut(&worker) else { return };
        member.pid = Some(pid);
        self.verdict.runs_as(worker, pid);
        self.liveness.started(worker, member.agent.0, pid);
        self.happened(JobEventKind::WorkerStarted { member: self.who(worker), pid });
    }

    /// Pings workers and agents, and reports those that do not answer.
    pub(super) fn check_liveness(&mut self, now: Time) {
        if self.liveness.next_wakeup().is_none_or(|time| time > now) {
            return;
        }
        let roster = self.roster();
        for action in self.liveness.tick(&roster, now) {
            match action {
                liveness::LivenessAction::Ping(workers) => {
                    let connection = |worker| self.members.get(worker)?.connection;
                    let connections = workers.iter().filter_map(connection).collect();
                    self.actions.push(JobAction::Tell(connections, DriverToRank::Ping));
                }
                liveness::LivenessAction::Look(host, workers) => {
                    self.actions.push(JobAction::Look(AgentId(host), workers));
                }
                liveness::LivenessAction::Overdue(worker, cause) => {
                    self.overdue(worker, cause, now);
                }
                liveness::LivenessAction::HostOverdue(host, during) => {
                    self.actions.push(JobAction::Cut(AgentId(host), during));
                }
                liveness::LivenessAction::Tell(what) => self.happened(what),
            }
        }
    }

    /// Which workers can be pinged, and which ones others wait for.
    pub(super) fn roster(&self) -> Roster {
        let some_wait = self.members.values().any(|member| member.is_waiting());
        let mut roster = Roster::default();
        let hosts = self.hosts.all.iter();
        roster.hosts =
            hosts.filter_map(|host| Some((host.agent.id()?.0, host.name.clone()))).collect();
        for (worker, member) in &self.members {
            roster.workers.insert(*worker, self.who(*worker));
            match member.connection {
                Some(_) if member.answers => roster.connected.insert(*worker),
                None if some_wait => roster.missing.insert(*worker),
                _ => continue,
            };
        }
        roster
    }
}
