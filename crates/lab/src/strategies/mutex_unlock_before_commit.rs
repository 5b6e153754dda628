//! `mutex-unlock-before-commit`: the mutex inside the transaction.

use crate::prelude::*;
use tokio::sync::Mutex;

struct Node {
    stand: Stand,
    mutex: Mutex<()>,
}

pub fn open(stand: Stand) -> Opening {
    ready(Node { stand, mutex: Mutex::new(()) })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
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
        demonstration("one-server", Harm::Oversells, Scenario::SMALL),
        demonstration("double-click", Harm::Duplicates, Scenario::DOUBLE_CLICK),
    ],
    ..Strategy::PLAIN
};
