//! Steps 1 to 3 of a rebuild: the old epoch ends in Redis, is written out, and ends in Postgres.

use crate::{
    domain::{Sale, SaleId},
    postgres::unless_silent,
    redis::{
        Connection,
        keys::BUYERS_PER_SHARD,
        scripts::{self, Ended, Sealed},
    },
    sale::{Shop, ShopError, board::RETIREMENT, catalogue::sale_columns},
};
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// How long the writers get to finish what they have in hand, at least (other instances' channels
/// cannot be seen from here; a batch takes some ten milliseconds) and at most (while this instance's
/// own writer has something to write).
const WRITERS_LEAST: Duration = Duration::from_millis(100);
const WRITERS_MOST: Duration = Duration::from_secs(2);

/// A sealed sale: the epoch to build, and what ended with the seal.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sealing {
    new_epoch: i64,
    pub ended: Ended,
}

/// Step 1.
pub(super) async fn seal(
    shop: &Shop,
    only: Option<&[SaleId]>,
    retired: bool,
) -> Result<HashMap<SaleId, Sealing>, ShopError> {
    let ids: Option<Vec<i64>> = only.map(|ids| ids.iter().map(|id| id.get()).collect());
    let sales = sqlx::query_as(
        "SELECT id, epoch, buyer_shards FROM sales
         WHERE archived_at IS NULL AND ($2 OR closes_at > now() - make_interval(secs => $3)) AND ($1::bigint[] IS NULL OR id = ANY($1))
         ORDER BY id",
    )
    .bind(ids)
    .bind(retired)
    .bind(RETIREMENT.as_seconds_f64());
    let sales: Vec<(SaleId, i64, i32)> = unless_silent(sales.fetch_all(&shop.postgres)).await?;
    let mut ended = HashMap::new();
    let mut connection = shop.redis.pooled().await?;
    for (id, epoch, shards) in sales {
        if let Some(sealed) = seal_sale(shop, &mut connection, id, epoch, shards).await? {
            ended.insert(id, sealed);
        }
    }
    Ok(ended)
}

/// `None`: somebody else is rebuilding this sale, and further on.
async fn seal_sale(
    shop: &Shop,
    connection: &mut Connection,
    id: SaleId,
    epoch: i64,
    shards: i32,
) -> Result<Option<Sealing>, ShopError> {
    let mut new_epoch = epoch + 1;
    loop {
        match scripts::seal(&mut **connection, &shop.redis.keys, id, new_epoch, shards).await? {
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
         UPDATE sales SET epoch = target_epoch, buyer_shards = GREATEST(1, stock / $3)
         FROM target WHERE id = target_id RETURNING ",
        sale_columns!()
    ))
    .bind(ids)
    .bind(epochs)
    .bind(i32::try_from(BUYERS_PER_SHARD).unwrap_or(i32::MAX));
    Ok(unless_silent(fenced.fetch_all(&shop.postgres)).await?)
}
