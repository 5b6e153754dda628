//! Reads rows from Postgres and snapshots from Redis into the cache, and repairs differences.

use crate::catalog::Catalog;
use crate::catalog::cached_sale::CachedSale;
use crate::catalog::changes::sale_query;
use crate::domain::SaleId;
use crate::error::{ServiceError, ServiceResult};
use crate::redis::functions::{self, Snapshot};
use crate::redis::is_wrong_type;
use std::sync::Arc;
use std::time::Instant;

impl Catalog {
    /// The sale from the cache, or loaded into it.
    pub async fn cached(&self, id: SaleId) -> ServiceResult<Arc<CachedSale>> {
        match self.cache.get(id) {
            Some(cached) => Ok(cached),
            None => self.look_up(id).await,
        }
    }

    /// Loads one sale from Postgres and Redis into the cache.
    pub async fn refresh(&self, id: SaleId) -> ServiceResult<Arc<CachedSale>> {
        let cached = self.refresh_row(id).await?;
        self.read_snapshots(std::slice::from_ref(&cached)).await?;
        Ok(cached)
    }

    /// Loads the row of one sale from Postgres into the cache.
    pub async fn refresh_row(&self, id: SaleId) -> ServiceResult<Arc<CachedSale>> {
        let sale = sale_query!("SELECT ", " FROM sales WHERE id = $1").bind(id);
        let sale = sale.fetch_optional(&self.postgres).await?;
        Ok(self.cache.learn(sale.ok_or(ServiceError::SaleNotFound)?))
    }

    /// Loads every sale's row from Postgres into the cache.
    pub async fn refresh_catalogue(&self) -> ServiceResult<()> {
        let sales = sale_query!("SELECT ", " FROM sales");
        for sale in sales.fetch_all(&self.postgres).await? {
            self.cache.learn(sale);
        }
        Ok(())
    }

    /// Reads the Redis state of these sales, and notifies subscribers. If one of several servers
    /// fails, the answers of the others are still cached before the error is returned.
    pub async fn read_snapshots(&self, cached_sales: &[Arc<CachedSale>]) -> ServiceResult<()> {
        let keys = &self.redis.keys;
        let mut commands = vec![redis::cmd("TIME")];
        let ask = |cached: &Arc<CachedSale>| functions::snapshot(keys, cached.id);
        commands.extend(cached_sales.iter().map(ask));
        let epochs: Vec<i64> = cached_sales.iter().map(|cached| cached.sale().epoch).collect();
        let asked = Instant::now();
        let replies = self.redis.query_all(commands).await;
        if replies.is_err() {
            for cached in cached_sales {
                cached.set_read(false);
            }
        }
        let mut replies = replies?.into_iter();
        let clock = replies.next().unwrap_or(Ok(redis::Value::Nil));
        let clock = clock.and_then(clock_ms);
        if let Ok(now_ms) = clock {
            self.cache.clock.read(now_ms, asked);
        }
        let now = self.now();
        let mut failed = clock.map(drop);
        for ((cached, reply), epoch) in cached_sales.iter().zip(replies).zip(epochs) {
            let reply = match reply {
                Ok(reply) => Ok(Snapshot::from_reply(reply)),
                // A key of the wrong type concerns this sale only.
                Err(error) if is_wrong_type(&error) => Ok(None),
                // It was not read: nothing is known of its state.
                Err(error) => Err(error),
            };
            cached.set_read(reply.is_ok());
            match reply {
                // Redis goes ahead of Postgres: an older epoch is a copy that was put back.
                Ok(Some(snapshot)) if snapshot.epoch < epoch => cached.suspect(),
                Ok(snapshot) => cached.tell(snapshot),
                Err(error) => failed = failed.and(Err(error)),
            }
            cached.notify_subscribers(now);
        }
        Ok(failed?)
    }

    /// Adopts a sale whose slot moved between approved processes, which needs no rebuild; answers
    /// whether it did. Both must be primaries now: a replica that was promoted may lack
    /// acknowledged writes.
    pub async fn adopt(&self, cached: &CachedSale) -> ServiceResult<bool> {
        let Some(known) = cached.snapshot().filter(|_| self.redis.is_cluster()) else {
            return Ok(false);
        };
        let approved = self.approved_processes().await?;
        let moved = !cached.is_suspect()
            && known.epoch == cached.sale().epoch
            && approved.contains(&*known.approved)
            && approved.contains(&*known.process);
        if !moved {
            return Ok(false);
        }
        let primaries = self.redis.processes().await?;
        let is_primary = |process: &str| primaries.iter().any(|one| one == process);
        if !is_primary(&known.approved) || !is_primary(&known.process) {
            return Ok(false);
        }
        let keys = &self.redis.keys;
        let mut connection = self.redis.pooled().await?;
        // Otherwise another instance was faster, or the slot has moved on.
        if functions::adopt(&mut connection, keys, cached.id, &known).await? {
            tracing::debug!(sale = %cached.id, "follows its slot to another process");
        }
        self.refresh(cached.id).await?;
        Ok(true)
    }

    /// Repairs Redis where it is behind Postgres (a change that was not applied), or lacks units
    /// that Postgres still has (a crash in [`Catalog::take_stock`]). Only a difference that `seen`
    /// remembers from the last call is repaired: a change under way is left alone.
    pub async fn reconcile(&self, seen: &mut Vec<(SaleId, i64)>) -> ServiceResult<()> {
        let mut suspects = Vec::new();
        let mut outcome = Ok(());
        for cached in self.cache.cached_sales() {
            if !cached.was_read() {
                continue;
            }
            let (sale, Some(known)) = (cached.sale(), cached.snapshot()) else {
                continue;
            };
            if known.epoch != sale.epoch {
                continue; // the rebuild task handles it
            }
            let behind = known.version < sale.version;
            let short = known.version == sale.version && known.stock != i64::from(sale.stock);
            if !(behind || short) {
                continue;
            }
            suspects.push((sale.id, sale.version));
            if !seen.contains(&(sale.id, sale.version)) {
                continue;
            }
            tracing::warn!(sale = %sale.id, "repairing redis' copy of a sale");
            let claim = sale_query!(
                "UPDATE sales SET version = version + 1 WHERE id = $1 AND version = $2 RETURNING "
            );
            let claim = claim.bind(sale.id).bind(sale.version);
            let claimed = claim.fetch_optional(&self.postgres).await?;
            if claimed.is_some() {
                // A failure must not keep the others from being repaired.
                let repaired = self.publish(claimed).await;
                outcome = outcome.and(repaired.map(drop));
            }
        }
        *seen = suspects;
        outcome
    }
}

/// Redis' TIME in Unix ms. Accepts any reply.
fn clock_ms(reply: redis::Value) -> Result<i64, redis::RedisError> {
    let (seconds, micros): (i64, i64) = redis::from_redis_value(reply)?;
    Ok(seconds.saturating_mul(1_000).saturating_add(micros / 1_000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::stub::any_value;
    use proptest::prelude::*;
    use redis::Value;

    proptest! {
        #[test]
        fn any_reply_is_a_reading_or_none(reply in any_value()) {
            let _ = clock_ms(reply.clone());
            Snapshot::from_reply(reply);
        }

        #[test]
        fn any_numbers_are_a_time_or_an_error(seconds: i64, micros: i64) {
            let text = |number: i64| Value::BulkString(number.to_string().into_bytes());
            prop_assert!(clock_ms(Value::Array(vec![text(seconds), text(micros)])).is_ok());
        }
    }
}
