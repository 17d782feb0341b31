//! What a worker of an elastic job and its launcher have to say to each other while a world lasts.
//! None of it ends anything; in other jobs it does nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ronde_control::settings::Keeper;
use ronde_control::wire::{Milestone, RankToDriver};

use super::{Engine, Updates, World};

/// How long a word may take to the launcher.
const SOON: Duration = Duration::from_secs(1);

impl Engine {
    /// What the launcher says of the next world. Whoever waits for it does not keep this one alive.
    pub fn updates(&self) -> Option<Arc<Updates>> {
        self.elastic().map(|World { shared, .. }| shared.vigil.sentinel.updates.clone())
    }

    /// Tells the launcher how far this worker has come in this world.
    pub fn reached(&self, milestone: Milestone) {
        self.tell(&RankToDriver::Reached(milestone));
    }

    /// Tells the launcher that this worker wants to be left out of the next world.
    pub fn departing(&self, reason: String) {
        self.tell(&RankToDriver::Departing { reason });
    }

    fn tell(&self, message: &RankToDriver) {
        if let Some(World { shared, .. }) = self.elastic() {
            shared.vigil.sentinel.tell_launcher(message, Instant::now() + SOON);
        }
    }

    fn elastic(&self) -> Option<&World> {
        let keeper = self.place.meeting.as_ref().map(|meeting| meeting.keeper);
        self.world.as_ref().filter(|_| matches!(keeper, Some(Keeper::Elastic(_))))
    }
}
