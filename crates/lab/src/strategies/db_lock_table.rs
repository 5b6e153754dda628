//! `db-lock-table`: a lock as a row, with owner, expiry and version.

use crate::prelude::*;
use locks::TableLock;

pub type Node = TableLock;

pub async fn open(bench: &Bench) -> Result<Node> {
    Ok(TableLock::new(bench.wire_to_postgres(), bench.millis("lease_ms")))
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        bench.retrying(100, || attempt(self, bench, buyer)).await
    }
}

async fn attempt(lock: &TableLock, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
    let sale = bench.under_lock(lock, async |guard| {
        let version = guard.fencing().and_then(|version| i64::try_from(version).ok());
        let sale = bench.in_transaction(async |tx| {
            let outcome = read_check_write(bench, tx, buyer).await?;
            const STILL_OURS: &str = "
                SELECT 1 FROM lab.locks
                 WHERE name = $1 AND version = $2 AND expires_at > clock_timestamp() FOR SHARE";
            //= CURE looks again before the commit; FOR SHARE keeps it so until then
            if tx.maybe::<i32>(STILL_OURS, (bench.key("lock"), version)).await?.is_none() {
                bench.note(LOST);
                return Ok(Outcome::Contended); // rolled back, and again
            }
            Ok(outcome)
        });
        sale.await
    });
    sale.await
}

pub const STRATEGY: Strategy = Strategy {
    id: "db-lock-table",
    options: &[whole("lease_ms", (2_000, 20, 30_000))],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        show("overslept", Notes(LOST), SMALL.options(OVERSLEPT)).at(1),
        show("three-servers", Holds, SMALL.nodes(3).options(OVERSLEPT)).at(1),
    ],
    locks: &["db-lock-table"],
    ..DATABASE_STRATEGY
};

const LOST: &str = "the lease was over before the commit";
const OVERSLEPT: &[(&str, &str)] = &[("lease_ms", "1000"), ("pause_ms", "2000")];
