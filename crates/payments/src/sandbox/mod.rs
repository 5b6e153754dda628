//! A sandbox of a payment provider: charges, refunds, hosted pages and webhooks as a real one has
//! them, over HTTP, with books of its own on disk. It moves no money, and goes wrong when told to.

mod api;
mod books;
mod delivery;
pub mod faults;
mod journal;
mod page;
mod settings;
mod state;
mod store;

pub use settings::Settings;

use crate::client::{Http, parse_http_url};
use crate::signature::WebhookSecret;
use delivery::Deliveries;
use state::Provider;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use store::Store;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use web::server::{self, ConnectionLimits};

/// How long requests may take after the stop.
const GRACE: Duration = Duration::from_secs(5);
const MOST_CONNECTIONS: usize = 4_096;

#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("{0}")]
    Setting(String),
    #[error("listen on {0}: {1}")]
    Listen(SocketAddr, io::Error),
    #[error("{0}: {1}")]
    File(String, io::Error),
}

/// A sandbox that runs. Without [`Sandbox::stop`] it goes on until the runtime ends.
pub struct Sandbox {
    pub address: SocketAddr,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// Starts a sandbox on a port of its own.
///
/// Beside a shop: bind the shop's port first, as `webhook_url` names it, and at the end stop the
/// shop first: webhooks that it no longer takes are sent after the next start. A data file serves
/// one sandbox at a time.
pub async fn start(settings: Settings) -> Result<Sandbox, SandboxError> {
    let url = parse_http_url(&settings.webhook_url).map_err(SandboxError::Setting)?;
    if settings.api_key.is_empty() || settings.webhook_secret.is_empty() {
        return Err(SandboxError::Setting("the key and the secret must not be empty".to_owned()));
    }
    let file = settings.data_file;
    let name = file.display().to_string();
    let opened = tokio::task::spawn_blocking(move || Store::open(&file)).await;
    let store = opened.unwrap_or_else(|panic| Err(io::Error::other(panic)));
    let store = Arc::new(store.map_err(|error| SandboxError::File(name, error))?);
    let unbound = |error| SandboxError::Listen(settings.listen_addr, error);
    let listener = server::listen(settings.listen_addr).map_err(unbound)?;
    let address = listener.local_addr().map_err(unbound)?;
    let (faults, watched) = watch::channel(settings.faults);
    let public_url = settings.public_url.unwrap_or_else(|| format!("http://{address}"));
    let provider = Provider {
        store: store.clone(),
        faults,
        api_key: settings.api_key,
        public_url: public_url.trim_end_matches('/').to_owned(),
    };
    let secret = WebhookSecret::new(&settings.webhook_secret);
    let (http, permits) = (Http::default(), Semaphore::new(delivery::AT_A_TIME));
    let deliveries = Deliveries { store, faults: watched, url, secret, http, permits };
    let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
    let limits = ConnectionLimits::new(MOST_CONNECTIONS, false);
    let router = api::router(Arc::new(provider));
    tasks.spawn(server::serve(listener, router, limits, stop.clone(), GRACE));
    tasks.spawn(deliveries.run(stop.clone()));
    Ok(Sandbox { address, stop, tasks })
}

/// The same, on a free port if its own is taken.
pub async fn start_anywhere(settings: Settings) -> Result<Sandbox, SandboxError> {
    match start(settings.clone()).await {
        Err(SandboxError::Listen(mut address, _)) => {
            address.set_port(0);
            start(Settings { listen_addr: address, ..settings }).await
        }
        started => started,
    }
}

impl Sandbox {
    /// The address of its API.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Finishes requests and closes the file. What was not delivered is after the next start.
    pub async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}
