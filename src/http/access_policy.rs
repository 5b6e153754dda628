//! Checks the credentials that a sale asks for: see [`crate::domain::AccessPolicy`].
//!
//! Without a sale that has a policy, a purchase pays one atomic load for this. Credentials that are
//! verified locally come first; a proof of work, which costs a round trip, comes last.

use super::error::{
    ADMISSION_EXPIRED, ADMISSION_INVALID, ADMISSION_REQUIRED, ADMISSION_USED, CHALLENGE_EXPIRED,
    CHALLENGE_FAILED, CHALLENGE_REQUIRED, PASS_EXPIRED, PASS_INVALID, PASS_REQUIRED, Problem,
    about,
};
use crate::access::bots::limits::SharedLimits;
use crate::access::bots::work::BadSolution;
use crate::access::bots::{Bots, WorkError};
use crate::access::waiting_room::functions::Joining;
use crate::access::waiting_room::view::Standing;
use crate::access::waiting_room::{Place, RoomError, WaitingRooms};
use crate::admission::{Admission, refusals};
use crate::auth::TokenSigner;
use crate::auth::signed_token::BadToken;
use crate::catalog::Catalog;
use crate::catalog::cached_sale::CachedSale;
use crate::domain::{AccessPolicy, IdempotencyKey, PurchaseResult, SaleId, UserId};
use crate::services::Services;
use axum::http::{HeaderMap, HeaderValue};
use std::sync::Arc;

/// The credentials of a request.
pub struct Credentials {
    admission: Option<HeaderValue>,
    pass: Option<HeaderValue>,
    solution: Option<HeaderValue>,
}

/// The value of a header that occurs once; two values count as a forged one.
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

impl Credentials {
    pub fn of(headers: &HeaderMap) -> Self {
        Self {
            admission: only(headers, "admission-token"),
            pass: only(headers, "purchase-pass"),
            solution: only(headers, "challenge-solution"),
        }
    }

    /// The first required credential that is missing.
    fn missing(&self, access_policy: &AccessPolicy) -> Option<Problem> {
        let (has_room, work) = (access_policy.room().is_some(), needs_work(access_policy));
        let required = [
            (has_room, &self.admission, &ADMISSION_REQUIRED),
            (needs_pass(access_policy), &self.pass, &PASS_REQUIRED),
            (work, &self.solution, &CHALLENGE_REQUIRED),
        ];
        let mut required = required.into_iter();
        let missing = required.find(|(needed, given, _)| *needed && given.is_none());
        missing.map(|(_, _, kind)| Problem::new(kind))
    }
}

/// A turn replaces the pass: it is issued after the opening too, and costs more to get.
fn needs_pass(access_policy: &AccessPolicy) -> bool {
    access_policy.purchase_pass && access_policy.room().is_none()
}

/// With a waiting room, joining it asks for the work.
fn needs_work(access_policy: &AccessPolicy) -> bool {
    access_policy.challenge_bits > 0 && access_policy.room().is_none()
}

/// The services of a purchase where a sale has an access policy.
pub struct AccessPolicies {
    pub catalog: Arc<Catalog>,
    pub admission: Arc<Admission>,
    pub rooms: Arc<WaitingRooms>,
    pub bots: Arc<Bots>,
}

impl AccessPolicies {
    pub fn new(services: &Services, tokens: &TokenSigner, limits: Option<SharedLimits>) -> Self {
        let (catalog, admission) = (services.catalog.clone(), services.admission.clone());
        let redis = &services.databases.redis;
        let rooms = WaitingRooms::new(
            catalog.clone(),
            admission.clone(),
            redis.clone(),
            services.fail_points.clone(),
            tokens.signed_tokens(),
        );
        let bots = Bots::new(catalog.clone(), redis.clone(), tokens.signed_tokens(), limits);
        Self { catalog, admission, rooms: Arc::new(rooms), bots: Arc::new(bots) }
    }

