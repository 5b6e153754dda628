//! `session-advisory-lock`: a lock that Postgres keeps for a session, behind a connection pool.

use crate::{prelude::*, servers::OwnPool};
use std::time::Duration;
use tokio::sync::OnceCell;

/// Longer than the first holder waits to be met: on one node nobody is turned away.
const LOCK_TIMEOUT: Duration = Duration::from_millis(2_500);

pub struct Node {
    /// Two connections of this node alone, as a server of its own would have.
    own: OwnPool,
    warm: OnceCell<()>,
}

pub async fn open(bench: &Bench) -> Result<Node> {
    Ok(Node { own: bench.shared.servers.own_pool(2)?, warm: OnceCell::new() })
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        let borrowed = || bench.sql_of(&self.own.pool);
        // Both connections are there, as in any server that has run for a while. By one buyer: two,
        // each with one in hand, would wait for each other.
        let both = async || tokio::try_join!(borrowed(), borrowed()).map(drop);
        self.warm.get_or_try_init(both).await?;

        const LOCK: &str = "SELECT pg_try_advisory_lock(hashtextextended($1, 0))";
        let name = bench.key("stock");
        //= FLAW the session that has the lock goes back to the pool, for anybody to borrow
        let locked = || async { borrowed().await?.one::<bool>(LOCK, (&name,)).await };
        if !bench.within(LOCK_TIMEOUT, locked).await? {
            return Ok(Outcome::Contended);
        }
        let outcome = naive_sale(bench, buyer).await;
        const UNLOCK: &str = "SELECT pg_advisory_unlock(hashtextextended($1, 0))";
        //= FLAW another session of the pool, which never had the lock
        if !borrowed().await?.one::<bool>(UNLOCK, (&name,)).await? {
            bench.note(LEAKED);
        }
        outcome
    }

    async fn close(&self, _: &Bench) {
        self.own.pool.close().await; // and with the sessions whatever they still hold
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "session-advisory-lock",
    promise: Promise {
        one_node: Harms { undersells: Never, ..Harms::POSSIBLE },
        across_nodes: Harms::POSSIBLE,
    },
    demonstrations: &[
        show("one-by-one", Notes(LEAKED), ONE_BY_ONE).at(2),
        show("same-session", Oversells, SMALL).at(1),
        show("double-click", Duplicates, DOUBLE_CLICK).at(1),
        show("two-servers", Undersells, SMALL.stock(6).buyers(6).concurrency(1).nodes(2)).at(2),
    ],
    ..DATABASE_STRATEGY
};

const LEAKED: &str = "the unlock reached another session";
