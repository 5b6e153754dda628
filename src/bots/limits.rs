//! Limits that all instances share: a bucket for each user and one for each address, in Redis.
//!
//! A request takes one from both, side by side: on one Redis that is one write and one read on the shared
//! connection, on a cluster two nodes are asked at once. Whoever was refused is remembered here until the bucket
//! has a request again, and is refused without a question until then.
//!
//! On a crash nothing is lost but that memory: the next refusal restores it.

use super::functions::{self, Quota, Taken};
use crate::{domain::UserId, redis::Redis};
use dashmap::DashMap;
use metrics::{Counter, counter};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// What happens to a request while Redis does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenAway {
    /// It passes: a defence that is down must not end the sale.
    Open,
    /// It is told to come back: nobody passes uncounted.
    Closed,
}

/// How long the limits may take. Beyond it Redis counts as away.
const PATIENCE: Duration = Duration::from_millis(250);
/// More than this many remembered refusals, and those that are over are thrown out.
const TIDY_ABOVE: usize = 10_000;

/// What each user and each address may do in all instances together.
#[derive(Debug, Clone, Copy)]
pub struct Quotas {
    pub user: Quota,
    /// Wide, because many shoppers may share one.
    pub address: Quota,
}

impl Default for Quotas {
    fn default() -> Self {
        Self {
            user: Quota {
                interval: Duration::from_millis(100),
                burst: 20,
            },
            address: Quota {
                interval: Duration::from_millis(2),
                burst: 1_000,
            },
        }
    }
}

/// Whose bucket it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Whose {
    User(UserId),
    Address(String),
}

impl Whose {
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
    /// Of this limit nothing is left for so long.
    TooMany { limit: &'static str, wait: Duration },
    /// Redis does not answer, and nobody passes uncounted.
    Uncounted,
}

/// The limits of all instances, as one of them applies them.
pub struct SharedLimits {
    redis: Arc<Redis>,
    quotas: Quotas,
    when_away: WhenAway,
    refused: DashMap<Whose, Instant>,
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
        let (user, address) = (Whose::User(user), Whose::Address(address));
        for whose in [&user, &address] {
            if let Some(wait) = self.still_refused(whose) {
                self.remembered.increment(1);
                return Err(too_many(whose, wait));
            }
        }
        let asked = async {
            tokio::try_join!(
                self.take(&user, self.quotas.user),
                self.take(&address, self.quotas.address)
            )
        };
        let Ok(Ok((of_user, of_address))) = tokio::time::timeout(PATIENCE, asked).await else {
            self.away.increment(1);
            return match self.when_away {
                WhenAway::Open => Ok(()),
                WhenAway::Closed => Err(Refused::Uncounted),
            };
        };
        for (whose, taken) in [(user, of_user), (address, of_address)] {
            if !taken.allowed {
                self.refusals.increment(1);
                self.tidy();
                self.refused
                    .insert(whose.clone(), Instant::now() + taken.wait);
                return Err(too_many(&whose, taken.wait));
            }
        }
        Ok(())
    }

    async fn take(&self, whose: &Whose, quota: Quota) -> Result<Taken, redis::RedisError> {
        let keys = &self.redis.keys;
        let key = match whose {
            Whose::User(user) => keys.limit("user", &user.to_string()),
            Whose::Address(address) => keys.limit("address", address),
        };
        let mut connection = self.redis.shared().await?;
        functions::take(&mut connection, &key, quota).await
    }

    fn still_refused(&self, whose: &Whose) -> Option<Duration> {
        let until = *self.refused.get(whose)?;
        let wait = until.saturating_duration_since(Instant::now());
        (!wait.is_zero()).then_some(wait)
    }

    /// The table holds who was refused within the last burst, not everybody who ever was.
    fn tidy(&self) {
        if self.refused.len() > TIDY_ABOVE {
            let now = Instant::now();
            self.refused.retain(|_, until| *until > now);
        }
    }
}

fn too_many(whose: &Whose, wait: Duration) -> Refused {
    Refused::TooMany {
        limit: whose.name(),
        wait,
    }
}
