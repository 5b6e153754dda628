//! The state that handlers share.

use super::limits::Limits;
use crate::access::bots::Bots;
use crate::access::waiting_room::WaitingRooms;
use crate::admission::Admission;
use crate::audit::Auditor;
use crate::auth::{AdminToken, TokenSigner};
use crate::catalog::Catalog;
use crate::config::ProxyTrust;
use crate::orders::Orders;
use crate::payments::Payments;
use crate::services::Health;
use lab::http::LabState;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio_util::sync::CancellationToken;
use web::events::Streams;

/// The services and settings of the handlers.
#[derive(Clone)]
pub struct HttpState {
    pub catalog: Arc<Catalog>,
    pub admission: Arc<Admission>,
    pub orders: Arc<Orders>,
    pub payments: Arc<Payments>,
    pub auditor: Arc<Auditor>,
    pub health: Arc<Health>,
    pub rooms: Arc<WaitingRooms>,
    pub bots: Arc<Bots>,
    pub tokens: Arc<TokenSigner>,
    /// `None`: there is no admin API.
    pub admin: Option<AdminToken>,
    /// `None`: no limits.
    pub limits: Option<Arc<Limits>>,
    /// Renders all metrics as Prometheus text.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
    /// The slots for event streams.
    pub streams: Streams,
    /// Cancelled at shutdown: event streams end, `/readyz` says no.
    pub draining: CancellationToken,
    /// Set at SIGTERM, before the port closes: `/readyz` and `/routable` say no, all else is
    /// answered.
    pub drain_announced: Arc<AtomicBool>,
    /// Proxies whose X-Forwarded-For and X-Forwarded-Proto count.
    pub trust_proxy: ProxyTrust,
    pub lab: LabState,
}

/// One pointer, since it is cloned for every request.
pub type App = Arc<HttpState>;
