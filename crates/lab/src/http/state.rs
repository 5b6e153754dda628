//! What the lab's handlers work with.

use crate::service::Lab;
use std::sync::Arc;
use web::{events::Streams, proxies::ProxyTrust};

/// What the lab's handlers work with. The default is no lab: for the document, which has its routes
/// all the same.
#[derive(Clone, Default)]
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
