//! Steps 1 to 3 of a rebuild: fence Redis, let the writers finish, fence Postgres.

use super::service::Rebuild;
use crate::catalog::cached_sale::EVICT_AFTER;
use crate::catalog::changes::sale_query;
use crate::domain::{Sale, SaleId};
use crate::error::{ServiceError, ServiceResult};
use crate::postgres::unless_silent;
use crate::redis::functions::{self, Ended, Fencing};
use futures_util::{StreamExt, stream};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long writers get to finish: at least (the channels of other instances are not known here; a
/// batch takes some ten milliseconds), and at most (while this instance's writer is busy).
const WRITERS_LEAST: Duration = Duration::from_millis(100);
const WRITERS_MOST: Duration = Duration::from_secs(2);

/// Sales that are fenced concurrently: a server of a cluster may be silent.
const CONCURRENCY: usize = 32;

/// A sale that is fenced in Redis: the epoch to build, and the one that ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct FencedEpoch {
    new_epoch: i64,
    pub ended: Ended,
}

/// The result of step 1.
#[derive(Default)]
pub(super) struct Fences {
    pub fenced: HashMap<SaleId, FencedEpoch>,
    /// The last sale that could not be fenced, and why.
    pub failed: Option<(SaleId, ServiceError)>,
}

impl Rebuild {
    /// Step 1. A silent server keeps only its own sales from being rebuilt.
    pub(super) async fn fence_redis(
        &self,
        only: Option<&[SaleId]>,
        evictable: bool,
    ) -> ServiceResult<Fences> {
        let ids: Option<Vec<i64>> = only.map(|ids| ids.iter().map(|id| id.get()).collect());
        let sales = sqlx::query_as(
            "SELECT id, epoch FROM sales
         WHERE ($2 OR closes_at > now() - make_interval(secs => $3))
           AND ($1::bigint[] IS NULL OR id = ANY($1))
         ORDER BY id",
        );
        let sales = sales.bind(ids).bind(evictable);
        let sales = sales.bind(EVICT_AFTER.as_seconds_f64());
        let sales: Vec<(SaleId, i64)> = unless_silent(sales.fetch_all(&self.postgres)).await?;
        let mut fencing = stream::iter(sales)
            .map(async |(id, epoch)| (id, self.fence_sale(id, epoch).await))
            .buffer_unordered(CONCURRENCY);
        let mut fences = Fences::default();
        while let Some((id, outcome)) = fencing.next().await {
            match outcome {
                Ok(Some(epoch)) => drop(fences.fenced.insert(id, epoch)),
                Ok(None) => {} // another instance is further with it
                Err(error) => fences.failed = Some((id, error)),
            }
        }
        Ok(fences)
    }

    async fn fence_sale(&self, id: SaleId, epoch: i64) -> ServiceResult<Option<FencedEpoch>> {
        let mut new_epoch = epoch + 1;
        loop {
            let mut connection = self.redis.pooled().await?;
            match functions::fence(&mut connection, &self.redis.keys, id, new_epoch).await? {
                Fencing::Ended(ended) => return Ok(Some(FencedEpoch { new_epoch, ended })),
                Fencing::Newer { epoch: live } => {
                    let epoch =
                        sqlx::query_scalar("SELECT epoch FROM sales WHERE id = $1").bind(id);
                    let now: i64 = unless_silent(epoch.fetch_one(&self.postgres)).await?;
                    if now >= live {
                        return Ok(None);
                    }
                    // Postgres is behind Redis: restored, or promoted with a gap.
                    new_epoch = live + 1;
                }
            }
        }
    }

    /// Step 2.
    pub(super) async fn let_writers_finish(&self) {
        let began = Instant::now();
        loop {
            tokio::time::sleep(WRITERS_LEAST).await;
            if self.orders.everything_is_written() || began.elapsed() >= WRITERS_MOST {
                return;
            }
        }
    }

    /// Step 3. Answers the fenced sales, without those that another instance has taken further.
    pub(super) async fn fence_postgres(
        &self,
        fenced: &HashMap<SaleId, FencedEpoch>,
    ) -> ServiceResult<Vec<Sale>> {
        let (ids, epochs): (Vec<i64>, Vec<i64>) =
            fenced.iter().map(|(id, epoch)| (id.get(), epoch.new_epoch)).unzip();
        // Locked by id, as everywhere, which rules out deadlocks with writers.
        let raised = sale_query!(
            "WITH target AS (
                 SELECT s.id AS target_id, d.epoch AS target_epoch
                 FROM UNNEST($1::bigint[], $2::bigint[]) AS d (id, epoch)
                 JOIN sales s ON s.id = d.id AND s.epoch < d.epoch
                 ORDER BY s.id FOR NO KEY UPDATE OF s
             )
             UPDATE sales SET epoch = target_epoch FROM target WHERE id = target_id RETURNING "
        );
        let raised = raised.bind(ids).bind(epochs);
        Ok(unless_silent(raised.fetch_all(&self.postgres)).await?)
    }
}
