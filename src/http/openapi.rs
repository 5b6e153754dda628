//! What OpenAPI needs besides the handlers: the document's head, the ways to authenticate, and what
//! a problem looks like.

use crate::domain::{OrderId, OrderStatus};
use serde::Serialize;
use time::OffsetDateTime;
use utoipa::{
    Modify, OpenApi, ToSchema,
    openapi::{
        self, RefOr,
        schema::Schema,
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

/// An error as RFC 9457 has it. Programs branch on `code`; the other members are for people, or
/// belong to some codes only.
// For the document: `web/problem.rs` writes them.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct ProblemBody<'a> {
    /// A relative reference that identifies the kind of problem.
    #[serde(rename = "type")]
    #[schema(example = "/problems/sold_out")]
    uri: &'a str,
    #[schema(example = "Sold out")]
    title: &'a str,
    /// The HTTP status.
    #[schema(example = 409)]
    status: u16,
    detail: &'a str,
    #[schema(example = "sold_out")]
    code: &'a str,
    /// With `already_ordered` and `admission_used`: the order you hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    order_id: Option<OrderId>,
    /// With `not_open` and `waiting_room_not_open`.
    #[serde(
        skip_serializing_if = "Option::is_none",
        with = "time::serde::rfc3339::option"
    )]
    opens_at: Option<OffsetDateTime>,
    /// With `not_payable` and `not_cancellable`: where the order stands. (`status` is taken: RFC 9457
    /// has it be the HTTP status.)
    #[serde(skip_serializing_if = "Option::is_none")]
    order_status: Option<OrderStatus>,
    /// With `not_enough_remaining`: how many units do remain.
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining: Option<i64>,
    /// With `rate_limited`: what Retry-After says, unrounded.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
}

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

pub(super) use crate::web::openapi::refusals;
