//! Defence against bots: parts that make buying by machine more expensive. Each has a switch and is
//! off by default; `docs/bots.md` weighs them.
//!
//! | part | required for | costs |
//! |---|---|---|
//! | [`limits`]: requests of a user and an address | changing requests | one round trip |
//! | [`work`]: a proof of work | a purchase, or joining the room | a round trip, client time |
//! | pass: signed, issued from the opening on | a purchase | fetching it, a signature |
//!
//! Nothing is lost in a crash: limits are in Redis, tokens are signed.

pub mod functions;
pub mod limits;
pub mod work;

use crate::access::bots::functions::Spent;
use crate::access::bots::limits::SharedLimits;
use crate::access::bots::work::BadSolution;
use crate::auth::signed_token::{BadToken, Purpose, SignedTokens};
use crate::catalog::Catalog;
use crate::domain::{IdempotencyKey, SaleId, UserId};
use crate::error::ServiceError;
use crate::redis::Redis;
use metrics::{Counter, counter};
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;

/// Long enough for a click and its retries, too short for selling passes.
pub const PASS_LIFE: time::Duration = time::Duration::seconds(60);

/// A challenge for one user and one sale.
#[derive(Debug, Clone)]
pub struct Challenge {
    pub text: String,
    pub bits: u8,
    pub expires_at: OffsetDateTime,
}

/// Why a solution is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    #[error("{0:?}")]
    Bad(BadSolution),
    #[error(transparent)]
    Shop(#[from] ServiceError),
}

/// The defences of one process.
pub struct Bots {
    catalog: Arc<Catalog>,
    redis: Arc<Redis>,
    signed_tokens: SignedTokens,
    /// `None`: each instance counts for itself only.
    pub limits: Option<SharedLimits>,
    solved: Counter,
    unsolved: Counter,
    passes: Counter,
}

impl Bots {
    pub fn new(
        catalog: Arc<Catalog>,
        redis: Arc<Redis>,
        signed_tokens: SignedTokens,
        limits: Option<SharedLimits>,
    ) -> Self {
        let solutions =
            |outcome| counter!("flash_sale_challenge_solutions_total", "outcome" => outcome);
        Self {
            catalog,
            redis,
            signed_tokens,
            limits,
            solved: solutions("accepted"),
            unsolved: solutions("refused"),
            passes: counter!("flash_sale_passes_total"),
        }
    }

    /// A challenge of `bits`.
    pub fn challenge(&self, sale: SaleId, user: UserId, bits: u8) -> Challenge {
        let now = self.catalog.now();
        let (text, expires_at) = work::challenge(&self.signed_tokens, user, sale, bits, now);
        Challenge { text, bits, expires_at }
    }

    /// Accepts a solution once, and again for retries with the same idempotency key.
    pub async fn accept_work(
        &self,
        sale: SaleId,
        user: UserId,
        solution: &str,
        key: Option<IdempotencyKey>,
    ) -> Result<(), WorkError> {
        let now = self.catalog.now();
        let refuse = |why| {
            self.unsolved.increment(1);
            WorkError::Bad(why)
        };
        let verified = work::verify(&self.signed_tokens, user, sale, solution, now);
        let (salt, expires_at) = verified.map_err(refuse)?;
        let memory = Duration::try_from(expires_at - now).unwrap_or_default();
        let keys = &self.redis.keys;
        let connection = self.redis.shared().await;
        let mut connection = connection
            .map_err(|_| ServiceError::unavailable("solutions cannot be checked at the moment"))?;
        let mark = key.map_or(0, |key| key.get().cast_unsigned());
        let spent = functions::spend(&mut connection, keys, sale, &salt, mark, memory).await;
        let spent = spent.inspect_err(|_| self.redis.suspect_shared());
        match spent.map_err(ServiceError::Redis)? {
            Spent::Now => {}
            Spent::Before { mark: before } if before == mark && mark != 0 => {}
            Spent::Before { .. } => return Err(refuse(BadSolution::Spent)),
        }
        self.solved.increment(1);
        Ok(())
    }

    /// A pass for this user and sale, and its expiry. The caller has checked that the sale is open.
    pub fn pass(&self, sale: SaleId, user: UserId) -> (String, OffsetDateTime) {
        self.passes.increment(1);
        let expires_at = self.catalog.now() + PASS_LIFE;
        let (tokens, purpose) = (&self.signed_tokens, Purpose::Pass);
        (tokens.write(purpose, user, sale, expires_at, &[]), expires_at)
    }

    pub fn verify_pass(&self, sale: SaleId, user: UserId, pass: &str) -> Result<(), BadToken> {
        let (tokens, now) = (&self.signed_tokens, self.catalog.now());
        tokens.verify(Purpose::Pass, user, sale, pass, now).map(drop)
    }
}
