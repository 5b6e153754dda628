//! Limits that all instances share: a bucket for each user and each address, in Redis.
//!
//! A request takes one from both, concurrently. A refusal is cached and repeated until the bucket
//! has a request again.
//!
//! A crash loses only that cache.

use crate::access::bots::functions::{self, Quota, Taken};
use crate::domain::UserId;
use crate::redis::Redis;
use dashmap::DashMap;
use metrics::{Counter, counter};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How requests are treated while Redis does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenAway {
    /// Requests pass: a defence that is down must not end the sale.
    Open,
    /// Requests get 503: none passes uncounted.
    Closed,
}

/// The timeout, after which Redis counts as away.
const CHECK_TIMEOUT: Duration = Duration::from_millis(250);
/// Expired refusals are removed beyond this many.
const TIDY_ABOVE: usize = 10_000;

/// The quotas of a user and an address over all instances.
#[derive(Debug, Clone, Copy)]
pub struct Quotas {
    pub user: Quota,
    /// Wide, because many shoppers may share one.
    pub address: Quota,
}

impl Default for Quotas {
    fn default() -> Self {
        Self {
            user: Quota::new(Duration::from_millis(100), 20),
            address: Quota::new(Duration::from_millis(2), 1_000),
        }
    }
}

/// The owner of a bucket.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LimitKey {
    User(UserId),
    Address(String),
}

impl LimitKey {
    pub fn name(&self) -> &'static str {
        match self {
            Self::User(_) => "user",
            Self::Address(_) => "address",
        }
    }
}

/// Why a request does not pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// This limit is used up for so long.
    TooMany { limit: &'static str, wait: Duration },
    /// Redis does not answer, and requests must be counted.
    Uncounted,
}

/// The shared limits, as this instance applies them.
pub struct SharedLimits {
    redis: Arc<Redis>,
    quotas: Quotas,
    when_away: WhenAway,
    refused: DashMap<LimitKey, Instant>,
    remembered: Counter,
    refusals: Counter,
    away: Counter,
}

impl SharedLimits {
    pub fn new(redis: Arc<Redis>, quotas: Quotas, when_away: WhenAway) -> Self {
        let counted = |outcome| counter!("flash_sale_shared_limits_total", "outcome" => outcome);
        Self {
            redis,
            quotas,
            when_away,
            refused: DashMap::new(),
            remembered: counted("refused_from_memory"),
            refusals: counted("refused"),
            away: counted("redis_away"),
        }
    }

    pub fn quotas(&self) -> Quotas {
        self.quotas
    }

    /// Takes one request of this user from this address, or refuses it.
    pub async fn check(&self, user: UserId, address: String) -> Result<(), Refused> {
        let (user, address) = (LimitKey::User(user), LimitKey::Address(address));
        for key in [&user, &address] {
            if let Some(wait) = self.still_refused(key) {
                self.remembered.increment(1);
                return Err(too_many(key, wait));
            }
        }
        let asked = async {
            tokio::try_join!(
                self.take(&user, self.quotas.user),
                self.take(&address, self.quotas.address)
            )
        };
        let Ok(Ok((of_user, of_address))) = tokio::time::timeout(CHECK_TIMEOUT, asked).await else {
            self.away.increment(1);
            self.redis.suspect_shared();
            return match self.when_away {
                WhenAway::Open => Ok(()),
                WhenAway::Closed => Err(Refused::Uncounted),
            };
        };
        for (key, taken) in [(user, of_user), (address, of_address)] {
            if !taken.allowed {
                self.refusals.increment(1);
                self.tidy();
                self.refused.insert(key.clone(), Instant::now() + taken.wait);
                return Err(too_many(&key, taken.wait));
            }
        }
        Ok(())
    }

    async fn take(&self, key: &LimitKey, quota: Quota) -> Result<Taken, redis::RedisError> {
        let keys = &self.redis.keys;
        let key = match key {
            LimitKey::User(user) => keys.limit("user", &user.to_string()),
            LimitKey::Address(address) => keys.limit("address", address),
        };
        let mut connection = self.redis.shared().await?;
        functions::take(&mut connection, &key, quota).await
    }

    fn still_refused(&self, key: &LimitKey) -> Option<Duration> {
        let until = *self.refused.get(key)?;
        let wait = until.saturating_duration_since(Instant::now());
        (!wait.is_zero()).then_some(wait)
    }

    /// Keeps only refusals that still apply.
    fn tidy(&self) {
        if self.refused.len() > TIDY_ABOVE {
            let now = Instant::now();
            self.refused.retain(|_, until| *until > now);
        }
    }
}

fn too_many(key: &LimitKey, wait: Duration) -> Refused {
    Refused::TooMany { limit: key.name(), wait }
}
