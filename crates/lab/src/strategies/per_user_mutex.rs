//! `per-user-mutex`: one mutex for each buyer.

use crate::prelude::*;
use dashmap::DashMap;
use std::sync::Arc;
use tokio::sync::Mutex;

pub struct Node {
    mutexes: DashMap<String, Arc<Mutex<()>>>,
}

pub async fn open(_: &Bench) -> Result<Node> {
    Ok(Node { mutexes: DashMap::new() })
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        let mutex = self.mutexes.entry(buyer.name.clone()).or_default().clone();
        //= FLAW every server process has mutexes of its own: the second click may reach another
        let one_click_at_a_time = mutex.lock().await;
        let sale = bench.in_transaction(async |tx| sell(bench, tx, buyer).await);
        let outcome = sale.await;
        bench.crash_point("committed").await;
        drop(one_click_at_a_time); // after the commit
        drop(mutex);
        self.mutexes.remove_if(&buyer.name, |_, mutex| Arc::strong_count(mutex) == 1);
        outcome
    }
}

async fn sell(bench: &Bench, tx: &mut Sql, buyer: &Buyer) -> Result<Outcome> {
    //= CURE the second click had to wait, and finds the order of the first
    if bench.has_bought(tx, buyer).await? {
        return Ok(Outcome::Duplicate);
    }

    // The same buyer comes here only by another node.
    bench.interleave("there is no order yet").await;

    const TAKE: &str = "UPDATE lab.stock SET remaining = remaining - 1
                         WHERE arena = $1 AND item = 'thing' AND remaining > 0";
    //= CURE a thousand buyers hold a thousand mutexes: the stock has a condition of its own
    if tx.run(TAKE, (bench.arena(),)).await? == 0 {
        return Ok(Outcome::SoldOut);
    }
    bench.crash_point("the stock is written").await;
    bench.write_order(tx, buyer).await
}

pub const STRATEGY: Strategy = Strategy {
    id: "per-user-mutex",
    family: Family::InProcess,
    promise: Promise {
        one_node: Harms::NONE,
        across_nodes: Harms { duplicates: Possible, ..Harms::NONE },
    },
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        show("one-server", Holds, DOUBLE_CLICK).at(2),
        show("two-servers", Duplicates, DOUBLE_CLICK.nodes(2)).at(1),
    ],
    ..Strategy::PLAIN
};
