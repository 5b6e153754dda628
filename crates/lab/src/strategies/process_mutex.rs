//! `process-mutex`: the purchase of `naive`, inside one mutex of the process.

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
        //= FLAW every server process has a mutex of its own
        //= CURE one buyer at a time on this server: unlocked at the end, after the commit
        let _one_at_a_time = self.mutex.lock().await;
        let outcome = naive_sale(bench, buyer).await;
        bench.crash_point("committed").await;
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
        show("one-server", Holds, SMALL).at(2),
        show("two-servers", Oversells, SMALL.nodes(2)).at(1),
        show("double-click", Duplicates, DOUBLE_CLICK.nodes(2)).at(1),
    ],
    ..Strategy::PLAIN
};
