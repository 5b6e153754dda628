//! What a request has to show where the sale has a door: see [`crate::domain::Door`].
//!
//! As long as no sale of the deployment has one, a purchase pays for this with one look at a flag. Papers that can
//! be judged here come first; a proof of work, which has to be remembered in Redis, comes last.

use super::{
    App,
    error::{
        ADMISSION_EXPIRED, ADMISSION_INVALID, ADMISSION_REQUIRED, ADMISSION_USED,
        CHALLENGE_EXPIRED, CHALLENGE_FAILED, CHALLENGE_REQUIRED, PASS_EXPIRED, PASS_INVALID,
        PASS_REQUIRED, Problem, about,
    },
};
use crate::{
    bots::{WorkError, work::BadSolution},
    domain::{Admission, Door, IdempotencyKey, SaleId, UserId},
    room::{Place, RoomError, functions::Wish, view::Standing},
    sale::board::Listing,
    slip::BadSlip,
};
use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, HeaderValue, request::Parts},
};
use std::{convert::Infallible, sync::Arc};

/// What a request shows. Looked for only where a sale might ask for it.
pub struct Shown(pub Option<Papers>);

pub struct Papers {
    admission: Option<HeaderValue>,
    pass: Option<HeaderValue>,
    solution: Option<HeaderValue>,
}

impl FromRequestParts<App> for Shown {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Infallible> {
        let papers = app.shop.board.has_doors().then(|| Papers {
            admission: only(&parts.headers, "admission-token"),
            pass: only(&parts.headers, "purchase-pass"),
            solution: only(&parts.headers, "challenge-solution"),
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

fn text(value: &HeaderValue) -> &str {
    value.to_str().unwrap_or_default()
}

impl Papers {
    /// The first paper that the door asks for and that is not there.
    fn missing(&self, door: &Door) -> Option<Problem> {
        let has_room = door.room().is_some();
        let required = [
            (has_room, &self.admission, &ADMISSION_REQUIRED),
            (needs_pass(door), &self.pass, &PASS_REQUIRED),
            (needs_work(door), &self.solution, &CHALLENGE_REQUIRED),
        ];
        let missing = required
            .into_iter()
            .find(|(needed, shown, _)| *needed && shown.is_none());
        missing.map(|(_, _, kind)| Problem::new(kind))
    }
}

/// An admission is given out after the opening, like a pass, and costs more to get: with a room there is no other.
fn needs_pass(door: &Door) -> bool {
    door.purchase_pass && door.room().is_none()
}

/// Where there is a room, the work is asked for at its door.
fn needs_work(door: &Door) -> bool {
    door.challenge_bits > 0 && door.room().is_none()
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
    let door = listing.sale().door;
    if !door.is_shut() {
        return Ok(app.shop.buy(&listing, user, key).await?);
    }
    let missing = papers.missing(&door);
    // What keeps everybody from buying is said first. Who shows everything may be retrying a purchase that went
    // through, which their key tells; to the others it is said all the same.
    let retry = key.filter(|_| missing.is_none());
    if let Some(refusal) = listing.refuse_locally(&app.shop.board.clock, user, retry)
        && (missing.is_some() || door.room().is_none())
    {
        return Ok(refusal);
    }
    if let Some(problem) = missing {
        return Err(problem);
    }
    if let (true, Some(pass)) = (needs_pass(&door), &papers.pass) {
        let verified = app.bots.verify_pass(sale, user, text(pass));
        verified.map_err(|why| match why {
            BadSlip::Forged => Problem::new(&PASS_INVALID),
            BadSlip::Expired => Problem::new(&PASS_EXPIRED),
        })?;
    }
    if let (true, Some(solution)) = (needs_work(&door), &papers.solution) {
        accept_work(app, sale, user, solution, key).await?;
    }
    match &papers.admission {
        Some(admission) if door.room().is_some() => {
            with_admission(app, &listing, user, key, text(admission)).await
        }
        _ => Ok(app.shop.buy(&listing, user, key).await?),
    }
}

async fn with_admission(
    app: &App,
    listing: &Arc<Listing>,
    user: UserId,
    key: Option<IdempotencyKey>,
    admission: &str,
) -> Result<Admission, Problem> {
    let turn = app.rooms.verify(listing.id, user, admission);
    let turn = turn.map_err(|why| match why {
        BadSlip::Forged => Problem::new(&ADMISSION_INVALID),
        BadSlip::Expired => Problem::new(&ADMISSION_EXPIRED),
    })?;
    // The turn takes the place of the client's own key: whatever that is, one order comes of a turn.
    let bought = app.shop.buy(listing, user, Some(turn.key)).await?;
    match bought {
        Admission::Accepted {
            replayed: false, ..
        } => app.rooms.used(listing.id, turn),
        // With a key it may be a retry, and gets the first answer; without one it is a second purchase.
        Admission::Accepted {
            order_id,
            replayed: true,
        } if key.is_none() => return Err(about(&ADMISSION_USED, order_id)),
        _ => {}
    }
    Ok(bought)
}

/// Joins the waiting room of a sale that may ask for work. Who has a place gets it without.
pub async fn join(
    app: &App,
    sale: SaleId,
    user: UserId,
    papers: Option<&Papers>,
) -> Result<Place, Problem> {
    let listing = app.shop.listing(sale).await?;
    let door = listing.sale().door;
    if door.challenge_bits == 0 || door.room().is_none() {
        return Ok(app.rooms.join(sale, user).await?);
    }
    let missed = match app.rooms.look(sale, user).await {
        Ok(place) if place.standing == Standing::Missed => Some(place),
        Ok(place) => return Ok(place),
        Err(RoomError::NotHere) => None,
        Err(error) => return Err(error.into()),
    };
    if app.rooms.may_join(&listing)? == Wish::Look {
        // Nothing to queue for is nothing to work for.
        return missed.ok_or_else(|| RoomError::SoldOut.into());
    }
    let Some(solution) = papers.and_then(|papers| papers.solution.as_ref()) else {
        return Err(Problem::new(&CHALLENGE_REQUIRED));
    };
    accept_work(app, sale, user, solution, None).await?;
    Ok(app.rooms.join(sale, user).await?)
}

async fn accept_work(
    app: &App,
    sale: SaleId,
    user: UserId,
    solution: &HeaderValue,
    key: Option<IdempotencyKey>,
) -> Result<(), Problem> {
    let accepted = app.bots.accept_work(sale, user, text(solution), key).await;
    accepted.map_err(|error| match error {
        WorkError::Bad(BadSolution::Wrong) => Problem::new(&CHALLENGE_FAILED),
        WorkError::Bad(BadSolution::Expired | BadSolution::Spent) => {
            Problem::new(&CHALLENGE_EXPIRED)
        }
        WorkError::Shop(error) => error.into(),
    })
}
