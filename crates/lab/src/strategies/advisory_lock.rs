//! `advisory-lock`: a lock that Postgres keeps for a transaction.

use crate::prelude::*;

struct Node {
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    ready(Node { stand })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let sale = stand.in_transaction(async |tx| {
            const LOCK: &str = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))";
            //= CURE belongs to the transaction: the commit ends both in one step
            tx.run(LOCK, (stand.key("stock"),)).await?;
            read_check_write(stand, tx, buyer).await
        });
        sale.await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "advisory-lock",
    family: Family::Database,
    crash_points: &["the stock is written"],
    demonstrations: &[demonstration(
        "crash",
        Harm::Holds,
        Scenario::SMALL
            .nodes(3)
            .options(&[("crash_at", "the stock is written"), ("crash_node", "1")]),
    )],
    ..Strategy::PLAIN
};
