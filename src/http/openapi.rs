//! The OpenAPI document besides the handlers: its head, authentication, the schema of problems.

use crate::domain::{OrderId, OrderStatus};
use serde::Serialize;
use time::OffsetDateTime;
use utoipa::openapi::schema::Schema;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{self, RefOr};
use utoipa::{Modify, OpenApi, ToSchema};

/// The head of the document; the router adds the operations.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "flash-sale",
        description = "Browse a sale, buy, pay; operate it. Errors are `application/problem+json` \
            (RFC 9457) with a stable `code`; ids are strings, money is integer minor units, times \
            are RFC 3339 UTC. Every answer carries `x-request-id`. What goes wrong on the server's \
            side is 500 `internal`.",
    ),
    tags(
        (name = "shopping", description = "For shoppers; a token comes from POST /api/v1/session"),
        (name = "operating", description = "For operators, with the admin token; without one \
            configured all of it is 404"),
        (name = "lab", description = "Over thirty ways to sell a scarce thing, side by side; \
            with `LAB=off` all of it is 404"),
        (name = "machines", description = "For probes, metrics and the payment provider"),
    ),
    components(schemas(ProblemBody)),
    modifiers(&Authentication),
)]
pub struct Head;

/// An error as RFC 9457 has it. Programs branch on `code`; the other members are for people, or
/// belong to some codes only.
// Only for the document: `web/problem.rs` writes the body.
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
    #[serde(skip_serializing_if = "Option::is_none", with = "time::serde::rfc3339::option")]
    opens_at: Option<OffsetDateTime>,
    /// With `not_payable`, `not_cancellable` and `not_refundable`: where the order stands.
    /// (`status` is taken: RFC 9457 has it be the HTTP status.)
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
            let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format(format);
            SecurityScheme::Http(scheme.description(Some(description)).build())
        };
        let cookie = ApiKeyValue::with_description(
            super::extract::SESSION_COOKIE,
            "Set by POST /api/v1/session",
        );
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("bearer", bearer("JWT", "A shopper's token"));
        components.add_security_scheme("cookie", SecurityScheme::ApiKey(ApiKey::Cookie(cookie)));
        let signed = ApiKeyValue::with_description(
            ::payments::signature::HEADER,
            "The provider's signature",
        );
        components.add_security_scheme("webhook", SecurityScheme::ApiKey(ApiKey::Header(signed)));
        components.add_security_scheme("admin", bearer("opaque", "The operator's token"));
    }
}

