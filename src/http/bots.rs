//! Passes and challenges. See `docs/bots.md`.

use super::error::{
    CHALLENGE_NOT_FOUND, HttpResult, NOT_OPEN, PASS_NOT_FOUND, Problem, not_before, of_refusal,
};
use super::extract::{Id, Shopper};
use super::openapi::refusals;
use crate::access::bots::Bots;
use crate::admission::refusals;
use crate::catalog::Catalog;
use crate::domain::{PurchaseResult, SaleId};
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use std::sync::Arc;
use time::OffsetDateTime;
use utoipa::ToSchema;
use web::body;

/// A pass: the purchase needs it as `Purchase-Pass`.
#[derive(Serialize, ToSchema)]
#[schema(as = Pass)]
pub struct PassBody {
    pass: String,
    #[serde(with = "time::serde::rfc3339")]
    expires_at: OffsetDateTime,
}

/// A puzzle: find a number for which SHA-256 of `CHALLENGE:NUMBER` begins with `bits` zero bits.
/// The purchase (where the sale has a waiting room: joining it) needs that text as
/// `Challenge-Solution`.
#[derive(Serialize, ToSchema)]
#[schema(as = Challenge)]
pub struct ChallengeBody {
    challenge: String,
    #[schema(example = 16)]
    bits: u8,
    #[serde(with = "time::serde::rfc3339")]
    expires_at: OffsetDateTime,
}

refusals!(PassRefusals:
    UNAUTHENTICATED, SALE_NOT_FOUND, PASS_NOT_FOUND, NOT_OPEN, PAUSED, ENDED, RATE_LIMITED,
        UNAVAILABLE
);
refusals!(ChallengeRefusals: UNAUTHENTICATED, SALE_NOT_FOUND, CHALLENGE_NOT_FOUND, RATE_LIMITED,
    UNAVAILABLE);

/// A pass for a purchase; from the opening on, and for a minute.
#[utoipa::path(
    get, path = "/api/v1/sales/{id}/pass", tag = "shopping", operation_id = "get_pass",
    params(("id" = SaleId, Path, description = "The sale")),
    responses((status = 200, description = "The pass", body = PassBody), PassRefusals),
    security(("bearer" = []), ("cookie" = [])),
)]
pub async fn pass(
    State(catalog): State<Arc<Catalog>>,
    State(bots): State<Arc<Bots>>,
    Shopper(shopper): Shopper,
    Id(sale): Id<SaleId>,
) -> HttpResult {
    let cached = catalog.cached(sale).await?;
    if !cached.sale().access_policy.purchase_pass {
        return Err(Problem::new(&PASS_NOT_FOUND));
    }
    let now = catalog.now();
    // Redis' clock, as in the purchase, and never earlier.
    let opens_at = cached.sale().opens_at;
    if now < opens_at {
        return Err(not_before(&NOT_OPEN, opens_at, now));
    }
    let refusal = refusals::from_cache(&cached, &catalog.cache.clock, shopper.user_id, None);
    if let Some(refusal @ (PurchaseResult::Paused | PurchaseResult::Ended)) = refusal {
        return Err(of_refusal(refusal, now).expect("only Accepted is no refusal"));
    }
    let (pass, expires_at) = bots.pass(sale, shopper.user_id);
    body::json(StatusCode::OK, &PassBody { pass, expires_at })
}

/// A puzzle, good for two minutes and one purchase.
#[utoipa::path(
    get, path = "/api/v1/sales/{id}/challenge", tag = "shopping", operation_id = "get_challenge",
    params(("id" = SaleId, Path, description = "The sale")),
    responses((status = 200, description = "The puzzle", body = ChallengeBody), ChallengeRefusals),
    security(("bearer" = []), ("cookie" = [])),
)]
pub async fn challenge(
    State(catalog): State<Arc<Catalog>>,
    State(bots): State<Arc<Bots>>,
    Shopper(shopper): Shopper,
    Id(sale): Id<SaleId>,
) -> HttpResult {
    let cached = catalog.cached(sale).await?;
    let bits = cached.sale().access_policy.challenge_bits;
    let bits = u8::try_from(bits).unwrap_or(0);
    if bits == 0 {
        return Err(Problem::new(&CHALLENGE_NOT_FOUND));
    }
    let challenge = bots.challenge(sale, shopper.user_id, bits);
    let body = ChallengeBody {
        challenge: challenge.text,
        bits: challenge.bits,
        expires_at: challenge.expires_at,
    };
    body::json(StatusCode::OK, &body)
}
