//! `mutex-unlock-before-commit`: the mutex inside the transaction.

use crate::prelude::*;
use tokio::sync::Mutex;

pub struct Node {
    mutex: Mutex<()>,
}

pub async fn open(_: &Bench) -> Result<Node> {
    Ok(Node { mutex: Mutex::new(()) })
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        let sale = bench.in_transaction(async |tx| {
            //= FLAW locked inside the transaction: it is unlocked before that commits
            let one_at_a_time = self.mutex.lock().await;
            let outcome = read_check_write(bench, tx, buyer).await;
            //= FLAW unlocked before the commit: the next buyer still reads the old stock
            drop(one_at_a_time);
            bench.crash_point("unlocked").await;
            if matches!(outcome, Ok(Outcome::Sold { .. })) {
                bench.interleaving_point("unlocked, not committed").await; // somebody reads
            }
            outcome
        });
        sale.await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "mutex-unlock-before-commit",
    family: Family::InProcess,
    promise: Promise::everywhere(EXPECTED),
    crash_points: &["the stock is written", "unlocked"],
    demonstrations: &[
        show("one-server", Oversells, SMALL).at(2),
        show("double-click", Duplicates, DOUBLE_CLICK).at(2),
    ],
    ..Strategy::PLAIN
};

const EXPECTED: Harms = Harms { oversells: Expected, undersells: Never, duplicates: Possible };
