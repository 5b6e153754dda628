//! Returning units to Redis: the outbox table `releases`, emptied by an idempotent script.
//!
//! A row appears in the transaction that closes an order and disappears after Redis has the unit. On
//! a crash between the two the script runs again and finds nothing to return.

use crate::{
    domain::{Bucket, OrderId, SaleId, UserId},
    redis::{
        is_wrong_type,
        scripts::{self, Fenced},
    },
    sale::{Shop, ShopError, board::Listing, division::Seen},
};
use futures_util::FutureExt;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use time::OffsetDateTime;

/// The most units of a sale that are returned at a time.
const STEP: i64 = 1_000;

/// How many times so many are looked at in a step.
const PAGES: usize = 16;

/// The buckets that could not be asked in a step, and what was in the way of the last.
#[derive(Default)]
struct Away {
    buckets: BTreeSet<Bucket>,
    error: Option<ShopError>,
}

impl Shop {
    /// Returns waiting units. Idempotent, safe to run on many instances. Answers how many rows left
    /// the outbox; those of a sale that is being rebuilt stay for the next step, and hold up no other
    /// sale's.
    pub async fn release_step(&self) -> Result<usize, ShopError> {
        let sales: Vec<SaleId> = sqlx::query_scalar("SELECT DISTINCT sale_id FROM releases")
            .fetch_all(&self.postgres)
            .await?;
        let (mut settled, mut failed) = (0, None);
        for sale in sales {
            match self.release_sale(sale).boxed().await {
                Ok(count) => settled += count,
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if settled == 0 => Err(error),
            _ => Ok(settled),
        }
    }

    async fn release_sale(&self, sale: SaleId) -> Result<usize, ShopError> {
        let (mut settled, mut away) = (0, Away::default());
        let mut after = i64::MIN;
        // Behind rows that cannot be returned now there may be some that can.
        for _ in 0..PAGES {
            let rows: Vec<(UserId, OrderId, OffsetDateTime)> = sqlx::query_as(
                "SELECT user_id, order_id, created_at FROM releases WHERE sale_id = $1 AND order_id > $2
                 ORDER BY order_id LIMIT $3",
            )
            .bind(sale)
            .bind(after)
            .bind(STEP)
            .fetch_all(&self.postgres)
            .await?;
            let Some((_, last, _)) = rows.last() else {
                break;
            };
            after = last.get();
            let released = self.release_rows(sale, &rows, &mut away).await?;
            settled += released;
            let all = usize::from(self.listing(sale).await?.sale().bucket_count());
            let some_may_be_left = released < rows.len() && all > 1 && away.buckets.len() < all;
            if !some_may_be_left {
                break;
            }
        }
        match away.error {
            Some(error) if settled == 0 => Err(error),
            _ => Ok(settled),
        }
    }

    /// One page. Answers how many rows left the outbox.
    async fn release_rows(
        &self,
        sale: SaleId,
        rows: &[(UserId, OrderId, OffsetDateTime)],
        away: &mut Away,
    ) -> Result<usize, ShopError> {
        let orders: Vec<(UserId, OrderId)> = rows
            .iter()
            .map(|(user, order, _)| (*user, *order))
            .collect();
        let fail_points = &self.fail_points;
        fail_points
            .at("release.found")
            .await
            .map_err(sqlx::Error::Io)?;
        let returned = if fail_points.planted("bug.forget_a_release") {
            orders.iter().map(|(_, order)| *order).collect()
        } else {
            self.return_units(sale, orders, away).await?
        };
        if returned.is_empty() {
            return Ok(0);
        }
        fail_points
            .at("release.returned")
            .await
            .map_err(sqlx::Error::Io)?;
        // A row that came back meanwhile (the order was accepted again, see `orders::write_accepted`)
        // has another time, and stays for the next step.
        let (settled, times): (Vec<i64>, Vec<OffsetDateTime>) = rows
            .iter()
            .filter(|(_, order, _)| returned.contains(order))
            .map(|(_, order, time)| (order.get(), *time))
            .unzip();
        sqlx::query(
            "DELETE FROM releases r USING UNNEST($1::bigint[], $2::timestamptz[]) AS d (order_id, created_at)
             WHERE r.order_id = d.order_id AND r.created_at = d.created_at",
        )
        .bind(&settled)
        .bind(&times)
        .execute(&self.postgres)
        .await?;
        fail_points
            .at("release.settled")
            .await
            .map_err(sqlx::Error::Io)?;
        Ok(settled.len())
    }

    /// Steps until nothing more can be returned now.
    pub async fn release_all(&self) -> Result<(), ShopError> {
        while self.release_step().await? > 0 {}
        Ok(())
    }

    /// The orders whose rows may go: Redis has the units, or the sale is so long over that it no longer
    /// keeps any.
    async fn return_units(
        &self,
        id: SaleId,
        orders: Vec<(UserId, OrderId)>,
        away: &mut Away,
    ) -> Result<HashSet<OrderId>, ShopError> {
        let mut listing = self.listing(id).await?;
        let (mut returned, mut waiting) = (HashSet::new(), orders);
        for reloaded in [false, true] {
            let (there, refused) = self.return_to_buckets(&listing, &waiting, away).await?;
            waiting.retain(|(_, order)| !there.contains(order));
            returned.extend(there);
            match refused {
                None => break,
                Some(Fenced::Absent) if listing.is_retired(self.now()) => {
                    returned.extend(waiting.drain(..).map(|(_, order)| order));
                    break;
                }
                Some(Fenced::Corrupt) if reloaded => listing.suspect(),
                Some(_) if !reloaded => listing = self.refresh_row(id).await?,
                Some(_) => {}
            }
        }
        Ok(returned)
    }

    /// Each unit to the bucket of its buyer. Answers the orders whose units are there now, and what one of the
    /// buckets that did not take theirs had against it. One whose server is away is left alone, and keeps the
    /// units of no other.
    async fn return_to_buckets(
        &self,
        listing: &Listing,
        orders: &[(UserId, OrderId)],
        away: &mut Away,
    ) -> Result<(HashSet<OrderId>, Option<Fenced>), ShopError> {
        let sale = listing.sale();
        let mut by_bucket: BTreeMap<Bucket, Vec<(UserId, OrderId)>> = BTreeMap::new();
        for order in orders {
            let bucket = sale.bucket_of(order.0);
            by_bucket.entry(bucket).or_default().push(*order);
        }
        by_bucket.retain(|bucket, _| !away.buckets.contains(bucket));
        let (mut there, mut refused) = (HashSet::new(), None);
        for (bucket, orders) in by_bucket {
            let mut connection = self.redis.pooled().await?;
            let outcome = scripts::release(
                &mut *connection,
                &self.redis.keys,
                bucket,
                sale.epoch,
                sale.buyer_shards,
                &orders,
            )
            .await;
            drop(connection);
            if let Err(error) = &outcome
                && is_wrong_type(error)
            {
                self.suspect(sale.id);
            }
            let released = match outcome {
                Ok(Ok(released)) => released,
                Ok(Err(fenced)) => {
                    refused = refused.or(Some(fenced));
                    continue;
                }
                Err(error) => {
                    away.buckets.insert(bucket);
                    away.error = Some(error.into());
                    continue;
                }
            };
            there.extend(orders.iter().map(|(_, order)| *order));
            let was_empty = released.remaining == released.returned;
            let seen = Seen {
                remaining: released.remaining,
                admitted: None,
                lent: None,
            };
            listing.tell_remaining(bucket.part, sale.epoch, released.change, seen);
            listing.pulsate(self.now());
            if released.returned > 0 && was_empty {
                // Elsewhere the sale may still be refused as sold out.
                self.redis.announce(sale.id).await;
            }
        }
        Ok((there, refused))
    }
}
