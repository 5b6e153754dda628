//! Refusals as responses of the OpenAPI document.

use super::problem::Kind;
use std::collections::BTreeMap;
use utoipa::openapi::{
    Content, Ref, RefOr, Response, ResponseBuilder,
    header::HeaderBuilder,
    schema::{ObjectBuilder, Type},
};

/// The name of the problem schema, which the document must have.
const PROBLEM: &str = "Problem";

/// Declares the refusals of an operation by the constants in `error.rs` beside its file, so that
/// the document cannot name an unknown code.
#[macro_export]
macro_rules! refusals {
    ($name:ident: $($kind:ident),+ $(,)?) => {
        struct $name;

        impl utoipa::IntoResponses for $name {
            fn responses() -> std::collections::BTreeMap<String,
                utoipa::openapi::RefOr<utoipa::openapi::Response>> {
                $crate::openapi::responses(&[$(&super::error::$kind),+])
            }
        }
    };
}

/// One response per status, which lists its codes.
pub fn responses(kinds: &[&Kind]) -> BTreeMap<String, RefOr<Response>> {
    let mut by_status: BTreeMap<u16, Vec<&Kind>> = BTreeMap::new();
    for kind in kinds {
        by_status.entry(kind.status.as_u16()).or_default().push(kind);
    }
    let response = |(status, kinds): (u16, Vec<&Kind>)| {
        (status.to_string(), RefOr::T(refusal(status, &kinds)))
    };
    by_status.into_iter().map(response).collect()
}

fn refusal(status: u16, kinds: &[&Kind]) -> Response {
    let codes: Vec<String> =
        kinds.iter().map(|kind| format!("`{}`: {}", kind.code, kind.detail)).collect();
    let problem = Content::new(Some(Ref::from_schema_name(PROBLEM)));
    let response = ResponseBuilder::new()
        .description(codes.join("  \n"))
        .content("application/problem+json", problem);
    let waits = [
        "not_open",
        "waiting_room_not_open",
        "still_queued",
        "payment_pending",
        "rate_limited",
        "unavailable",
    ];
    let header = |name, description: &str, of: Type| {
        let schema = ObjectBuilder::new().schema_type(of);
        (name, HeaderBuilder::new().schema(Some(schema)).description(Some(description)).build())
    };
    let (name, header) = match status {
        401 => header("WWW-Authenticate", "Bearer", Type::String),
        _ if kinds.iter().any(|kind| waits.contains(&kind.code)) => {
            header("Retry-After", "Seconds, with the codes that pass by themselves", Type::Integer)
        }
        _ => return response.build(),
    };
    response.header(name, header).build()
}