    /// A purchase that may need credentials.
    pub async fn purchase(
        &self,
        sale: SaleId,
        user: UserId,
        key: Option<IdempotencyKey>,
        credentials: &Credentials,
    ) -> Result<PurchaseResult, Problem> {
        let cached = self.catalog.cached(sale).await?;
        let access_policy = cached.sale().access_policy;
        let buy = || self.admission.purchase_with_access(&cached, user, key);
        if !access_policy.is_restricted() {
            return Ok(buy().await?);
        }
        let missing = credentials.missing(&access_policy);
        // Refusals that hold for everybody come first. A request with all credentials may be a
        // retry, which its key tells.
        let retry = key.filter(|_| missing.is_none());
        if let Some(refusal) = refusals::from_cache(&cached, &self.catalog.cache.clock, user, retry)
            && (missing.is_some() || access_policy.room().is_none())
        {
            return Ok(refusal);
        }
        if let Some(problem) = missing {
            return Err(problem);
        }
        if let (true, Some(pass)) = (needs_pass(&access_policy), &credentials.pass) {
            let verified = self.bots.verify_pass(sale, user, text(pass));
            verified.map_err(|why| match why {
                BadToken::Forged => Problem::new(&PASS_INVALID),
                BadToken::Expired => Problem::new(&PASS_EXPIRED),
            })?;
        }
        if let (true, Some(solution)) = (needs_work(&access_policy), &credentials.solution) {
            self.accept_work(sale, user, solution, key).await?;
        }
        match &credentials.admission {
            Some(admission) if access_policy.room().is_some() => {
                self.with_admission(&cached, user, key, text(admission)).await
            }
            _ => Ok(buy().await?),
        }
    }

    async fn with_admission(
        &self,
        cached: &Arc<CachedSale>,
        user: UserId,
        key: Option<IdempotencyKey>,
        admission: &str,
    ) -> Result<PurchaseResult, Problem> {
        let turn = self.rooms.verify(cached.id, user, admission);
        let turn = turn.map_err(|why| match why {
            BadToken::Forged => Problem::new(&ADMISSION_INVALID),
            BadToken::Expired => Problem::new(&ADMISSION_EXPIRED),
        })?;
        // The turn replaces the client's own key: each turn makes one order.
        let buying = self.admission.purchase_with_access(cached, user, Some(turn.key));
        let bought = buying.await?;
        if let PurchaseResult::Accepted { order_id, replayed } = bought {
            match replayed {
                false => self.rooms.used(cached.id, turn),
                // With a key it is a retry and gets the first answer; without one it is a second
                // purchase.
                true if key.is_none() => return Err(about(&ADMISSION_USED, order_id)),
                true => {}
            }
        }
        Ok(bought)
    }

    /// Joins the waiting room. Keeping a place needs no proof of work.
    pub async fn join(
        &self,
        sale: SaleId,
        user: UserId,
        credentials: Option<&Credentials>,
    ) -> Result<Place, Problem> {
        let cached = self.catalog.cached(sale).await?;
        let access_policy = cached.sale().access_policy;
        if access_policy.challenge_bits == 0 || access_policy.room().is_none() {
            return Ok(self.rooms.join(sale, user).await?);
        }
        let missed = match self.rooms.place(sale, user).await {
            Ok(place) if place.standing == Standing::Missed => Some(place),
            Ok(place) => return Ok(place),
            Err(RoomError::NotHere) => None,
            Err(error) => return Err(error.into()),
        };
        if self.rooms.may_join(&cached)? == Joining::Read {
            // Nothing is left: no work is asked for.
            return missed.ok_or_else(|| RoomError::SoldOut.into());
        }
        let Some(solution) = credentials.and_then(|credentials| credentials.solution.as_ref())
        else {
            return Err(Problem::new(&CHALLENGE_REQUIRED));
        };
        self.accept_work(sale, user, solution, None).await?;
        Ok(self.rooms.join(sale, user).await?)
    }

    async fn accept_work(
        &self,
        sale: SaleId,
        user: UserId,
        solution: &HeaderValue,
        key: Option<IdempotencyKey>,
    ) -> Result<(), Problem> {
        let accepted = self.bots.accept_work(sale, user, text(solution), key).await;
        accepted.map_err(|error| match error {
            WorkError::Bad(BadSolution::Wrong) => Problem::new(&CHALLENGE_FAILED),
            WorkError::Bad(BadSolution::Expired | BadSolution::Spent) => {
                Problem::new(&CHALLENGE_EXPIRED)
            }
            WorkError::Shop(error) => error.into(),
        })
    }
}
