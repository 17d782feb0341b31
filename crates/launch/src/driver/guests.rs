//! Those who come to the rendezvous for something else than meeting; each is served by a task of its
//! own, which ends with the driver.

use std::sync::Arc;

use ronde_control::wire::Greeting;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::errand::{self, Errand};
use super::{News, watchers};
use crate::wire::Sealed;

/// The guests of a job.
pub(super) struct Guests {
    errand: Option<Arc<Errand>>,
    news: mpsc::Sender<News>,
    tasks: JoinSet<()>,
}

impl Guests {
    /// Expects those who come for `function`, if there is one; `ranks` is how many, if that is known.
    pub(super) fn new(
        function: Option<Arc<[u8]>>,
        ranks: Option<usize>,
        news: mpsc::Sender<News>,
    ) -> Guests {
        let errand = function.map(|function| Errand::new(function, ranks));
        Guests { errand: errand.map(Arc::new), news, tasks: JoinSet::new() }
    }

    /// Serves somebody who has proved that they hold the key.
    pub(super) fn receive(&mut self, sealed: Sealed, greeting: Greeting) {
        // Those who have been served are forgotten.
        while self.tasks.try_join_next().is_some() {}
        let (errand, news) = (self.errand.clone(), self.news.clone());
        self.tasks.spawn(async move {
            let served = match greeting {
                Greeting::Watch { version } => watchers::serve(sealed, &version, &news).await,
                errands => errand::serve(sealed, errands, errand.as_deref(), &news).await,
            };
            if let Err(error) = served {
                tracing::debug!(%error, "a guest has gone");
            }
        });
    }
}
