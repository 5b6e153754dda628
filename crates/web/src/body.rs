//! Request and response bodies: JSON, optional JSON, or none.

use super::problem::{
    INTERNAL, INVALID, Problem, REQUEST_TIMEOUT, TOO_LARGE, UNSUPPORTED_MEDIA_TYPE,
};
use axum::{
    body::{Body, Bytes, HttpBody},
    extract::{FromRequest, Request},
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{CACHE_CONTROL, CONTENT_TYPE},
    },
    response::Response,
};
use serde::{Serialize, de::DeserializeOwned};
use std::time::Duration;

/// The most bytes of a request's body, announced or in chunks; enforced by a layer.
pub const LIMIT: usize = 16 * 1024;
/// The time limit of a body: less than that of the request, so that the client learns what was
/// slow.
const BODY_TIMEOUT: Duration = Duration::from_secs(8);

async fn read(request: Request) -> Result<Bytes, Problem> {
    let reading = Bytes::from_request(request, &());
    match tokio::time::timeout(BODY_TIMEOUT, reading).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(rejection)) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            Err(Problem::new(&TOO_LARGE))
        }
        Ok(Err(_)) => Err(Problem::invalid("the body broke off")),
        Err(_) => Err(Problem::new(&REQUEST_TIMEOUT)),
    }
}

/// A required JSON body.
pub struct Json<T>(pub T);

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(mut request: Request, _: &S) -> Result<Self, Problem> {
        let headers = std::mem::take(request.headers_mut());
        let bytes = read(request).await?;
        must_be_json(&headers)?;
        parse(&bytes).map(Self)
    }
}

/// An optional JSON body.
pub struct OptionalJson<T>(pub T);

impl<T: DeserializeOwned + Default, S: Sync> FromRequest<S> for OptionalJson<T> {
    type Rejection = Problem;

    async fn from_request(mut request: Request, _: &S) -> Result<Self, Problem> {
        let headers = std::mem::take(request.headers_mut());
        let bytes = read(request).await?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        must_be_json(&headers)?;
        parse(&bytes).map(Self)
    }
}

/// A body as it came, for what is signed.
pub struct Raw(pub Bytes);

impl<S: Sync> FromRequest<S> for Raw {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        read(request).await.map(Self)
    }
}

/// No body: empty, or `{}`, which some clients send regardless.
pub struct NoBody;

impl<S: Sync> FromRequest<S> for NoBody {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        if request.body().is_end_stream() {
            return Ok(Self);
        }
        // Boxed to keep the future of a purchase small.
        let mut text = Box::pin(read(request)).await?.to_vec();
        text.retain(|byte| !byte.is_ascii_whitespace());
        match &text[..] {
            b"" | b"{}" => Ok(Self),
            _ => Err(Problem::with_detail(&INVALID, "this operation takes no body")),
        }
    }
}

fn must_be_json(headers: &HeaderMap) -> Result<(), Problem> {
    let content_type =
        headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        Ok(())
    } else {
        Err(Problem::new(&UNSUPPORTED_MEDIA_TYPE))
    }
}

pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    // Serde would also read an array as a struct.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(Problem::invalid("the body has to be a JSON object"));
    }
    serde_json::from_slice(bytes).map_err(|error| Problem::invalid(shortened(error.to_string())))
}

/// Serde's messages quote what the client sent, which may be long.
pub fn shortened(mut words: String) -> String {
    const MOST_CHARACTERS: usize = 300;
    if let Some((end, _)) = words.char_indices().nth(MOST_CHARACTERS) {
        words.truncate(end);
        words.push('…');
    }
    words
}

/// A JSON answer. Not cacheable: answers are personal or short-lived.
pub fn json(status: StatusCode, value: &impl Serialize) -> Result<Response, Problem> {
    let mut bytes = Vec::with_capacity(512);
    if let Err(error) = serde_json::to_writer(&mut bytes, value) {
        tracing::error!(%error, "an answer could not be written");
        return Err(Problem::new(&INTERNAL));
    }
    Ok(json_bytes(status, bytes))
}

