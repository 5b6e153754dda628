//! Steps 1 to 3 of a rebuild: the old epoch ends in Redis, is written out, and ends in Postgres.

use crate::{
    domain::{Sale, SaleId},
    postgres::unless_silent,
    redis::{
        Connection, Node,
        keys::BUYERS_PER_SHARD,
        scripts::{self, Ended, Sealed},
    },
    sale::{Shop, ShopError, board::RETIREMENT, catalogue::sale_columns},
};
use redis::ErrorKind;
use std::{
    collections::HashMap,
    sync::Arc,
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

/// What step 1 came to.
#[derive(Default)]
pub(super) struct Seals {
    /// The sales that are sealed everywhere.
    pub sealed: HashMap<SaleId, Sealing>,
    /// The servers on which something could not be sealed. The sales concerned are not rebuilt now, but no part of them
    /// that could be sealed sells either.
    pub unsealed: Vec<Arc<Node>>,
    /// Those of them that did not answer at all, and were not asked again.
    away: Vec<Arc<Node>>,
    /// The last sale concerned, and what was in the way.
    pub failed: Option<(SaleId, ShopError)>,
}

/// Step 1. One server that does not answer keeps only the sales that have something on it from being rebuilt.
pub(super) async fn seal(
    shop: &Shop,
    only: Option<&[SaleId]>,
    retired: bool,
) -> Result<Seals, ShopError> {
    let ids: Option<Vec<i64>> = only.map(|ids| ids.iter().map(|id| id.get()).collect());
    let sales = sqlx::query_as(
        "SELECT id, epoch, buyer_shards FROM sales
         WHERE ($2 OR closes_at > now() - make_interval(secs => $3)) AND ($1::bigint[] IS NULL OR id = ANY($1))
         ORDER BY id",
    )
    .bind(ids)
    .bind(retired)
    .bind(RETIREMENT.as_seconds_f64());
    let sales: Vec<(SaleId, i64, i32)> = unless_silent(sales.fetch_all(&shop.postgres)).await?;
    let mut seals = Seals::default();
    let mut connection = shop.redis.pooled().await?;
    for (id, epoch, shards) in sales {
        if let Some(sealing) =
            seal_sale(shop, &mut connection, id, epoch, shards, &mut seals).await?
        {
            seals.sealed.insert(id, sealing);
        }
    }
    Ok(seals)
}

/// `None`: it could not be sealed, which `seals` is told, or somebody else is rebuilding this sale, and
/// further on.
async fn seal_sale(
    shop: &Shop,
    connection: &mut Connection,
    id: SaleId,
    epoch: i64,
    shards: i32,
    seals: &mut Seals,
) -> Result<Option<Sealing>, ShopError> {
    let keys = &shop.redis.keys;
    let mut new_epoch = epoch + 1;
    loop {
        // As it is now: whoever takes over from a server that fails was not asked.
        let owner = shop.redis.owner(&keys.state(id));
        if (owner.as_ref()).is_some_and(|owner| is_among(&seals.away, owner)) {
            return Ok(None); // one wait for a server is enough
        }
        match scripts::seal(&mut **connection, keys, id, new_epoch, shards).await {
            Ok(Sealed::Ended(ended)) => return Ok(Some(Sealing { new_epoch, ended })),
            Err(error) => {
                seals.unsealed.extend(owner.clone());
                if !matches!(error.kind(), ErrorKind::Server(_)) {
                    seals.away.extend(owner); // it says nothing at all
                }
                seals.failed = Some((id, error.into()));
                return Ok(None);
            }
            Ok(Sealed::Newer { epoch: live }) => {
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

pub(super) fn is_among(nodes: &[Arc<Node>], node: &Arc<Node>) -> bool {
    nodes.iter().any(|other| Arc::ptr_eq(other, node))
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
