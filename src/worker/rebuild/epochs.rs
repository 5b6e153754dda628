//! Steps 1 to 3 of a rebuild: the old epoch ends in Redis, is written out, and ends in Postgres.

use crate::{
    domain::{Sale, SaleId},
    postgres::unless_silent,
    redis::functions::{self, Ended, Sealed},
    sale::{Shop, ShopError, board::RETIREMENT, catalogue::sale_columns},
};
use futures_util::{StreamExt, stream};
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// How long the writers get to finish what they have in hand, at least (other instances' channels
/// cannot be seen from here; a batch takes some ten milliseconds) and at most (while this instance's
/// own writer has something to write).
const WRITERS_LEAST: Duration = Duration::from_millis(100);
const WRITERS_MOST: Duration = Duration::from_secs(2);

/// Sales that are sealed at the same time: one server of a cluster may not answer.
const CONCURRENCY: usize = 32;

/// A sealed sale: the epoch to build, and what ended with the seal.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sealing {
    new_epoch: i64,
    pub ended: Ended,
}

/// What step 1 came to.
#[derive(Default)]
pub(super) struct Seals {
    pub sealed: HashMap<SaleId, Sealing>,
    /// The last sale that could not be sealed, and what was in the way.
    pub failed: Option<(SaleId, ShopError)>,
}

/// Step 1. A server that does not answer keeps only its own sales from being rebuilt.
pub(super) async fn seal(
    shop: &Shop,
    only: Option<&[SaleId]>,
    retired: bool,
) -> Result<Seals, ShopError> {
    let ids: Option<Vec<i64>> = only.map(|ids| ids.iter().map(|id| id.get()).collect());
    let sales = sqlx::query_as(
        "SELECT id, epoch FROM sales
         WHERE ($2 OR closes_at > now() - make_interval(secs => $3))
           AND ($1::bigint[] IS NULL OR id = ANY($1))
         ORDER BY id",
    )
    .bind(ids)
    .bind(retired)
    .bind(RETIREMENT.as_seconds_f64());
    let sales: Vec<(SaleId, i64)> = unless_silent(sales.fetch_all(&shop.postgres)).await?;
    let mut sealing = stream::iter(sales)
        .map(async |(id, epoch)| (id, seal_sale(shop, id, epoch).await))
        .buffer_unordered(CONCURRENCY);
    let mut seals = Seals::default();
    while let Some((id, outcome)) = sealing.next().await {
        match outcome {
            Ok(Some(sealing)) => drop(seals.sealed.insert(id, sealing)),
            Ok(None) => {} // another instance is further with it
            Err(error) => seals.failed = Some((id, error)),
        }
    }
    Ok(seals)
}

async fn seal_sale(shop: &Shop, id: SaleId, epoch: i64) -> Result<Option<Sealing>, ShopError> {
    let mut new_epoch = epoch + 1;
    loop {
        let mut connection = shop.redis.pooled().await?;
        match functions::seal(&mut connection, &shop.redis.keys, id, new_epoch).await? {
            Sealed::Ended(ended) => return Ok(Some(Sealing { new_epoch, ended })),
            Sealed::Newer { epoch: live } => {
                let epoch = sqlx::query_scalar("SELECT epoch FROM sales WHERE id = $1").bind(id);
                let now: i64 = unless_silent(epoch.fetch_one(&shop.postgres)).await?;
                if now >= live {
                    return Ok(None);
                }
                // Postgres is behind Redis: it was restored, or promoted with a gap.
                new_epoch = live + 1;
            }
        }
    }
}

/// Step 2. See the module's text.
pub(super) async fn let_writers_finish(shop: &Shop) {
    let began = Instant::now();
    loop {
        tokio::time::sleep(WRITERS_LEAST).await;
        if shop.everything_is_written() || began.elapsed() >= WRITERS_MOST {
            return;
        }
    }
}

/// Step 3. Answers the sales that are fenced; those that somebody else has taken further are left out.
pub(super) async fn fence(
    shop: &Shop,
    sealed: &HashMap<SaleId, Sealing>,
) -> Result<Vec<Sale>, ShopError> {
    let (ids, epochs): (Vec<i64>, Vec<i64>) = sealed
        .iter()
        .map(|(id, sealing)| (id.get(), sealing.new_epoch))
        .unzip();
    // Locked by id, as everywhere, so that writers and this cannot wait for each other.
    let fenced = sqlx::query_as(concat!(
        "WITH target AS (
             SELECT s.id AS target_id, d.epoch AS target_epoch
             FROM UNNEST($1::bigint[], $2::bigint[]) AS d (id, epoch)
             JOIN sales s ON s.id = d.id AND s.epoch < d.epoch
             ORDER BY s.id FOR NO KEY UPDATE OF s
         )
         UPDATE sales SET epoch = target_epoch FROM target WHERE id = target_id RETURNING ",
        sale_columns!()
    ))
    .bind(ids)
    .bind(epochs);
    Ok(unless_silent(fenced.fetch_all(&shop.postgres)).await?)
}
