//! Steps 1 to 3 of a rebuild: the old epoch ends in Redis, is written out, and ends in Postgres.

use crate::{
    domain::{Bucket, Sale, SaleId},
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

/// A sealed sale: the epoch to build, and what ended with the seal, in every place where it may have had
/// something.
#[derive(Debug, Clone)]
pub(super) struct Sealing {
    new_epoch: i64,
    /// Into how many buckets the new epoch divides it, if anew.
    buckets: Option<i16>,
    pub ended: HashMap<Bucket, Ended>,
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
    buckets: Option<i16>,
) -> Result<Seals, ShopError> {
    let ids: Option<Vec<i64>> = only.map(|ids| ids.iter().map(|id| id.get()).collect());
    let sales = sqlx::query_as(
        "SELECT id, epoch, buyer_shards, buckets, former_buckets FROM sales
         WHERE ($2 OR closes_at > now() - make_interval(secs => $3)) AND ($1::bigint[] IS NULL OR id = ANY($1))
         ORDER BY id",
    )
    .bind(ids)
    .bind(retired)
    .bind(RETIREMENT.as_seconds_f64());
    let sales: Vec<(SaleId, i64, i32, i16, i16)> =
        unless_silent(sales.fetch_all(&shop.postgres)).await?;
    let mut seals = Seals::default();
    let mut connection = shop.redis.pooled().await?;
    for (id, epoch, shards, now, former) in sales {
        // The buckets to be are sealed too, so that they can be installed.
        let of = buckets.map_or(now, |wanted| wanted.max(now));
        let places = Bucket::places(id, of.max(1).unsigned_abs(), former.max(1).unsigned_abs());
        if let Some((new_epoch, ended)) =
            seal_sale(shop, &mut connection, &places, epoch, shards, &mut seals).await?
        {
            let sealing = Sealing {
                new_epoch,
                buckets,
                ended,
            };
            seals.sealed.insert(id, sealing);
        }
    }
    Ok(seals)
}

/// Seals every place of a sale for the same epoch. `None`: some could not be sealed, which `seals` is told, or
/// somebody else is rebuilding this sale, and further on.
async fn seal_sale(
    shop: &Shop,
    connection: &mut Connection,
    places: &[Bucket],
    epoch: i64,
    shards: i32,
    seals: &mut Seals,
) -> Result<Option<(i64, HashMap<Bucket, Ended>)>, ShopError> {
    let keys = &shop.redis.keys;
    let mut new_epoch = epoch + 1;
    let mut ended = HashMap::new();
    let mut complete = true;
    'epochs: loop {
        ended.clear();
        for place in places {
            // As it is now: whoever takes over from a server that fails was not asked.
            let owner = shop.redis.owner(&keys.state(*place));
            if (owner.as_ref()).is_some_and(|owner| is_among(&seals.away, owner)) {
                complete = false; // one wait for a server is enough
                continue;
            }
            match scripts::seal(&mut **connection, keys, *place, new_epoch, shards).await {
                Ok(Sealed::Ended(was)) => {
                    ended.insert(*place, was);
                }
                Err(error) => {
                    complete = false;
                    seals.unsealed.extend(owner.clone());
                    if !matches!(error.kind(), ErrorKind::Server(_)) {
                        seals.away.extend(owner); // it says nothing at all
                    }
                    seals.failed = Some((place.sale, error.into()));
                }
                Ok(Sealed::Newer { epoch: live }) => {
                    let epoch = sqlx::query_scalar("SELECT epoch FROM sales WHERE id = $1")
                        .bind(place.sale);
                    let now: i64 = unless_silent(epoch.fetch_one(&shop.postgres)).await?;
                    if now >= live {
                        return Ok(None);
                    }
                    // Postgres is behind Redis: it was restored, or promoted with a gap. What is sealed
                    // already remembers what was live.
                    new_epoch = live + 1;
                    continue 'epochs;
                }
            }
        }
        return Ok(complete.then_some((new_epoch, ended)));
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
    let (ids, terms): (Vec<i64>, Vec<(i64, Option<i16>)>) = sealed
        .iter()
        .map(|(id, sealing)| (id.get(), (sealing.new_epoch, sealing.buckets)))
        .unzip();
    let (epochs, buckets): (Vec<i64>, Vec<Option<i16>>) = terms.into_iter().unzip();
    // Locked by id, as everywhere, so that writers and this cannot wait for each other.
    let fenced = sqlx::query_as(concat!(
        "WITH target AS (
             SELECT s.id AS target_id, d.epoch AS target_epoch,
                    GREATEST(s.buckets, d.buckets) AS target_buckets
             FROM UNNEST($1::bigint[], $2::bigint[], $4::smallint[]) AS d (id, epoch, buckets)
             JOIN sales s ON s.id = d.id AND s.epoch < d.epoch
             ORDER BY s.id FOR NO KEY UPDATE OF s
         )
         UPDATE sales SET epoch = target_epoch, buyer_shards = GREATEST(1, stock / ($3 * target_buckets)),
             buckets = target_buckets
         FROM target WHERE id = target_id RETURNING ",
        sale_columns!()
    ))
    .bind(ids)
    .bind(epochs)
    .bind(i32::try_from(BUYERS_PER_SHARD).unwrap_or(i32::MAX))
    .bind(buckets);
    Ok(unless_silent(fenced.fetch_all(&shop.postgres)).await?)
}

/// Step 6 is done for every bucket: what the sale was divided into before is empty, and need not be looked at
/// again. If it was undivided, the seal there goes, since nobody installs there any more, and the log, which is
/// empty: without a state nobody appends to it.
pub(super) async fn forget_former(shop: &Shop, sale: &Sale) -> Result<(), ShopError> {
    if sale.former_buckets == sale.buckets {
        return Ok(());
    }
    let forgotten = sqlx::query(
        "UPDATE sales SET former_buckets = buckets WHERE id = $1 AND epoch = $2 AND buckets = $3",
    )
    .bind(sale.id)
    .bind(sale.epoch)
    .bind(sale.buckets);
    unless_silent(forgotten.execute(&shop.postgres)).await?;
    if sale.former_buckets == 1 {
        let (state, log) = (shop.redis.keys.state(sale.id), shop.redis.keys.log(sale.id));
        let mut connection = shop.redis.pooled().await?;
        let waiting: i64 = redis::cmd("XLEN")
            .arg(&log)
            .query_async(&mut *connection)
            .await?;
        let mut unlink = redis::cmd("UNLINK");
        unlink.arg(state);
        if waiting == 0 {
            unlink.arg(log);
        }
        unlink.exec_async(&mut *connection).await?;
    }
    Ok(())
}
