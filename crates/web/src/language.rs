//! The language of an answer: the one that was asked for, else the one that Accept-Language likes
//! best.

use crate::extract::Params;
use crate::problem::Problem;
use axum::extract::FromRequestParts;
use axum::http::{HeaderMap, header::ACCEPT_LANGUAGE, request::Parts};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// A language that a reader can ask for; tables of both are in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    #[default]
    En,
    Zh,
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
