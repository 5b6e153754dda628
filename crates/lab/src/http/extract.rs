//! What a request to the lab says about itself: which arena it is about, and who asks.

use super::error::{ARENA_NOT_FOUND, JUDGEMENT_NOT_FOUND, NOT_FOUND, Problem};
use super::state::LabState;
use crate::service::{Lab, is_arena_id};
use crate::{arena::Arena, judgement::Judgement};
use axum::{extract::FromRequestParts, http::request::Parts};
use std::{convert::Infallible, marker::PhantomData, str::FromStr, sync::Arc};
use web::events::{Place, Streams};
use web::extract::{Named, refuse_cross_origin};
use web::{address::Address, problem::Kind};

/// The lab, if there is one. Named first in a handler: with `LAB=off` nothing else is looked at.
///
/// Nobody says who they are here, so a page of another site could storm a visitor's own machine:
/// what changes something comes from this site's pages, or from no page at all.
pub struct TheLab(pub Arc<Lab>);

impl FromRequestParts<LabState> for TheLab {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &LabState) -> Result<Self, Problem> {
        let lab = state.lab.clone().ok_or(Problem::new(&NOT_FOUND))?;
        if !parts.method.is_safe() {
            refuse_cross_origin(parts)?;
        }
        Ok(Self(lab))
    }
}

/// The id of an arena or of a judgement.
pub struct HexId<Of>(pub String, pub PhantomData<Of>);

impl<Of> FromStr for HexId<Of> {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        is_arena_id(text).then(|| Self(text.to_owned(), PhantomData)).ok_or(())
    }
}

impl Named for HexId<Arena> {
    const MISSING: &'static Kind = &ARENA_NOT_FOUND;
}

impl Named for HexId<Judgement> {
    const MISSING: &'static Kind = &JUDGEMENT_NOT_FOUND;
}

/// Who asks.
pub struct Visitor {
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
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &LabState) -> Result<Self, Infallible> {
        let address = Address::of(&parts.extensions, &parts.headers, state.trust_proxy);
        Ok(Self { address, limited: state.limits, streams: state.streams.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_of_hexadecimal_digits() {
        assert!("0123456789abcdef0123456789abcdef".parse::<HexId<Arena>>().is_ok());
        for bad in ["", "1", "0123456789ABCDEF0123456789ABCDEF", "0123456789abcdef0123456789abcde;"]
        {
            assert!(bad.parse::<HexId<Judgement>>().is_err(), "{bad}");
        }
    }
}
