//! Defence against bots: what makes buying by machine dearer than buying by hand. Each part has a switch and is off
//! by default; `docs/bots.md` says what each is worth.
//!
//! | part | asked | costs |
//! |---|---|---|
//! | [`limits`]: a user's and an address' requests, over all instances | what changes something | one round trip; the refused none |
//! | [`work`]: a proof of work | a purchase, or joining the waiting room | one round trip, and the client's time |
//! | pass: a slip that is given out from the opening on | a purchase | nothing; fetching it, a signature |
//!
//! On a crash nothing is lost that matters: limits stand in Redis, slips are signed.

pub mod functions;
pub mod limits;
pub mod work;

use self::{functions::Spent, work::BadSolution};
use crate::{
    domain::{IdempotencyKey, SaleId, UserId},
    sale::{Shop, ShopError},
    slip::{BadSlip, Purpose, Slips},
};
use limits::SharedLimits;
use metrics::{Counter, counter};
use std::{sync::Arc, time::Duration};
use time::OffsetDateTime;

/// How long a pass is good. Long enough for a click and its retries, short enough that selling it makes no market.
pub const PASS_LIFE: time::Duration = time::Duration::seconds(60);
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A puzzle for one user and one sale.
#[derive(Debug, Clone)]
pub struct Challenge {
    pub text: String,
    pub bits: u8,
    pub expires_at: OffsetDateTime,
}

/// Why work does not count.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    #[error("{0:?}")]
    Bad(BadSolution),
    #[error(transparent)]
    Shop(#[from] ShopError),
}

/// The parts, as one process runs them.
pub struct Bots {
    shop: Arc<Shop>,
    slips: Slips,
    /// `None`: each instance counts for itself only.
    pub limits: Option<SharedLimits>,
    metrics: BotMetrics,
}

struct BotMetrics {
    solved: Counter,
    unsolved: Counter,
    passes: Counter,
}

impl BotMetrics {
    fn new() -> Self {
        let solutions =
            |outcome| counter!("flash_sale_challenge_solutions_total", "outcome" => outcome);
        Self {
            solved: solutions("accepted"),
            unsolved: solutions("refused"),
            passes: counter!("flash_sale_passes_total"),
        }
    }
}

impl Bots {
    pub fn new(shop: Arc<Shop>, slips: Slips, limits: Option<SharedLimits>) -> Self {
        Self {
            shop,
            slips,
            limits,
            metrics: BotMetrics::new(),
        }
    }

    /// A challenge of `bits`.
    pub fn challenge(&self, sale: SaleId, user: UserId, bits: u8) -> Challenge {
        let (text, expires_at) = work::challenge(&self.slips, user, sale, bits, self.shop.now());
        Challenge {
            text,
            bits,
            expires_at,
        }
    }

    /// Accepts a solution once, and again for retries of the same purchase, which its key tells.
    pub async fn accept_work(
        &self,
        sale: SaleId,
        user: UserId,
        solution: &str,
        key: Option<IdempotencyKey>,
    ) -> Result<(), WorkError> {
        let now = self.shop.now();
        let refuse = |why| {
            self.metrics.unsolved.increment(1);
            WorkError::Bad(why)
        };
        let verified = work::verify(&self.slips, user, sale, solution, now);
        let (salt, expires_at) = verified.map_err(refuse)?;
        let memory = Duration::try_from(expires_at - now).unwrap_or_default();
        let keys = &self.shop.redis.keys;
        let connection = self.shop.redis.shared().await;
        let mut connection = connection.map_err(|_| away())?;
        let mark = key.map_or(0, IdempotencyKey::get);
        let spent = functions::spend(&mut connection, keys, sale, &salt, mark, memory).await;
        match spent.map_err(ShopError::Redis)? {
            Spent::Now => {}
            Spent::Before { mark: before } if before == mark && mark != 0 => {}
            Spent::Before { .. } => return Err(refuse(BadSolution::Spent)),
        }
        self.metrics.solved.increment(1);
        Ok(())
    }

    /// A pass for this user and sale, and until when it is good. The caller has seen that the sale is open.
    pub fn pass(&self, sale: SaleId, user: UserId) -> (String, OffsetDateTime) {
        self.metrics.passes.increment(1);
        let expires_at = self.shop.now() + PASS_LIFE;
        let pass = self.slips.write(Purpose::Pass, user, sale, expires_at, &[]);
        (pass, expires_at)
    }

    pub fn verify_pass(&self, sale: SaleId, user: UserId, pass: &str) -> Result<(), BadSlip> {
        let now = self.shop.now();
        let verified = self.slips.verify(Purpose::Pass, user, sale, pass, now);
        verified.map(|_| ())
    }
}

fn away() -> ShopError {
    ShopError::Unavailable {
        what: "solutions cannot be checked at the moment",
        retry_after: RETRY_AFTER,
    }
}
