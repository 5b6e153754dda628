//! `skip-locked`: a row for each unit; buyers pass by the rows that others have locked.

use crate::prelude::*;
use std::time::Duration;
use tokio::time::sleep;

pub struct Node;

pub async fn open(bench: &Bench) -> Result<Node> {
    const FILL: &str = "INSERT INTO lab.units (arena, number)
                        SELECT $1, generate_series(1, $2) ON CONFLICT DO NOTHING";
    bench.sql().await?.run(FILL, (bench.arena(), bench.stock())).await?;
    Ok(Node)
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        let sale = bench.in_transaction(async |tx| {
            let Outcome::Sold { order_id } = bench.write_unique_order(tx, buyer).await? else {
                return Ok(Outcome::Duplicate);
            };
            let Some(unit) = lock_a_unit(bench, tx).await? else {
                return Ok(Outcome::SoldOut); // rolled back, and the order with it
            };
            bench.interleave("a unit is locked").await; // others lock other units
            bench.crash_point("a unit is locked").await;

            const SELL: &str =
                "UPDATE lab.units SET order_id = $3 WHERE arena = $1 AND number = $2";
            tx.run(SELL, (bench.arena(), unit, &order_id)).await?;
            Ok(Outcome::Sold { order_id })
        });
        sale.await
    }
}

async fn lock_a_unit(bench: &Bench, tx: &mut Sql) -> Result<Option<i32>> {
    loop {
        const LOCK: &str = "SELECT number FROM lab.units WHERE arena = $1 AND order_id IS NULL
                            ORDER BY number LIMIT 1 FOR UPDATE SKIP LOCKED";
        //= CURE locks a free row of its own: nobody waits for another buyer, nobody gets it twice
        if let Some(unit) = tx.maybe(LOCK, (bench.arena(),)).await? {
            return Ok(Some(unit));
        }
        if bench.choice("sold_out") == "none-unlocked" {
            bench.note("told sold out, and nobody looked for locked units");
            //= FLAW a locked unit is not sold yet: its buyer may still die or turn back
            return Ok(None);
        }
        const FREE: &str =
            "SELECT EXISTS (SELECT FROM lab.units WHERE arena = $1 AND order_id IS NULL)";
        //= CURE sold out is when no unit is free, locked or not
        if !tx.one::<bool>(FREE, (bench.arena(),)).await? {
            return Ok(None);
        }
        sleep(Duration::from_millis(5)).await;
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "skip-locked",
    promise: Promise::everywhere(Harms::UNSOLD),
    options: &[choice("sold_out", &["none-free", "none-unlocked"])],
    crash_points: &["a unit is locked"],
    demonstrations: &[
        show("turned-away-too-early", Undersells, CRASH.options(TOO_EARLY)).at(2),
        show("three-servers", Holds, SMALL.nodes(3)).at(1),
    ],
    ..DATABASE_STRATEGY
};

const CRASH: Scenario = SMALL.stock(1).buyers(2);
const TOO_EARLY: &[(&str, &str)] =
    &[("sold_out", "none-unlocked"), ("crash_at", "a unit is locked")];
