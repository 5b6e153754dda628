//! `process-mutex`: the purchase of `naive`, inside one mutex of the process.

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
        //= FLAW every server process has a mutex of its own
        let _one_at_a_time = self.mutex.lock().await;
        let sale = stand.in_transaction(async |tx| read_check_write(stand, tx, buyer).await);
        let outcome = sale.await;
        //= CURE committed before the mutex goes, at the end of this function
        stand.crash_point("committed").await;
        outcome
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "process-mutex",
    family: Family::InProcess,
    promise: Promise {
        one_node: Harms::NONE,
        across_nodes: Harms { oversells: Expected, undersells: Never, duplicates: Possible },
    },
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        demonstration("one-server", Harm::Holds, Scenario::SMALL),
        demonstration("two-servers", Harm::Oversells, Scenario::SMALL.nodes(2)),
        demonstration("double-click", Harm::Duplicates, Scenario::DOUBLE_CLICK.nodes(2)),
    ],
    ..Strategy::PLAIN
};
