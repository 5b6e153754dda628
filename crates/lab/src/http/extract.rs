//! Who asks the lab.

use super::error::{NOT_FOUND, Problem};
use super::state::LabState;
use crate::service::Lab;
use axum::{extract::FromRequestParts, http::request::Parts};
use std::sync::Arc;
use web::address::Address;
use web::events::{Place, Streams};
use web::extract::refuse_cross_origin;

/// Who asks the lab, if there is one. Named first in a handler: with `LAB=off` nothing else is
/// looked at.
///
/// Nobody says who they are here, so a page of another site could storm a visitor's own machine:
/// what changes something comes from this site's pages, or from no page at all.
pub struct Visitor {
    pub lab: Arc<Lab>,
    address: Address,
    limited: bool,
    streams: Streams,
}

impl Visitor {
    /// As far as the lab limits what one address may have: not with `RATE_LIMIT=off`.
    pub fn limited(&self) -> Option<Address> {
        self.limited.then_some(self.address)
    }

    /// A place for a stream of events of this kind.
    pub fn place(&self, of: &'static str) -> Result<Place, Problem> {
        let gauge = metrics::gauge!("flash_sale_sse_subscribers", "stream" => of);
        self.streams.take_place(self.address, gauge)
    }
}

impl FromRequestParts<LabState> for Visitor {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &LabState) -> Result<Self, Problem> {
        let lab = state.lab.clone().ok_or(Problem::new(&NOT_FOUND))?;
        if !parts.method.is_safe() {
            refuse_cross_origin(parts)?;
        }
        let address = Address::of(&parts.extensions, &parts.headers, state.trust_proxy);
        Ok(Self { lab, address, limited: state.limits, streams: state.streams.clone() })
    }
}
