//! What the board is told: rows from Postgres, readings from Redis; and what is repaired when the two differ.

use super::{
    Shop, ShopError,
    board::{Listing, Tally},
    catalogue::sale_columns,
};
use crate::{
    domain::{Sale, SaleId},
    redis::is_wrong_type,
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
        self.read_tallies(std::slice::from_ref(&listing)).await?;
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

    /// Reads the Redis state of these sales in one round trip, and tells their subscribers. Where one server
    /// of several does not answer, what the others said is told, and then the error returned.
    pub async fn read_tallies(&self, listings: &[Arc<Listing>]) -> Result<(), ShopError> {
        let mut pipeline = redis::Pipeline::with_capacity(listings.len() + 1);
        // A key of the wrong type is that sale's trouble alone.
        pipeline.ignore_errors().cmd("TIME");
        for listing in listings {
            pipeline
                .cmd("HMGET")
                .arg(self.redis.keys.state(listing.id))
                .arg(&TALLY_FIELDS);
        }
        let (asked, answered) = (Instant::now(), async {
            let mut connection = self.redis.pooled().await?;
            pipeline.query_async(&mut *connection).await
        });
        let replies: Result<Vec<redis::Value>, redis::RedisError> = answered.await;
        if replies.is_err() {
            for listing in listings {
                listing.set_read(false);
            }
        }
        let mut replies = replies?.into_iter();
        let clock = clock_ms(replies.next().unwrap_or(redis::Value::Nil));
        if let Ok(now_ms) = clock {
            self.board.clock.read(now_ms, asked);
        }
        let now = self.now();
        let mut failed = clock.map(drop);
        for listing in listings {
            let reply = replies.next().unwrap_or(redis::Value::Nil);
            let answered = match reply.extract_error() {
                Ok(reply) => Ok(Tally::from_reply(reply)),
                Err(error) if is_wrong_type(&error) => Ok(None),
                Err(error) => Err(error),
            };
            listing.set_read(answered.is_ok());
            match answered {
                Ok(tally) => listing.tell(tally),
                // Nothing is known: neither that it is there nor that it is not.
                Err(error) => failed = failed.and(Err(error)),
            }
            listing.pulsate(now);
        }
        Ok(failed?)
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
            let (sale, Some(tally)) = (listing.sale(), listing.tally()) else {
                continue;
            };
            if tally.epoch != sale.epoch {
                continue; // the rebuild's business
            }
            let behind = tally.version < sale.version;
            let short = tally.version == sale.version && tally.stock != i64::from(sale.stock);
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

const TALLY_FIELDS: [&str; 7] = [
    "epoch",
    "version",
    "stock",
    "remaining",
    "admitted",
    "pending",
    "change",
];

/// Redis' TIME in Unix ms. Total over any reply.
fn clock_ms(reply: redis::Value) -> Result<i64, redis::RedisError> {
    let (seconds, micros): (i64, i64) = redis::from_redis_value(reply)?;
    Ok(seconds.saturating_mul(1_000).saturating_add(micros / 1_000))
}

impl Tally {
    /// From the reply to HMGET of `TALLY_FIELDS`. `None`: there is no state, or none that can be read.
    /// Total over any reply.
    pub(super) fn from_reply(reply: redis::Value) -> Option<Self> {
        let fields: Vec<Option<i64>> = redis::from_redis_value(reply).ok()?;
        let fields: Option<Vec<i64>> = fields.into_iter().collect();
        let [epoch, version, stock, remaining, admitted, pending, change] = fields?[..] else {
            return None;
        };
        Some(Self {
            epoch,
            version,
            stock,
            remaining,
            admitted,
            pending,
            change,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::parrot::any_value;
    use proptest::prelude::*;
    use redis::Value;

    proptest! {
        #[test]
        fn any_reply_is_a_reading_or_none(reply in any_value()) {
            let _ = clock_ms(reply.clone());
            Tally::from_reply(reply);
        }

        #[test]
        fn any_numbers_are_a_time_or_an_error(seconds: i64, micros: i64) {
            let text = |number: i64| Value::BulkString(number.to_string().into_bytes());
            prop_assert!(clock_ms(Value::Array(vec![text(seconds), text(micros)])).is_ok());
        }

        #[test]
        fn a_tally_needs_all_of_its_fields(numbers in prop::collection::vec(any::<Option<i64>>(), 0..9)) {
            let reply = numbers.iter().map(|number| match number {
                Some(number) => Value::BulkString(number.to_string().into_bytes()),
                None => Value::Nil,
            });
            let complete = numbers.len() == TALLY_FIELDS.len() && numbers.iter().all(Option::is_some);
            let tally = Tally::from_reply(Value::Array(reply.collect()));
            prop_assert_eq!(tally.map(|tally| Some(tally.epoch)), complete.then(|| numbers[0]));
        }
    }
}
