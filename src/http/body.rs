//! Bodies: JSON in, JSON out, and nothing where nothing belongs.
//!
//! A request's body has at most [`LIMIT`] bytes, whether it announces its length or comes in chunks.

use super::error::{INVALID, Problem, REQUEST_TIMEOUT, TOO_LARGE, UNSUPPORTED_MEDIA_TYPE};
use axum::{
    body::{Body, HttpBody},
    extract::{FromRequest, Request},
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{CACHE_CONTROL, CONTENT_TYPE},
    },
    response::Response,
};
use futures_util::StreamExt;
use serde::{Serialize, de::DeserializeOwned};
use std::time::Duration;

/// The most bytes of a request's body.
pub const LIMIT: usize = 16 * 1024;
/// How much more of a body that is too large is read and thrown away, so that the client gets to
/// hear why: closing a connection with unread bytes resets it, and the answer may be lost.
const LINGER: usize = 1024 * 1024;
/// How long a body may take; a client that trickles it holds no handler. Below the time that a request
/// may take as a whole, so that the client hears what was slow.
pub const PATIENCE: Duration = Duration::from_secs(8);

/// The whole body, or 413.
pub async fn read(body: Body) -> Result<Vec<u8>, Problem> {
    if body.is_end_stream() {
        return Ok(Vec::new());
    }
    let announced = body.size_hint().lower();
    if announced > (LIMIT + LINGER) as u64 {
        return Err(Problem::new(&TOO_LARGE));
    }
    let mut chunks = body.into_data_stream();
    let reading = async {
        let mut bytes = Vec::with_capacity(LIMIT.min(announced as usize));
        let mut length = 0;
        while let Some(chunk) = chunks.next().await {
            let Ok(chunk) = chunk else {
                return Err(Problem::invalid("the body broke off"));
            };
            length += chunk.len();
            if length <= LIMIT {
                bytes.extend_from_slice(&chunk);
            } else if length > LIMIT + LINGER {
                break;
            }
        }
        if length > LIMIT {
            Err(Problem::new(&TOO_LARGE))
        } else {
            Ok(bytes)
        }
    };
    tokio::time::timeout(PATIENCE, reading)
        .await
        .unwrap_or(Err(Problem::new(&REQUEST_TIMEOUT)))
}

/// A JSON body that has to be there.
pub struct Json<T>(pub T);

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let bytes = read(body).await?;
        must_be_json(&parts.headers)?;
        parse(&bytes).map(Self)
    }
}

/// A JSON body that may be left out.
pub struct OptionalJson<T>(pub T);

impl<T: DeserializeOwned + Default, S: Sync> FromRequest<S> for OptionalJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let bytes = read(body).await?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        must_be_json(&parts.headers)?;
        parse(&bytes).map(Self)
    }
}

/// For operations that take no body: it is empty or `{}`, which some clients send regardless.
pub struct NoBody;

impl<S: Sync> FromRequest<S> for NoBody {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        if request.body().is_end_stream() {
            return Ok(Self);
        }
        // Boxed, because it is rare and large: every purchase would carry its room around.
        let bytes = Box::pin(read(request.into_body())).await?;
        let empty: Vec<u8> = bytes
            .into_iter()
            .filter(|byte| !byte.is_ascii_whitespace())
            .collect();
        match &empty[..] {
            b"" | b"{}" => Ok(Self),
            _ => Err(Problem::with_detail(
                &INVALID,
                "this operation takes no body",
            )),
        }
    }
}

fn must_be_json(headers: &HeaderMap) -> Result<(), Problem> {
    let content_type = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        Ok(())
    } else {
        Err(Problem::new(&UNSUPPORTED_MEDIA_TYPE))
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    // Serde would also take an array of the members' values for a struct.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(Problem::invalid("the body has to be a JSON object"));
    }
    serde_json::from_slice(bytes).map_err(|error| Problem::invalid(shortened(error.to_string())))
}

/// Serde's words quote what the client sent, which may be long.
pub fn shortened(mut words: String) -> String {
    const MOST_CHARACTERS: usize = 300;
    if let Some((end, _)) = words.char_indices().nth(MOST_CHARACTERS) {
        words.truncate(end);
        words.push('…');
    }
    words
}

