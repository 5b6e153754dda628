//! Forces ABA on `cas-stock`: an early buyer cancels after the first sale, so that the stock is
//! again the number that the second buyer has read.

use crate::bench::Bench;
use crate::selling::{Buyer, Result};
use std::sync::atomic::{AtomicBool, Ordering::AcqRel};
use std::time::Duration;
use tokio::{sync::Semaphore, time::timeout};

const EARLY_BIRD: &str = "early bird";

pub struct EarlyBird {
    sold_first: AtomicBool,
    has_cancelled: Semaphore,
}

impl EarlyBird {
    /// Buys, if the arena wants it: once, by the first node that opens.
    pub async fn of(bench: &Bench) -> Result<Option<Self>> {
        if bench.choice("aba") != "on" {
            return Ok(None);
        }
        let mut tx = bench.begin().await?;
        let take = "UPDATE lab.stock SET remaining = remaining - 1, version = 1
                     WHERE arena = $1 AND item = 'thing' AND version = 0";
        if tx.run(take, (bench.arena(),)).await? > 0 {
            bench.write_order(&mut tx, &Buyer { name: EARLY_BIRD.to_owned() }).await?;
        }
        tx.commit().await?;
        Ok(Some(Self { sold_first: AtomicBool::new(false), has_cancelled: Semaphore::new(0) }))
    }

    /// The first buyer goes on; the others wait until the early bird has cancelled.
    pub async fn lets_the_first_go(this: &Option<Self>) {
        if let Some(this) = this
            && this.sold_first.swap(true, AcqRel)
        {
            let _ = timeout(Duration::from_secs(5), this.has_cancelled.acquire()).await;
        }
    }

    pub async fn cancels(this: &Option<Self>, bench: &Bench) -> Result {
        let Some(this) = this else { return Ok(()) };
        let cancel = "
            WITH gone AS (DELETE FROM lab.orders WHERE arena = $1 AND buyer = $2 RETURNING id)
            UPDATE lab.stock SET remaining = remaining + (SELECT count(*) FROM gone)
             WHERE arena = $1 AND item = 'thing'";
        bench.sql().await?.run(cancel, (bench.arena(), EARLY_BIRD)).await?;
        this.has_cancelled.close();
        Ok(())
    }
}
