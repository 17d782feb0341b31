//! Those who come to the rendezvous for something else than meeting; each is served by a task of its
//! own, which ends with the driver.

use std::sync::Arc;

use ronde_control::wire::Greeting;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::remote_call::{self, RemoteCall};
use super::{DriverInput, watchers};
use crate::wire::SealedConnection;

/// The guests of a job.
pub(super) struct SideConnections {
    remote_call: Option<Arc<RemoteCall>>,
    news: mpsc::Sender<DriverInput>,
    tasks: JoinSet<()>,
}

impl SideConnections {
    /// Expects those who come for `function`, if there is one; `ranks` is how many, if that is known.
    pub(super) fn new(
        function: Option<Arc<[u8]>>,
        ranks: Option<usize>,
        news: mpsc::Sender<DriverInput>,
    ) -> SideConnections {
        let remote_call = function.map(|function| RemoteCall::new(function, ranks));
        SideConnections { remote_call: remote_call.map(Arc::new), news, tasks: JoinSet::new() }
    }

    /// Serves somebody who has proved that they hold the key.
    pub(super) fn receive(&mut self, sealed: SealedConnection, greeting: Greeting) {
        // Those who have been served are forgotten.
        while self.tasks.try_join_next().is_some() {}
        let (remote_call, news) = (self.remote_call.clone(), self.news.clone());
        self.tasks.spawn(async move {
            let served = match greeting {
                Greeting::Watch { version } => watchers::serve(sealed, &version, &news).await,
                remote_calls => {
                    remote_call::serve(sealed, remote_calls, remote_call.as_deref(), &news).await
                }
            };
            if let Err(error) = served {
                tracing::debug!(%error, "a guest has gone");
            }
        });
    }
}
