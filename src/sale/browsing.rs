//! What pages show may be a little old, and so may come from a read replica: the rows of the catalogue,
//! which every instance polls for its [`board`](super::board). The board takes in only newer rows, so what
//! a replica that lags says late changes nothing.
//!
//! Everything else is read from the primary: an order's status (what was once confirmed never reverts,
//! I9), ownership, the audit, what a rebuild starts from, one sale after its change was published.

use super::{Shop, ShopError, catalogue::sale_columns};
use crate::{
    domain::Sale,
    postgres::{Replica, Transaction},
};
use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Where the catalogue is read, and how often it was read where.
#[derive(Debug, Default)]
pub struct Browsing {
    replica: OnceLock<Replica>,
    pub from_replica: AtomicU64,
    pub from_primary: AtomicU64,
}

impl Shop {
    /// Reads the catalogue from this replica from now on, while it is young enough. The first one counts.
    pub fn browse_on(&self, replica: Replica) {
        if self.browsing.replica.set(replica).is_err() {
            tracing::error!("the shop has a replica already");
        }
    }

    /// Loads every sale's row onto the board, from the replica if there is one that is young enough.
    pub async fn poll_catalogue(&self) -> Result<(), ShopError> {
        if let Some(replica) = self.browsing.replica.get() {
            let gauges = &self.metrics.replica;
            match replica.read(&self.postgres, all_sales).await {
                Ok((sales, age)) => {
                    gauges.age_seconds.set(age.as_secs_f64());
                    gauges.usable.set(1.0);
                    gauges.reads.increment(1);
                    self.browsing.from_replica.fetch_add(1, Relaxed);
                    for sale in sales {
                        self.board.learn(sale);
                    }
                    return Ok(());
                }
                Err(reason) => {
                    tracing::debug!(%reason, "the catalogue is read from the primary");
                    gauges.usable.set(0.0);
                    gauges.fallbacks.increment(1);
                }
            }
        }
        self.refresh_catalogue().await?;
        self.browsing.from_primary.fetch_add(1, Relaxed);
        Ok(())
    }
}

async fn all_sales(transaction: &mut Transaction) -> Result<Vec<Sale>, sqlx::Error> {
    sqlx::query_as(concat!("SELECT ", sale_columns!(), " FROM sales"))
        .fetch_all(&mut **transaction)
        .await
}