/// An answer as JSON. Not to be stored: what is answered here is personal or gone in a moment.
pub fn json(status: StatusCode, value: &impl Serialize) -> Result<Response, Problem> {
    let mut bytes = Vec::with_capacity(512);
    if let Err(error) = serde_json::to_writer(&mut bytes, value) {
        tracing::error!(%error, "an answer could not be written");
        return Err(Problem::new(&super::error::INTERNAL));
    }
    Ok(json_bytes(status, bytes))
}

/// The same for JSON that is already written.
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
    use serde::Deserialize;

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Wish {
        #[serde(default)]
        units: i64,
    }

    fn request(content_type: &str, body: impl Into<Body>) -> Request {
        Request::builder()
            .header(CONTENT_TYPE, content_type)
            .body(body.into())
            .expect("a request")
    }

    /// A body that does not say how long it is.
    fn chunked(length: usize) -> Body {
        let chunks = vec![b'x'; length]
            .chunks(1000)
            .map(|part| Ok::<_, std::io::Error>(part.to_vec()))
            .collect::<Vec<_>>();
        Body::from_stream(futures_util::stream::iter(chunks))
    }

    async fn json_of(request: Request) -> Result<Wish, &'static str> {
        Json::from_request(request, &())
            .await
            .map(|Json(wish)| wish)
            .map_err(|problem| problem.kind().code)
    }

    #[tokio::test]
    async fn a_json_body_is_exactly_what_it_should_be() {
        assert_eq!(
            json_of(request("application/json", r#"{"units":3}"#)).await,
            Ok(Wish { units: 3 })
        );
        assert_eq!(
            json_of(request("Application/JSON; charset=utf-8", "{}")).await,
            Ok(Wish { units: 0 })
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
            assert_eq!(
                json_of(request("application/json", bad)).await,
                Err("invalid"),
                "{bad}"
            );
        }
        for other in [
            "text/plain",
            "",
            "application/jsonp",
            "application/x-www-form-urlencoded",
        ] {
            assert_eq!(
                json_of(request(other, "{}")).await,
                Err("unsupported_media_type"),
                "{other}"
            );
        }
    }

    #[tokio::test]
    async fn what_is_too_large_is_refused_with_and_without_a_length() {
        for length in [LIMIT + 1, LIMIT + LINGER - 1, LIMIT + 2 * LINGER] {
            assert_eq!(
                json_of(request("application/json", vec![b'x'; length])).await,
                Err("too_large")
            );
            assert_eq!(
                json_of(request("application/json", chunked(length))).await,
                Err("too_large")
            );
            let refused = NoBody::from_request(request("application/json", chunked(length)), &())
                .await
                .err();
            assert_eq!(
                refused.map(|problem| problem.kind().code),
                Some("too_large")
            );
        }
        let filled = format!(r#"{{"units":1}}{}"#, " ".repeat(LIMIT - 11));
        assert_eq!(
            json_of(request("application/json", filled)).await,
            Ok(Wish { units: 1 })
        );
    }

    #[tokio::test]
    async fn an_optional_body_may_be_missing_but_not_wrong() {
        let of = async |content_type: &str, body: &'static str| {
            let found = OptionalJson::<Wish>::from_request(request(content_type, body), &()).await;
            found
                .map(|OptionalJson(wish)| wish.units)
                .map_err(|problem| problem.kind().code)
        };
        assert_eq!(of("", "").await, Ok(0));
        assert_eq!(of("application/json", r#"{"units":2}"#).await, Ok(2));
        assert_eq!(
            of("application/json", r#"{"unit":2}"#).await,
            Err("invalid")
        );
        assert_eq!(of("text/plain", "{}").await, Err("unsupported_media_type"));
    }

    #[tokio::test]
    async fn no_body_is_empty_or_an_empty_object() {
        for (body, good) in [
            ("", true),
            ("{}", true),
            (" { }\n", true),
            ("{\"a\":1}", false),
            ("null", false),
        ] {
            assert_eq!(
                NoBody::from_request(request("", body), &()).await.is_ok(),
                good,
                "{body}"
            );
        }
    }

    #[test]
    fn long_words_are_cut_between_characters() {
        assert_eq!(shortened("short".to_owned()), "short");
        assert_eq!(shortened("é".repeat(400)), "é".repeat(300) + "…");
    }
}