/// The same, for JSON that is written already.
pub fn json_bytes(status: StatusCode, bytes: Vec<u8>) -> Response {
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde::Deserialize;

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Purchase {
        #[serde(default)]
        units: i64,
    }

    fn request(content_type: &str, body: impl Into<Body>) -> Request {
        Request::builder().header(CONTENT_TYPE, content_type).body(body.into()).expect("a request")
    }

    async fn json_of(request: Request) -> Result<Purchase, &'static str> {
        Json::from_request(request, &())
            .await
            .map(|Json(purchase)| purchase)
            .map_err(|problem| problem.kind().code)
    }

    #[tokio::test]
    async fn a_json_body_is_exactly_what_it_should_be() {
        assert_eq!(
            json_of(request("application/json", r#"{"units":3}"#)).await,
            Ok(Purchase { units: 3 })
        );
        assert_eq!(
            json_of(request("Application/JSON; charset=utf-8", "{}")).await,
            Ok(Purchase { units: 0 })
        );
        for bad in [
            "",
            "{",
            "[]",
            "[3]",
            "null",
            r#"{"units":"3"}"#,
            r#"{"units":3.5}"#,
            r#"{"units":1e99}"#,
            r#"{"other":1}"#,
            "{} {}",
        ] {
            assert_eq!(json_of(request("application/json", bad)).await, Err("invalid"), "{bad}");
        }
        for other in ["text/plain", "", "application/jsonp", "application/x-www-form-urlencoded"] {
            assert_eq!(
                json_of(request(other, "{}")).await,
                Err("unsupported_media_type"),
                "{other}"
            );
        }
    }

    #[tokio::test]
    async fn an_optional_body_may_be_missing_but_not_wrong() {
        let of = async |content_type: &str, body: &'static str| {
            let found =
                OptionalJson::<Purchase>::from_request(request(content_type, body), &()).await;
            found
                .map(|OptionalJson(purchase)| purchase.units)
                .map_err(|problem| problem.kind().code)
        };
        assert_eq!(of("", "").await, Ok(0));
        assert_eq!(of("application/json", r#"{"units":2}"#).await, Ok(2));
        assert_eq!(of("application/json", r#"{"unit":2}"#).await, Err("invalid"));
        assert_eq!(of("text/plain", "{}").await, Err("unsupported_media_type"));
    }

    #[tokio::test]
    async fn no_body_is_empty_or_an_empty_object() {
        for (body, good) in
            [("", true), ("{}", true), (" { }\n", true), ("{\"a\":1}", false), ("null", false)]
        {
            assert_eq!(NoBody::from_request(request("", body), &()).await.is_ok(), good, "{body}");
        }
    }

    #[test]
    fn long_words_are_cut_between_characters() {
        assert_eq!(shortened("short".to_owned()), "short");
        assert_eq!(shortened("é".repeat(400)), "é".repeat(300) + "…");
    }

    proptest! {
        #[test]
        fn any_content_type_is_json_or_unsupported(
            value in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                let lower = value.as_bytes().to_ascii_lowercase();
                let is_json = lower.trim_ascii().starts_with(b"application/json");
                let headers = HeaderMap::from_iter([(CONTENT_TYPE, value)]);
                prop_assert!(is_json || must_be_json(&headers).is_err());
            }
        }

        #[test]
        fn a_body_is_read_back_as_written(units: i64) {
            prop_assert_eq!(parse::<Purchase>(format!("{{\"units\":{units}}}").as_bytes()).ok(),
                Some(Purchase { units }));
        }
    }

    #[test]
    fn a_member_that_comes_twice_is_refused() {
        for twice in [r#"{"units":1,"units":1}"#, r#"{"units":1,"units":2}"#] {
            assert!(parse::<Purchase>(twice.as_bytes()).is_err());
        }
    }
}
