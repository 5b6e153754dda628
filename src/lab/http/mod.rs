//! The lab's routes: strategies, arenas, purchases, storms, verdicts, lessons, locks. Without a lab
//! (`LAB=off`) every handler answers 404 before it looks at anything.
//!
//! Nobody has to say who they are: an arena sells nothing. It is bounded in number, size and age, and
//! whoever knows its id may use it.

mod arenas;
mod error;
mod extract;
mod lessons;
mod strategies;

#[cfg(test)]
pub use error::ALL as ALL_KINDS;

use super::Lab;
use crate::{
    config::ProxyTrust,
    web::{address::Address, events::Streams},
};
use axum::http::request::Parts;
use std::sync::Arc;
use tower_http::compression::CompressionLayer;
use utoipa_axum::{router::OpenApiRouter, routes};

/// What the lab's handlers work with.
#[derive(Clone)]
pub struct LabState {
    /// `None`: every lab route answers 404.
    pub lab: Option<Arc<Lab>>,
    /// The places for event streams.
    pub streams: Streams,
    /// Which proxies in front say who is asking.
    pub trust_proxy: ProxyTrust,
    /// Whether one address may have only so much.
    pub limits: bool,
}

impl LabState {
    fn address(&self, parts: &Parts) -> Address {
        Address::of(&parts.extensions, &parts.headers, self.trust_proxy)
    }
}

/// No lab: for the document, which has its routes all the same.
impl Default for LabState {
    fn default() -> Self {
        Self {
            lab: None,
            streams: Streams::new(false, Default::default()),
            trust_proxy: ProxyTrust::Nobody,
            limits: false,
        }
    }
}

/// /api/v1/lab
pub fn routes<S: Clone + Send + Sync + 'static>(state: LabState) -> OpenApiRouter<S> {
    OpenApiRouter::new()
        .routes(routes!(strategies::list))
        .routes(routes!(strategies::locks))
        .routes(routes!(arenas::create))
        .routes(routes!(arenas::delete))
        .routes(routes!(arenas::purchase))
        .routes(routes!(arenas::storm))
        .routes(routes!(arenas::events))
        .routes(routes!(arenas::verdict))
        .routes(routes!(arenas::report))
        .routes(routes!(lessons::list))
        .routes(routes!(lessons::play))
        .routes(routes!(lessons::ids))
        .layer(CompressionLayer::new())
        .with_state(state)
}
