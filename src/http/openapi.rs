//! What OpenAPI needs besides the handlers: the document's head, the ways to authenticate, and
//! refusals as responses.

use super::error::{Kind, ProblemBody};
use std::collections::BTreeMap;
use utoipa::{
    Modify, OpenApi, ToSchema,
    openapi::{
        self, Content, Ref, RefOr, Response, ResponseBuilder,
        header::HeaderBuilder,
        schema::{ObjectBuilder, Schema, Type},
        security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme},
    },
};

/// The head of the document; the router adds the operations.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "flash-sale",
        description = "Browse a sale, buy, pay; operate it. Errors are `application/problem+json` (RFC 9457) with a stable `code`; \
                       ids are strings, money is integer minor units, times are RFC 3339 UTC. Every answer carries `x-request-id`. \
                       What goes wrong on the server's side is 500 `internal`.",
    ),
    tags(
        (name = "shopping", description = "For shoppers; a token comes from POST /api/v1/session"),
        (name = "operating", description = "For operators, with the admin token; without one configured all of it is 404"),
        (name = "lab", description = "Every way to sell a scarce thing, side by side; with `LAB=off` all of it is 404"),
        (name = "around", description = "For machines that look after this one"),
    ),
    components(schemas(ProblemBody)),
    modifiers(&Authentication),
)]
pub struct Head;

struct Authentication;

impl Modify for Authentication {
    fn modify(&self, document: &mut openapi::OpenApi) {
        let bearer = |format: &str, description: &str| {
            let scheme = HttpBuilder::new()
                .scheme(HttpAuthScheme::Bearer)
                .bearer_format(format);
            SecurityScheme::Http(scheme.description(Some(description)).build())
        };
        let cookie = ApiKeyValue::with_description(
            super::extract::SESSION_COOKIE,
            "Set by POST /api/v1/session",
        );
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("bearer", bearer("JWT", "A shopper's token"));
        components.add_security_scheme("cookie", SecurityScheme::ApiKey(ApiKey::Cookie(cookie)));
        components.add_security_scheme("admin", bearer("opaque", "The operator's token"));
    }
}

/// A body that may be left out may not be `null` instead, which is what an `Option` at the handler would
/// say in the document.
pub fn without_null_bodies(mut document: openapi::OpenApi) -> openapi::OpenApi {
    let operations = document
        .paths
        .paths
        .values_mut()
        .flat_map(|item| [item.post.as_mut(), item.patch.as_mut()]);
    for body in operations
        .flatten()
        .filter_map(|operation| operation.request_body.as_mut())
    {
        let RefOr::T(body) = body else { continue };
        for content in body.content.values_mut() {
            if let RefOr::T(content) = content
                && let Some(RefOr::T(Schema::OneOf(choice))) = &content.schema
            {
                let is_named = |item: &&RefOr<Schema>| matches!(item, RefOr::Ref(_));
                content.schema = choice.items.iter().find(is_named).cloned();
            }
        }
    }
    document
}

/// Declares the refusals of an operation by the constants that it answers with, so that the document
/// cannot name a code which does not exist.
macro_rules! refusals {
    ($name:ident: $($kind:ident),+ $(,)?) => {
        struct $name;

        impl utoipa::IntoResponses for $name {
            fn responses() -> std::collections::BTreeMap<String, utoipa::openapi::RefOr<utoipa::openapi::Response>> {
                super::openapi::responses(&[$(&super::error::$kind),+])
            }
        }
    };
}
pub(super) use refusals;

/// One response per status, which lists its codes.
pub fn responses(kinds: &[&Kind]) -> BTreeMap<String, RefOr<Response>> {
    let mut by_status: BTreeMap<u16, Vec<&Kind>> = BTreeMap::new();
    for kind in kinds {
        by_status
            .entry(kind.status.as_u16())
            .or_default()
            .push(kind);
    }
    let response = |(status, kinds): (u16, Vec<&Kind>)| {
        (status.to_string(), RefOr::T(refusal(status, &kinds)))
    };
    by_status.into_iter().map(response).collect()
}

fn refusal(status: u16, kinds: &[&Kind]) -> Response {
    let codes: Vec<String> = kinds
        .iter()
        .map(|kind| format!("`{}`: {}", kind.code, kind.detail))
        .collect();
    let problem = Content::new(Some(Ref::from_schema_name(ProblemBody::name())));
    let response = ResponseBuilder::new()
        .description(codes.join("  \n"))
        .content("application/problem+json", problem);
    let waits = [
        "not_open",
        "waiting_room_not_open",
        "still_queued",
        "rate_limited",
        "unavailable",
    ];
    let header = |name, description: &str, of: Type| {
        let schema = ObjectBuilder::new().schema_type(of);
        (
            name,
            HeaderBuilder::new()
                .schema(Some(schema))
                .description(Some(description))
                .build(),
        )
    };
    let (name, header) = match status {
        401 => header("WWW-Authenticate", "Bearer", Type::String),
        _ if kinds.iter().any(|kind| waits.contains(&kind.code)) => header(
            "Retry-After",
            "Seconds, with the codes that pass by themselves",
            Type::Integer,
        ),
        _ => return response.build(),
    };
    response.header(name, header).build()
}
