//! The state that the router holds. A handler takes the parts of it that it uses.

use super::access_policy::AccessPolicies;
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
use crate::services::{Health, Services};
use axum::extract::FromRef;
use lab::http::LabState;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use web::events::Streams;

/// Renders all metrics as Prometheus text.
pub type RenderMetrics = Arc<dyn Fn() -> String + Send + Sync>;

/// The services and settings of the handlers.
pub struct HttpState {
    pub services: Services,
    pub access: Arc<AccessPolicies>,
    pub tokens: Arc<TokenSigner>,
    /// `None`: there is no admin API.
    pub admin: Option<AdminToken>,
    /// `None`: no limits.
    pub limits: Option<Arc<Limits>>,
    pub metrics: RenderMetrics,
    /// The slots for event streams.
    pub streams: Streams,
    pub draining: Draining,
    /// Proxies whose X-Forwarded-For and X-Forwarded-Proto count.
    pub trust_proxy: ProxyTrust,
    pub lab: LabState,
}

/// Set at SIGTERM, before the port closes: `/readyz` and `/routable` say no, all else is answered.
#[derive(Clone, Default)]
pub struct Draining(Arc<AtomicBool>);

impl Draining {
    pub fn announce(&self) {
        self.0.store(true, Relaxed);
    }

    pub fn is_announced(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// One pointer, since it is cloned for every request.
#[derive(Clone)]
pub struct App(Arc<HttpState>);

impl App {
    pub fn new(state: HttpState) -> Self {
        Self(Arc::new(state))
    }
}

impl Deref for App {
    type Target = HttpState;

    fn deref(&self) -> &HttpState {
        &self.0
    }
}

/// Lets handlers take `State<PART>`.
macro_rules! parts {
    ($($part:ty: $($field:ident).+;)*) => {$(
        impl FromRef<App> for $part {
            fn from_ref(app: &App) -> Self {
                app.$($field).+.clone()
            }
        }
    )*};
}

parts! {
    Arc<Catalog>: services.catalog;
    Arc<Admission>: services.admission;
    Arc<Orders>: services.orders;
    Arc<Payments>: services.payments;
    Arc<Auditor>: services.auditor;
    Arc<Health>: services.health;
    Arc<AccessPolicies>: access;
    Arc<WaitingRooms>: access.rooms;
    Arc<Bots>: access.bots;
    Arc<TokenSigner>: tokens;
    RenderMetrics: metrics;
    Streams: streams;
    Draining: draining;
    ProxyTrust: trust_proxy;
    LabState: lab;
}
