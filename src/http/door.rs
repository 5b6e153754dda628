//! What a purchase has to show where the sale has a door: see [`crate::domain::Door`].
//!
//! As long as no sale of the deployment has one, a purchase pays for this with one look at a flag.

use super::{
    App,
    error::{ADMISSION_EXPIRED, ADMISSION_INVALID, ADMISSION_REQUIRED, ADMISSION_USED, Problem},
};
use crate::{
    domain::{Admission, IdempotencyKey, SaleId, UserId},
    slip::BadSlip,
};
use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, HeaderValue, request::Parts},
};
use std::convert::Infallible;

/// What a request shows. Looked for only where a sale might ask for it.
pub struct Shown(pub Option<Papers>);

pub struct Papers {
    admission: Option<HeaderValue>,
}

impl FromRequestParts<App> for Shown {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Infallible> {
        let papers = app.shop.board.has_doors().then(|| Papers {
            admission: only(&parts.headers, "admission-token"),
        });
        Ok(Self(papers))
    }
}

/// The value of a header that is there once. Two are as good as a forged one.
fn only(headers: &HeaderMap, name: &str) -> Option<HeaderValue> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    Some(match values.next() {
        None => value.clone(),
        Some(_) => HeaderValue::from_static("?"),
    })
}

/// A purchase of which the sale may ask more than a token.
pub async fn purchase(
    app: &App,
    sale: SaleId,
    user: UserId,
    key: Option<IdempotencyKey>,
    papers: &Papers,
) -> Result<Admission, Problem> {
    let listing = app.shop.listing(sale).await?;
    if listing.sale().door.room().is_none() {
        return Ok(app.shop.purchase(sale, user, key).await?);
    }
    let Some(admission) = &papers.admission else {
        // What keeps everybody from buying comes first.
        let refusal = listing.refuse_locally(&app.shop.board.clock, user, None);
        return refusal.ok_or(Problem::new(&ADMISSION_REQUIRED));
    };
    let turn = app
        .rooms
        .verify(sale, user, admission.to_str().unwrap_or_default())
        .map_err(|why| match why {
            BadSlip::Forged => Problem::new(&ADMISSION_INVALID),
            BadSlip::Expired => Problem::new(&ADMISSION_EXPIRED),
        })?;
    // The turn takes the place of the client's own key: whatever that is, one order comes of a turn.
    let bought = app.shop.purchase(sale, user, Some(turn.key)).await?;
    match bought {
        Admission::Accepted {
            replayed: false, ..
        } => app.rooms.used(sale, turn),
        // With a key it may be a retry, and gets the first answer; without one it is a second purchase.
        Admission::Accepted {
            order_id,
            replayed: true,
        } if key.is_none() => return Err(Problem::about(&ADMISSION_USED, order_id)),
        _ => {}
    }
    Ok(bought)
}
