//! Messages between a worker of an elastic job and its launcher while a world lasts. None of them
//! ends anything, and in other jobs these functions do nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ronde_control::settings::RendezvousOwner;
use ronde_control::wire::{Milestone, RankToDriver};

use super::{Engine, JoinedWorld, Updates};

/// How long sending a message to the launcher may take.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

impl Engine {
    /// The launcher's announcements about the next world. Waiting for them does not keep this world
    /// alive.
    pub fn updates(&self) -> Option<Arc<Updates>> {
        self.elastic()
            .map(|JoinedWorld { shared, .. }| shared.waiter.failure_detector.updates.clone())
    }

    /// Reports to the launcher how far this worker has come in this world.
    pub fn reached(&self, milestone: Milestone) {
        self.send(&RankToDriver::Reached(milestone));
    }

    /// Tells the launcher to leave this worker out of the next world.
    pub fn departing(&self, reason: String) {
        self.send(&RankToDriver::Departing { reason });
    }

    fn send(&self, message: &RankToDriver) {
        if let Some(JoinedWorld { shared, .. }) = self.elastic() {
            shared.waiter.failure_detector.tell_launcher(message, Instant::now() + SEND_TIMEOUT);
        }
    }

    fn elastic(&self) -> Option<&JoinedWorld> {
        let keeper =
            self.place.rendezvous_info.as_ref().map(|rendezvous_info| rendezvous_info.keeper);
        self.world.as_ref().filter(|_| matches!(keeper, Some(RendezvousOwner::Elastic(_))))
    }
}
