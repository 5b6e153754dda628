//! What the board is told: rows from Postgres, snapshots from Redis; and what is repaired when the two differ.

use super::{Shop, ShopError, board::Listing, catalogue::sale_columns};
use crate::{
    domain::{Sale, SaleId},
    redis::{
        functions::{self, Snapshot},
        is_wrong_type,
    },
};
use std::{sync::Arc, time::Instant};

impl Shop {
    /// The sale on the board, or loaded onto it.
    pub async fn listing(&self, id: SaleId) -> Result<Arc<Listing>, ShopError> {
        match self.board.get(id) {
            Some(listing) => Ok(listing),
            None => self.look_up(id).await,
        }
    }

    /// Loads one sale from Postgres and Redis onto the board.
    pub async fn refresh(&self, id: SaleId) -> Result<Arc<Listing>, ShopError> {
        let listing = self.refresh_row(id).await?;
        self.read_snapshots(std::slice::from_ref(&listing)).await?;
        Ok(listing)
    }

    /// Loads what Postgres knows of one sale onto the board.
    pub async fn refresh_row(&self, id: SaleId) -> Result<Arc<Listing>, ShopError> {
        let sale: Option<Sale> = sqlx::query_as(concat!(
            "SELECT ",
            sale_columns!(),
            " FROM sales WHERE id = $1"
        ))
        .bind(id)
        .fetch_optional(&self.postgres)
        .await?;
        Ok(self.board.learn(sale.ok_or(ShopError::SaleNotFound)?))
    }

    /// Loads every sale's row from Postgres onto the board.
    pub async fn refresh_catalogue(&self) -> Result<(), ShopError> {
        let sales: Vec<Sale> = sqlx::query_as(concat!("SELECT ", sale_columns!(), " FROM sales"))
            .fetch_all(&self.postgres)
            .await?;
        for sale in sales {
            self.board.learn(sale);
        }
        Ok(())
    }

    /// Reads the Redis state of these sales, and tells their subscribers. Where one server of several
    /// does not answer, what the others said is told, and then the error returned.
    pub async fn read_snapshots(&self, listings: &[Arc<Listing>]) -> Result<(), ShopError> {
        let keys = &self.redis.keys;
        let mut commands = vec![redis::cmd("TIME")];
        commands.extend(
            listings
                .iter()
                .map(|listing| functions::snapshot(keys, listing.id)),
        );
        let asked = Instant::now();
        let replies = self.redis.query_all(commands).await;
        if replies.is_err() {
            for listing in listings {
                listing.set_read(false);
            }
        }
        let mut replies = replies?.into_iter();
        let clock = replies
            .next()
            .unwrap_or(Ok(redis::Value::Nil))
            .and_then(clock_ms);
        if let Ok(now_ms) = clock {
            self.board.clock.read(now_ms, asked);
        }
        let now = self.now();
        let mut failed = clock.map(drop);
        for (listing, reply) in listings.iter().zip(replies) {
            let reply = match reply {
                Ok(reply) => Ok(Snapshot::from_reply(reply)),
                // A key of the wrong type is that sale's trouble alone.
                Err(error) if is_wrong_type(&error) => Ok(None),
                // It was not looked at, so nothing is known: neither that it is there nor that it is not.
                Err(error) => Err(error),
            };
            listing.set_read(reply.is_ok());
            match reply {
                Ok(snapshot) => listing.tell(snapshot),
                Err(error) => failed = failed.and(Err(error)),
            }
            listing.pulsate(now);
        }
        Ok(failed?)
    }

    /// A slot that moves between approved processes takes its sales along, which need no rebuild.
    /// Answers whether this is such a sale. Both must be primaries now: a replica that took its
    /// primary's place may lack what that one had acknowledged.
    pub async fn adopt(&self, listing: &Listing) -> Result<bool, ShopError> {
        let Some(known) = listing.snapshot().filter(|_| self.redis.is_cluster()) else {
            return Ok(false);
        };
        let approved = self.approved_processes().await?;
        let moved = !listing.is_suspect()
            && known.epoch == listing.sale().epoch
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
        // Otherwise somebody else was faster, or it has moved on: the next look tells.
        if functions::adopt(&mut connection, keys, listing.id, &known).await? {
            tracing::debug!(sale = %listing.id, "follows its slot to another process");
        }
        self.refresh(listing.id).await?;
        Ok(true)
    }

    /// Repairs Redis where it is behind Postgres (a projection that did not arrive) or has units
    /// taken away that Postgres still names (a crash in [`Shop::take_stock`]). `seen` remembers
    /// suspects between calls: only a difference that outlives one call is repaired, so that a
    /// change under way is left alone. So is a sale that could not be read: nobody knows what is there.
    pub async fn reconcile(&self, seen: &mut Vec<(SaleId, i64)>) -> Result<(), ShopError> {
        let mut suspects = Vec::new();
        let mut outcome = Ok(());
        for listing in self.board.listings() {
            if !listing.was_read() {
                continue;
            }
            let (sale, Some(known)) = (listing.sale(), listing.snapshot()) else {
                continue;
            };
            if known.epoch != sale.epoch {
                continue; // the rebuild's business
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
            let claimed: Option<Sale> = sqlx::query_as(concat!(
                "UPDATE sales SET version = version + 1 WHERE id = $1 AND version = $2 RETURNING ",
                sale_columns!()
            ))
            .bind(sale.id)
            .bind(sale.version)
            .fetch_optional(&self.postgres)
            .await?;
            if let Some(sale) = claimed {
                // One that cannot be repaired now must not keep the others from it.
                let repaired = self.publish(Some(sale)).await;
                outcome = outcome.and(repaired.map(drop));
            }
        }
        *seen = suspects;
        outcome
    }
}

/// Redis' TIME in Unix ms. Total over any reply.
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
