//! What a request to the lab says about itself: who asks, and in which language.

use super::{
    error::{ARENA_NOT_FOUND, JUDGEMENT_NOT_FOUND, NOT_FOUND, Problem},
    state::LabState,
};
use crate::{
    arena::Arena,
    judgement::Judgement,
    service::{Lab, is_arena_id},
    strategy::Language,
};
use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, header::ACCEPT_LANGUAGE, request::Parts},
};
use serde::Deserialize;
use std::{convert::Infallible, marker::PhantomData, str::FromStr, sync::Arc};
use utoipa::IntoParams;
use web::{
    address::Address,
    extract::{Named, Params, refuse_cross_origin},
    problem::Kind,
};

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
    pub address: Address,
    limited: bool,
}

impl Visitor {
    /// As far as the lab limits what one address may have: not with `RATE_LIMIT=off`.
    pub fn limited(&self) -> Option<Address> {
        self.limited.then_some(self.address)
    }
}

impl FromRequestParts<LabState> for Visitor {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &LabState) -> Result<Self, Infallible> {
        Ok(Self { address: state.address(parts), limited: state.limits })
    }
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LanguageParams {
    /// The language of all texts; otherwise Accept-Language says, otherwise it is English.
    #[param(inline)]
    lang: Option<Language>,
}

/// The language that the texts of the answer are to have.
pub struct Spoken(pub Language);

impl<S: Send + Sync> FromRequestParts<S> for Spoken {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Params(asked) = Params::<LanguageParams>::from_request_parts(parts, state).await?;
        Ok(Self(asked.lang.unwrap_or_else(|| accepted(&parts.headers))))
    }
}

/// The language that Accept-Language likes best, of those that there are.
pub fn accepted(headers: &HeaderMap) -> Language {
    let header = headers.get(ACCEPT_LANGUAGE);
    let text = header.and_then(|value| value.to_str().ok()).unwrap_or("");
    let mut best = (0.0, Language::En);
    for range in text.split(',') {
        let (tag, weight) = range.split_once(';').unwrap_or((range, ""));
        let weight = weight.trim().strip_prefix("q=").map_or(Some(1.0), |q| q.parse().ok());
        let tag = tag.trim().to_ascii_lowercase();
        let language = match tag.split('-').next() {
            Some("zh") => Language::Zh,
            Some("en") => Language::En,
            _ => continue,
        };
        if let Some(weight) = weight
            && weight > best.0
        {
            best = (weight, language);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn an_id_is_of_hexadecimal_digits() {
        assert!("0123456789abcdef0123456789abcdef".parse::<HexId<Arena>>().is_ok());
        for bad in ["", "1", "0123456789ABCDEF0123456789ABCDEF", "0123456789abcdef0123456789abcde;"]
        {
            assert!(bad.parse::<HexId<Judgement>>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_language_is_the_one_that_is_liked_best() {
        let spoken = |text: &'static str| {
            let headers = HeaderMap::from_iter([(ACCEPT_LANGUAGE, HeaderValue::from_static(text))]);
            accepted(&headers)
        };
        for (text, language) in [
            ("", Language::En),
            ("zh", Language::Zh),
            ("zh-CN,zh;q=0.9,en;q=0.8", Language::Zh),
            ("en-GB,en;q=0.9,zh;q=0.8", Language::En),
            ("de, zh;q=0.5", Language::Zh),
            ("en;q=0.1, zh;q=0.2", Language::Zh),
            ("zh;q=x, en;q=0", Language::En),
        ] {
            assert_eq!(spoken(text), language, "{text}");
        }
        assert_eq!(accepted(&HeaderMap::new()), Language::En);
    }
}
