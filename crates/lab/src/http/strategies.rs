//! Strategies, and all locks side by side.

use super::error::{HttpResult, Problem};
use super::extract::Visitor;
use crate::{catalogue::Strategies, lock_comparison::Locks};
use axum::http::StatusCode;
use std::time::Duration;
use web::language::{LanguageParams, Spoken};
use web::{body, refusals};

refusals!(ListRefusals: NOT_FOUND, INVALID, RATE_LIMITED, UNAVAILABLE);

/// Every strategy: what it is, what it promises, how it fails, its code.
#[utoipa::path(
    get, path = "/api/v1/lab/strategies", tag = "lab", operation_id = "list_strategies",
    params(LanguageParams),
    responses((status = 200, description = "In the order in which they are taught", body =
        Strategies), ListRefusals),
)]
pub async fn list(Visitor { lab, .. }: Visitor, Spoken(language): Spoken) -> HttpResult {
    let all = Strategies::all(language, |strategy| lab.lacks(strategy));
    body::json(StatusCode::OK, &all)
}

/// All locks side by side: four properties, each claim with the test that backs it, and what they
/// cost.
///
/// The costs are measured on these servers when somebody first asks, which takes some seconds.
#[utoipa::path(
    get, path = "/api/v1/lab/locks", tag = "lab", operation_id = "compare_locks",
    params(LanguageParams),
    responses((status = 200, description = "Every lock", body = Locks), ListRefusals),
)]
pub async fn locks(Visitor { lab, .. }: Visitor, Spoken(language): Spoken) -> HttpResult {
    let compared = lab.locks(language).await.map_err(|error| {
        tracing::warn!(%error, "the locks could not be measured");
        Problem::unavailable("The locks could not be measured now.", Duration::from_secs(5))
    })?;
    body::json(StatusCode::OK, &compared)
}
