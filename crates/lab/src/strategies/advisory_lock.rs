//! `advisory-lock`: a lock that Postgres keeps for a transaction.

use crate::prelude::*;

pub struct Node;

pub async fn open(_: &Bench) -> Result<Node> {
    Ok(Node)
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        //= CURE a holder that dies loses its connection: sale and lock are undone together
        let sale = bench.in_transaction(async |tx| {
            const LOCK: &str = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))";
            //= CURE belongs to the transaction: the commit ends both in one step
            tx.run(LOCK, (bench.key("stock"),)).await?;
            read_check_write(bench, tx, buyer).await
        });
        sale.await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "advisory-lock",
    demonstrations: &[show("crash", Holds, SMALL.nodes(3).options(CRASH)).at(1)],
    ..DATABASE_STRATEGY
};

const CRASH: &[(&str, &str)] = &[("crash_at", "the stock is written"), ("crash_node", "1")];
