//! `mutex-unlock-before-commit`: the mutex inside the transaction.

use crate::prelude::*;
use tokio::sync::Mutex;

pub struct Node {
    mutex: Mutex<()>,
}

pub async fn open(_: &Stand) -> Result<Node, Trouble> {
    Ok(Node { mutex: Mutex::new(()) })
}

impl Sell for Node {
    async fn buy(&self, stand: &Stand, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let sale = stand.in_transaction(async |tx| {
            let one_at_a_time = self.mutex.lock().await;
            let outcome = read_check_write(stand, tx, buyer).await;
            //= FLAW unlocked before the commit: the next buyer still reads the old stock
            drop(one_at_a_time);
            stand.crash_point("unlocked").await;
            if matches!(outcome, Ok(Outcome::Sold { .. })) {
                stand.meet("unlocked, not committed").await; // until somebody has read
            }
            outcome
        });
        sale.await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "mutex-unlock-before-commit",
    family: Family::InProcess,
    promise: Promise::everywhere(Harms {
        oversells: Expected,
        undersells: Never,
        duplicates: Possible,
    }),
    crash_points: &["the stock is written", "unlocked"],
    demonstrations: &[
        show("one-server", Oversells, SMALL),
        show("double-click", Duplicates, DOUBLE_CLICK),
    ],
    ..Strategy::PLAIN
};
