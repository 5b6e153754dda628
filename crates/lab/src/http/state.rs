//! What the lab's handlers work with.

use crate::service::Lab;
use std::sync::Arc;
use web::{events::Streams, proxies::ProxyTrust};

/// What the lab's handlers work with.
#[derive(Clone)]
pub struct LabState {
    /// `None`: every lab route answers 404.
    pub lab: Option<Arc<Lab>>,
    /// The places for event streams.
    pub streams: Streams,
    /// Which proxies in front say who is asking.
    pub trust_proxy: ProxyTrust,
    /// Where this program listens, and a pooler of its: those are not stormed from here.
    pub own_ports: Arc<[u16]>,
    /// Whether one address may have only so much.
    pub limits: bool,
}

/// No lab: for the document, which has its routes all the same.
impl Default for LabState {
    fn default() -> Self {
        Self {
            lab: None,
            streams: Streams::new(false, Default::default()),
            trust_proxy: ProxyTrust::Nobody,
            own_ports: Arc::default(),
            limits: false,
        }
    }
}
