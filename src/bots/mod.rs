//! Defence against bots: what makes buying by machine dearer than buying by hand. Each part has a switch and is off
//! by default; `docs/bots.md` says what each is worth.
//!
//! | part | asked | costs |
//! |---|---|---|
//! | [`limits`]: a user's and an address' requests, over all instances | what changes something | one round trip; the refused none |
//! | [`work`]: a proof of work, dearer for the suspicious | a purchase, or joining the waiting room | one round trip, and the client's time |
//! | pass: a slip that is given out from the opening on | a purchase | nothing; fetching it, a signature |
//!
//! On a crash nothing is lost that matters: limits and suspicion stand in Redis, slips are signed.

pub mod limits;
pub mod work;

use self::work::BadSolution;
use crate::{
    domain::{IdempotencyKey, SaleId, UserId},
    redis::scripts::bots::{self as scripts, Spent},
    sale::{Shop, ShopError},
    slip::{BadSlip, Purpose, Slips},
};
use dashmap::DashMap;
use limits::SharedLimits;
use metrics::{Counter, Histogram, counter, histogram};
use std::{sync::Arc, time::Duration};
use time::OffsetDateTime;

/// How long a pass is good. Long enough for a click and its retries, short enough that selling it makes no market.
pub const PASS_LIFE: time::Duration = time::Duration::seconds(60);
/// How long an address is remembered for what it did.
const MEMORY: Duration = Duration::from_secs(600);
/// More addresses than this with misdeeds that Redis does not know of, and those are forgotten.
const MOST_UNTOLD: usize = 100_000;
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What is known against an address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Suspicion {
    /// Purchases before the opening, and refusals for asking too often, in the last ten minutes.
    pub misdeeds: u64,
    /// Users who asked for a challenge from there, roughly.
    pub users: u64,
}

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
    /// What addresses did that Redis does not know of yet.
    untold: DashMap<String, u32>,
    metrics: BotMetrics,
}

struct BotMetrics {
    solved: Counter,
    unsolved: Counter,
    passes: Counter,
    misdeeds: Counter,
    bits: Histogram,
}

impl BotMetrics {
    fn new() -> Self {
        let solutions =
            |outcome| counter!("flash_sale_challenge_solutions_total", "outcome" => outcome);
        Self {
            solved: solutions("accepted"),
            unsolved: solutions("refused"),
            passes: counter!("flash_sale_passes_total"),
            misdeeds: counter!("flash_sale_misdeeds_total"),
            bits: histogram!("flash_sale_challenge_bits"),
        }
    }
}

impl Bots {
    pub fn new(shop: Arc<Shop>, slips: Slips, limits: Option<SharedLimits>) -> Self {
        Self {
            shop,
            slips,
            limits,
            untold: DashMap::new(),
            metrics: BotMetrics::new(),
        }
    }

    /// Notes that somebody at this address asked too early or too often. Costs no question: it is told with the
    /// next challenge that the address asks for.
    pub fn misdeed(&self, address: String) {
        self.metrics.misdeeds.increment(1);
        if self.untold.len() > MOST_UNTOLD {
            self.untold.clear();
        }
        let mut deeds = self.untold.entry(address).or_default();
        *deeds = deeds.saturating_add(1);
    }

    /// A challenge of `bits`, and more for an address under suspicion. While Redis does not answer, of what this
    /// instance knows itself.
    pub async fn challenge(
        &self,
        sale: SaleId,
        user: UserId,
        address: &str,
        bits: u8,
    ) -> Challenge {
        let untold = self.untold.remove(address).map_or(0, |(_, deeds)| deeds);
        let asked = async {
            let keys = &self.shop.redis.keys;
            let [deeds, _] = keys.suspect(address);
            let mut connection = self.shop.redis.hot_for(&deeds).await.ok()?;
            let told = scripts::suspect(&mut connection, keys, address, untold, user, MEMORY).await;
            told.ok()
        };
        let asked = asked.await;
        if asked.is_none() && untold > 0 {
            // Redis was not told: for the next time.
            *self.untold.entry(address.to_owned()).or_default() += untold;
        }
        let (misdeeds, users) = asked.unwrap_or((untold.into(), 0));
        let extra = work::extra_bits(Suspicion { misdeeds, users });
        let bits = bits.saturating_add(extra).min(work::MOST_BITS);
        self.metrics.bits.record(f64::from(bits));
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
        let connection = self.shop.redis.hot_for(&keys.spent(sale, &salt)).await;
        let mut connection = connection.map_err(|_| away())?;
        let mark = key.map_or(0, IdempotencyKey::get);
        let spent = scripts::spend(&mut connection, keys, sale, &salt, mark, memory).await;
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
