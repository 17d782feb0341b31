//! The launcher's words while a rank is on its way into a world.
//!
//! Whatever a rank waits for on this way, it has an ear to the launcher: a word that ends the attempt
//! ends every such wait, is kept, and decides what becomes of the rank.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use ronde_control::Epoch;
use ronde_control::settings::Keeper;
use ronde_control::wire::{Change, DriverToRank, RankToDriver};
use rustix::event::PollFlags;

use super::Setback;
use crate::error::Error;
use crate::transport::socket::{Socket, sleep};
use crate::transport::updates::Updates;
use crate::transport::wire::Wire;

/// How long a rank whose attempt has failed waits for the launcher's word about it.
const WORD: Duration = Duration::from_millis(50);

pub(super) struct Ear {
    keeper: Keeper,
    wire: Wire,
    /// What the launcher said that ends this attempt.
    end: Option<DriverToRank>,
    /// What it said of the world after this one.
    changes: Vec<Change>,
    /// Since when this rank waits for the others.
    since: Instant,
}

impl Ear {
    pub(super) fn new(keeper: Keeper, wire: Wire) -> Ear {
        Ear { keeper, wire, end: None, changes: Vec::new(), since: Instant::now() }
    }

    /// The connection to the launcher, for a world that is complete, and what is kept of its words.
    pub(super) fn into_launcher(self, epoch: Epoch) -> ((Keeper, Wire), Updates) {
        let updates = Updates::of(epoch);
        self.changes.into_iter().for_each(|change| updates.note(change));
        ((self.keeper, self.wire), updates)
    }

    pub(super) fn tell(
        &mut self,
        message: &impl serde::Serialize,
        deadline: Instant,
    ) -> Result<(), Error> {
        let told = self.wire.send(message).and_then(|()| self.wire.flush_by(deadline));
        told.map_err(|error| gone(self.keeper, &error))
    }

    /// Waits for the launcher's next step; for ever, if there is no deadline.
    pub(super) fn hear(&mut self, deadline: Option<Instant>) -> Result<DriverToRank, Error> {
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

    /// Nothing is expected of the launcher now: whatever it says ends the attempt.
    pub(super) fn check(&mut self) -> Result<(), Error> {
        match self.next()? {
            None => Ok(()),
            Some(step) => Err(out_of_turn(&step)),
        }
    }

    /// Waits for a socket, no longer than until the deadline or until the launcher ends the attempt.
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

    /// What becomes of a rank whose attempt has failed with this error.
    pub(super) fn setback(&mut self, error: Error) -> Setback {
        if !matches!(self.keeper, Keeper::Elastic(_)) {
            return Setback::Final(error);
        }
        // Whoever fails because another one died is often faster than the news of it.
        let until = Instant::now() + WORD;
        while self.end.is_none() && self.check().is_ok() && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            sleep(&[(self.wire.as_fd(), PollFlags::IN)], left);
        }
        match &self.end {
            Some(DriverToRank::Again { reason }) => Setback::Told(reason.clone()),
            Some(lost @ DriverToRank::Lost { .. }) => Setback::Told(words(lost)),
            Some(DriverToRank::Removed { reason }) => Setback::Removed(reason.clone()),
            Some(refused) => Setback::Final(Error::Setup(words(refused))),
            None => Setback::Untold(error),
        }
    }

    /// The launcher's next step, if it has said one and not that this attempt is over.
    fn next(&mut self) -> Result<Option<DriverToRank>, Error> {
        use DriverToRank::{Again, Ask, Lost, Ping, Refused, Removed, Update};
        loop {
            if let Some(end) = &self.end {
                return Err(Error::Setup(words(end)));
            }
            match self.wire.receive::<DriverToRank>() {
                // Somebody watches the job, and there is nothing to tell yet.
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

impl AsFd for Ear {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wire.as_fd()
    }
}

/// The error when the launcher says what nobody waits for.
pub(super) fn out_of_turn(step: &DriverToRank) -> Error {
    Error::Setup(format!("the launcher answered out of turn: {step:?}"))
}

fn words(end: &DriverToRank) -> String {
    match end {
        DriverToRank::Refused { reason }
        | DriverToRank::Again { reason }
        | DriverToRank::Removed { reason } => reason.clone(),
        DriverToRank::Lost { rank, host, cause, .. } => format!("lost {rank} ({host}): {cause}"),
        other => format!("{other:?}"),
    }
}

/// The error when whoever lets the ranks meet is no longer there.
fn gone(keeper: Keeper, error: &io::Error) -> Error {
    match keeper {
        Keeper::Launcher | Keeper::Elastic(_) => Error::launcher_gone(error),
        Keeper::FirstRank => {
            Error::Setup(format!("rank 0, at which the others meet, is gone: {error}"))
        }
    }
}
