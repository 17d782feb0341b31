//! Whether workers and hosts still answer: who is asked, and what their silence means for the job.

use super::{Action, AgentId, Machine};
use crate::event::Happening;
use crate::liveness::{self, Roll};
use crate::wire::DriverToRank;
use crate::{Time, Worker};

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

    /// Asks who is still there, and tells the user who is not.
    pub(super) fn look_around(&mut self, now: Time) {
        if self.liveness.next_wakeup().is_none_or(|time| time > now) {
            return;
        }
        let roll = self.roll();
        for action in self.liveness.tick(&roll, now) {
            match action {
                liveness::Action::Ping(workers) => {
                    let way = |worker| self.members.get(worker)?.connection;
                    let ways = workers.iter().filter_map(way).collect();
                    self.actions.push(Action::Tell(ways, DriverToRank::Ping));
                }
                liveness::Action::Look(host, workers) => {
                    self.actions.push(Action::Look(AgentId(host), workers));
                }
                liveness::Action::Overdue(worker, cause) => self.overdue(worker, cause, now),
                liveness::Action::HostOverdue(host, during) => {
                    self.actions.push(Action::Cut(AgentId(host), during));
                }
                liveness::Action::Tell(what) => self.happened(what),
            }
        }
    }

    /// Who can be asked, and whom the others wait for.
    pub(super) fn roll(&self) -> Roll {
        let somebody_waits = self.members.values().any(|member| member.is_waiting());
        let mut roll = Roll::default();
        let hosts = self.hosts.all.iter();
        roll.hosts =
            hosts.filter_map(|host| Some((host.agent.id()?.0, host.name.clone()))).collect();
        for (worker, member) in &self.members {
            roll.workers.insert(*worker, self.who(*worker));
            match member.connection {
                Some(_) if member.answers => roll.connected.insert(*worker),
                None if somebody_waits => roll.missing.insert(*worker),
                _ => continue,
            };
        }
        roll
    }
}
