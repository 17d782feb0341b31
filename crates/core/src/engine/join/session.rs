//! The connection to the launcher while a rank is joining.
//!
//! Whatever a rank waits for while joining, it also listens to the launcher: a message that ends
//! the attempt ends every such wait, is kept, and decides what happens to the rank.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use ronde_control::Epoch;
use ronde_control::settings::RendezvousOwner;
use ronde_control::wire::{Change, DriverToRank, RankToDriver};
use rustix::event::PollFlags;

use super::JoinFailure;
use crate::error::Error;
use crate::transport::socket::{Socket, sleep};
use crate::transport::updates::Updates;
use crate::transport::wire::SealedWire;

/// How long a rank whose attempt has failed waits for the launcher to report why.
const REPORT_WAIT: Duration = Duration::from_millis(50);

pub(super) struct JoinSession {
    keeper: RendezvousOwner,
    wire: SealedWire,
    /// The launcher's message that ended this attempt.
    end: Option<DriverToRank>,
    /// Announced changes for the world after this one.
    changes: Vec<Change>,
    /// When this rank began to wait for the others.
    since: Instant,
}

impl JoinSession {
    pub(super) fn new(keeper: RendezvousOwner, wire: SealedWire) -> JoinSession {
        JoinSession { keeper, wire, end: None, changes: Vec::new(), since: Instant::now() }
    }

    /// The connection to the launcher, once the world is complete, and the changes it has
    /// announced.
    pub(super) fn into_launcher(self, epoch: Epoch) -> ((RendezvousOwner, SealedWire), Updates) {
        let updates = Updates::of(epoch);
        self.changes.into_iter().for_each(|change| updates.note(change));
        ((self.keeper, self.wire), updates)
    }

    pub(super) fn send(
        &mut self,
        message: &impl serde::Serialize,
        deadline: Instant,
    ) -> Result<(), Error> {
        let sent = self.wire.send(message).and_then(|()| self.wire.flush_by(deadline));
        sent.map_err(|error| gone(self.keeper, &error))
    }

    /// Waits for the launcher's next message; forever, if there is no deadline.
    pub(super) fn receive(&mut self, deadline: Option<Instant>) -> Result<DriverToRank, Error> {
        loop {
            if let Some(step) = self.next()? {
                return Ok(step);
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(Error::Setup(
                    "the other ranks did not all call `hvd.init()` in time; \
                     `RONDE_JOIN_TIMEOUT_SECONDS` sets how long to wait"
                        .into(),
                ));
            }
            let left = left.unwrap_or(Duration::from_secs(60));
            sleep(&[(self.wire.as_fd(), PollFlags::IN)], left);
        }
    }

    /// Checks the connection while no message is expected: any message ends the attempt.
    pub(super) fn check(&mut self) -> Result<(), Error> {
        match self.next()? {
            None => Ok(()),
            Some(step) => Err(unexpected(&step)),
        }
    }

    /// Waits for a socket, until the deadline or until the launcher ends the attempt.
    pub(super) fn wait(
        &mut self,
        socket: &Socket,
        flags: PollFlags,
        deadline: Instant,
    ) -> io::Result<()> {
        self.check().map_err(io::Error::other)?;
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"));
        }
        sleep(&[(socket.as_fd(), flags), (self.wire.as_fd(), PollFlags::IN)], left);
        Ok(())
    }

    /// What happens to a rank whose attempt has failed with this error.
    pub(super) fn join_failure(&mut self, error: Error) -> JoinFailure {
        if !matches!(self.keeper, RendezvousOwner::Elastic(_)) {
            return JoinFailure::Final(error);
        }
        // A rank that fails because another one died is often ahead of the launcher's report.
        let until = Instant::now() + REPORT_WAIT;
        while self.end.is_none() && self.check().is_ok() && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            sleep(&[(self.wire.as_fd(), PollFlags::IN)], left);
        }
        match &self.end {
            Some(DriverToRank::Again { reason }) => JoinFailure::Reported(reason.clone()),
            Some(lost @ DriverToRank::Lost { .. }) => JoinFailure::Reported(describe(lost)),
            Some(DriverToRank::Removed { reason }) => JoinFailure::Removed(reason.clone()),
            Some(refused) => JoinFailure::Final(Error::Setup(describe(refused))),
            None => JoinFailure::Unreported(error),
        }
    }

    /// The launcher's next message, if there is one and it does not end this attempt.
    fn next(&mut self) -> Result<Option<DriverToRank>, Error> {
        use DriverToRank::{Again, Ask, Lost, Ping, Refused, Removed, Update};
        loop {
            if let Some(end) = &self.end {
                return Err(Error::Setup(describe(end)));
            }
            match self.wire.receive::<DriverToRank>() {
                // A watcher asks for the job's status, and there is nothing to report yet.
                Ok(Some(Ask)) => {}
                Ok(Some(Ping)) => {
                    let pong = RankToDriver::Pong { waits: Some(self.since.elapsed()) };
                    self.wire.send(&pong).map_err(|error| gone(self.keeper, &error))?;
                }
                Ok(Some(Update { change })) => self.changes.push(change),
                Ok(Some(end @ (Refused { .. } | Lost { .. } | Again { .. } | Removed { .. }))) => {
                    self.end = Some(end);
                }
                Ok(step) => return Ok(step),
                Err(error) => return Err(gone(self.keeper, &error)),
            }
        }
    }
}

impl AsFd for JoinSession {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wire.as_fd()
    }
}

/// The error for a message from the launcher that is not expected now.
pub(super) fn unexpected(step: &DriverToRank) -> Error {
    Error::Setup(format!("unexpected message from the launcher: {step:?}"))
}

fn describe(end: &DriverToRank) -> String {
    match end {
        DriverToRank::Refused { reason }
        | DriverToRank::Again { reason }
        | DriverToRank::Removed { reason } => reason.clone(),
        DriverToRank::Lost { rank, host, cause, .. } => format!("lost {rank} ({host}): {cause}"),
        other => format!("{other:?}"),
    }
}

/// The error when the owner of the rendezvous is gone.
fn gone(keeper: RendezvousOwner, error: &io::Error) -> Error {
    match keeper {
        RendezvousOwner::Launcher | RendezvousOwner::Elastic(_) => Error::launcher_gone(error),
        RendezvousOwner::FirstRank => {
            Error::Setup(format!("rank 0, which hosts the rendezvous, is gone: {error}"))
        }
    }
}
