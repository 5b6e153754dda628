//! The composition root: settings → services → router and tasks.
//!
//! The caller passes the listener and the shutdown signal, so a test owns both.

mod error;
mod stores;

pub use crate::running::{Role, Running};
pub use error::AppError;
pub use stores::{Stores, admin_token, token_signer};

use crate::access::bots::limits::{Quotas, SharedLimits, WhenAway};
use crate::access::waiting_room::WaitingRooms;
use crate::auth::{AdminToken, TokenSigner};
use crate::config::ProxyTrust;
use crate::http::{self, AccessPolicies, ConnectionLimits, Draining, HttpState, Limits};
use crate::telemetry;
use lab::Lab;
use lab::http::LabState;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tasks::Tasks;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use web::events::Streams;

/// The time at shutdown for requests; then for the lab. Together with those of `running.rs` and
/// `stores.rs` below 10 s.
const REQUESTS_GRACE: Duration = Duration::from_secs(2);
const LAB_GRACE: Duration = Duration::from_millis(500);
const POOL_GRACE: Duration = Duration::from_millis(500);

/// The settings of the HTTP server, besides the services.
pub struct Front {
    pub tokens: TokenSigner,
    pub admin: Option<AdminToken>,
    pub rate_limit: bool,
    /// Shared limits, and their behaviour while Redis is away; `None`: off.
    pub shared_limits: Option<WhenAway>,
    pub trust_proxy: ProxyTrust,
    /// How long it serves on after SIGTERM while `/readyz` already says no.
    pub drain_notice: Duration,
    pub connections: ConnectionLimits,
    /// `None`: every lab route answers 404.
    pub lab: Option<Lab>,
}

/// Serves until `shutdown`; then finishes requests, ends event streams and drains the writer.
pub async fn serve(
    running: Running,
    listener: TcpListener,
    front: Front,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), AppError> {
    let (draining, connections) = (CancellationToken::new(), front.connections);
    let drain_notice = front.drain_notice;
    let own_port = listener.local_addr().map_or(0, |address| address.port());
    let postgres = running.services.databases.postgres.connections();
    let own_ports = [own_port, postgres.connect_options().get_port()];
    let state = http_state(&running, front, draining.clone(), own_ports);
    let (announced, lab) = (state.draining.clone(), state.lab.lab.clone());
    let (router, until) = (http::router(state), draining.clone());
    let server = http::server::serve(listener, router, connections, until, REQUESTS_GRACE);
    let mut server = tokio::spawn(server);
    tokio::select! {
        () = shutdown => {}
        _ = &mut server => {
            // Only a bug ends the server early.
            running.stop().await;
            return Err(AppError::io("serve")(io::Error::other("the server ended by itself")));
        }
    }
    announced.announce();
    if !drain_notice.is_zero() {
        tracing::info!(notice = ?drain_notice, "draining: still serving, no longer ready");
        tokio::time::sleep(drain_notice).await;
    }
    tracing::info!("stopping: finishing requests, then writing what is accepted");
    draining.cancel();
    let _ = server.await;
    if let Some(lab) = lab {
        let _ = tokio::time::timeout(LAB_GRACE, lab.close()).await;
    }
    running.stop().await;
    Ok(())
}

/// The state of the handlers; starts their tasks.
fn http_state(
    running: &Running,
    front: Front,
    draining: CancellationToken,
    own_ports: [u16; 2],
) -> HttpState {
    let (tasks, services) = (running.tasks(), running.services.clone());
    let limits = front.rate_limit.then(|| Arc::new(Limits::new()));
    if let Some(limits) = &limits {
        tasks.spawn("limits", limits, |limits, task| async move {
            tokio::select! {
                () = limits.upkeep() => {}
                () = task.stop.cancelled() => {}
            }
        });
    }
    spawn_metrics(tasks);
    let lab = front.lab.map(Arc::new);
    if let Some(lab) = &lab {
        tasks.spawn("lab", lab, |lab, task| lab.upkeep(task.stop));
    }
    let redis = &services.databases.redis;
    let shared = |away| SharedLimits::new(redis.clone(), Quotas::default(), away);
    let shared_limits = front.shared_limits.map(shared);
    let access = AccessPolicies::new(&services, &front.tokens, shared_limits);
    tasks.spawn("waiting rooms", &access.rooms, WaitingRooms::run);
    let streams = Streams::new(front.rate_limit, draining);
    let metrics = telemetry::metrics();
    HttpState {
        services,
        access: Arc::new(access),
        tokens: Arc::new(front.tokens),
        admin: front.admin,
        limits,
        metrics: Arc::new(move || metrics.render()),
        streams: streams.clone(),
        draining: Draining::default(),
        trust_proxy: front.trust_proxy,
        lab: LabState {
            lab,
            streams,
            trust_proxy: front.trust_proxy,
            own_ports: own_ports.into(),
            limits: front.rate_limit,
        },
    }
}

/// Runs a worker until `shutdown`. Serves health and metrics on `listener`.
pub async fn work(
    running: Running,
    listener: Option<TcpListener>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let metrics = telemetry::metrics();
    let tasks = running.tasks();
    spawn_metrics(tasks);
    let draining = CancellationToken::new();
    let server = listener.map(|listener| {
        let render = move || metrics.render();
        let router = http::of_a_worker(running.services.health.clone(), render, draining.clone());
        let until = draining.clone().cancelled_owned();
        tokio::spawn(async move {
            let served = axum::serve(listener, router).with_graceful_shutdown(until);
            if let Err(error) = served.await {
                tracing::error!(%error, "metrics are served no more");
            }
        })
    });
    shutdown.await;
    draining.cancel();
    running.stop().await;
    if let Some(server) = server {
        // An open connection must not keep the process alive.
        let end = server.abort_handle();
        if tokio::time::timeout(POOL_GRACE, server).await.is_err() {
            end.abort();
        }
    }
}

/// Drains the raw samples of histograms, which would grow for ever.
fn spawn_metrics(tasks: &Tasks) {
    let metrics = Arc::new(telemetry::metrics());
    tasks.spawn("metrics", &metrics, |metrics, task| async move {
        loop {
            tokio::select! {
                () = tokio::time::sleep(Duration::from_secs(5)) => metrics.run_upkeep(),
                () = task.stop.cancelled() => return,
            }
        }
    });
}