/// An optional body may be missing but not `null`, which the document would allow for an `Option`.
pub fn without_null_bodies(mut document: openapi::OpenApi) -> openapi::OpenApi {
    let operations = document
        .paths
        .paths
        .values_mut()
        .flat_map(|item| [item.post.as_mut(), item.patch.as_mut()]);
    for body in operations.flatten().filter_map(|operation| operation.request_body.as_mut()) {
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

pub(super) use web::refusals;

#[cfg(test)]
mod tests {
    use crate::http;
    use serde_json::Value;
    use std::collections::BTreeSet;

    /// Every route that clients may rely on.
    const CONTRACT: &[(&str, &str)] = &[
        ("post", "/api/v1/session"),
        ("get", "/api/v1/session"),
        ("get", "/api/v1/sales"),
        ("get", "/api/v1/sales/{id}"),
        ("get", "/api/v1/sales/{id}/events"),
        ("post", "/api/v1/sales/{id}/orders"),
        ("post", "/api/v1/sales/{id}/waiting-room"),
        ("get", "/api/v1/sales/{id}/waiting-room"),
        ("get", "/api/v1/sales/{id}/waiting-room/events"),
        ("get", "/api/v1/sales/{id}/pass"),
        ("get", "/api/v1/sales/{id}/challenge"),
        ("get", "/api/v1/orders/{id}"),
        ("get", "/api/v1/orders"),
        ("get", "/api/v1/orders/{id}/events"),
        ("post", "/api/v1/orders/{id}/pay"),
        ("post", "/api/v1/orders/{id}/checkout"),
        ("post", "/api/v1/orders/{id}/cancel"),
        ("post", "/api/v1/webhooks/payments"),
        ("post", "/api/v1/admin/orders/{id}/refund"),
        ("get", "/api/v1/admin/books"),
        ("post", "/api/v1/admin/sales"),
        ("patch", "/api/v1/admin/sales/{id}"),
        ("post", "/api/v1/admin/sales/{id}/pause"),
        ("post", "/api/v1/admin/sales/{id}/resume"),
        ("post", "/api/v1/admin/sales/{id}/close"),
        ("post", "/api/v1/admin/sales/{id}/stock"),
        ("get", "/api/v1/admin/sales/{id}/audit"),
        ("get", "/api/v1/admin/sales/{id}/orders"),
        ("get", "/api/v1/lab/strategies"),
        ("post", "/api/v1/lab/arenas"),
        ("delete", "/api/v1/lab/arenas/{id}"),
        ("post", "/api/v1/lab/arenas/{id}/orders"),
        ("post", "/api/v1/lab/arenas/{id}/storm"),
        ("get", "/api/v1/lab/arenas/{id}/events"),
        ("get", "/api/v1/lab/arenas/{id}/verdict"),
        ("get", "/api/v1/lab/report"),
        ("post", "/api/v1/lab/judgements"),
        ("delete", "/api/v1/lab/judgements/{id}"),
        ("get", "/api/v1/lab/judgements/{id}/events"),
        ("get", "/api/v1/lab/judgements/{id}/report"),
        ("get", "/api/v1/lab/lessons"),
        ("post", "/api/v1/lab/lessons/{id}/play"),
        ("get", "/api/v1/lab/ids"),
        ("get", "/api/v1/lab/locks"),
        ("get", "/healthz"),
        ("get", "/readyz"),
        ("get", "/routable"),
        ("get", "/metrics"),
    ];

    fn operations(document: &Value) -> impl Iterator<Item = (&str, &str, &Value)> {
        let paths = document["paths"].as_object().expect("paths").iter();
        paths.flat_map(|(path, item)| {
            let operations = item.as_object().expect("a path item").iter();
            operations.map(move |(method, operation)| (method.as_str(), path.as_str(), operation))
        })
    }

    #[test]
    fn the_document_has_every_route_of_the_contract_and_no_other() {
        let document = serde_json::to_value(http::openapi()).expect("JSON");
        let documented: BTreeSet<_> =
            operations(&document).map(|(method, path, _)| (method, path)).collect();
        assert_eq!(documented, CONTRACT.iter().copied().collect());
    }

    #[test]
    fn the_document_is_consistent() {
        let document = serde_json::to_value(http::openapi()).expect("JSON");
        let mut ids = BTreeSet::new();
        for (method, path, operation) in operations(&document) {
            let place = format!("{method} {path}");
            assert!(ids.insert(operation["operationId"].as_str().expect("an id")), "{place}");
            assert!(operation["summary"].is_string(), "{place}");
            let statuses: BTreeSet<&str> = operation["responses"]
                .as_object()
                .expect("responses")
                .keys()
                .map(String::as_str)
                .collect();
            for (status, response) in operation["responses"].as_object().expect("responses") {
                let problem = &response["content"]["application/problem+json"]["schema"]["$ref"];
                if status.starts_with('4') {
                    assert_eq!(problem, "#/components/schemas/Problem", "{place} {status}");
                }
            }
            let body = &operation["requestBody"]["content"]["application/json"]["schema"];
            assert!(body.is_null() || body["$ref"].is_string(), "{place}: {body}");
            let secured = operation["security"].is_array();
            assert_eq!(secured, statuses.contains("401"), "{place}");
            if path.starts_with("/api/") {
                assert!(statuses.contains("429"), "{place}");
            }
            if path.contains("{id}") {
                assert!(statuses.contains("404"), "{place}");
                assert!(
                    operation["parameters"]
                        .as_array()
                        .is_some_and(|all| all.iter().any(|one| one["name"] == "id")),
                    "{place}"
                );
            }
        }
        // Every reference leads somewhere.
        let text = document.to_string();
        for reference in text.split("\"$ref\":\"#").skip(1) {
            let pointer = reference.split('"').next().expect("a pointer");
            assert!(document.pointer(pointer).is_some(), "{pointer}");
        }
        for scheme in ["bearer", "cookie", "admin"] {
            assert!(document["components"]["securitySchemes"][scheme].is_object(), "{scheme}");
        }
    }
}
