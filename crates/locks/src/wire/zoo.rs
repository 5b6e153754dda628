//! One client's session with ZooKeeper.

use super::{
    meter::Server,
    tap::{Tap, tapped},
};
use crate::zookeeper_client::{Client, Error};
use std::{panic::Location, sync::Arc, time::Duration};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout_at},
};

/// One client's session with ZooKeeper, counted and watched. Clones share it.
#[derive(Clone)]
pub struct Zoo {
    session: Arc<Session>,
    tap: Tap,
}

tapped!(Zoo);

struct Session {
    cluster: String,
    timeout: Duration,
    client: Mutex<Option<Client>>,
}

impl Zoo {
    /// `cluster` like `127.0.0.1:2181,…`. Connects on first use, and again after the session's end.
    pub fn new(cluster: &str, timeout: Duration) -> Self {
        let session = Session { cluster: cluster.to_owned(), timeout, client: Mutex::default() };
        Self { session: Arc::new(session), tap: Tap::new(Server::ZooKeeper, "zookeeper") }
    }

    /// The current session, or a new one.
    pub(crate) async fn client(&self, deadline: Instant) -> Result<Client, Error> {
        let mut current = self.session.client.lock().await;
        if let Some(client) = current.as_ref().filter(|client| !client.state().is_terminated()) {
            return Ok(client.clone());
        }
        let connecting = Client::connector()
            .with_session_timeout(self.session.timeout)
            .connect(&self.session.cluster);
        // A caller that does not wait still gets one real attempt.
        let connect_by = deadline.max(Instant::now() + self.session.timeout);
        let client = timeout_at(connect_by, connecting).await.map_err(|_| Error::Timeout)??;
        *current = Some(client.clone());
        Ok(client)
    }

    /// Ends the session, and with it its nodes.
    pub async fn close(&self) {
        *self.session.client.lock().await = None;
    }

    /// Passes a request on. It must be lazy: the library sends at the call, and a watcher may delay
    /// it.
    #[track_caller]
    pub(crate) fn ask<'a, T: Send>(
        &'a self,
        text: String,
        show: impl FnOnce(&T) -> String + Send + 'a,
        request: impl Future<Output = Result<T, Error>> + Send + 'a,
    ) -> impl Future<Output = Result<T, Error>> + Send + 'a {
        let at = Location::caller();
        async move { self.tap.pass(at, || (text, None), show, request).await }
    }
}
