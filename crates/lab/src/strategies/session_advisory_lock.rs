//! `session-advisory-lock`: a lock that Postgres keeps for a session, behind a connection pool.

use crate::{prelude::*, servers::OwnPool};
use std::time::Duration;
use tokio::sync::OnceCell;

/// Longer than the first holder waits to be met: on one node nobody is turned away.
const PATIENCE: Duration = Duration::from_millis(2_500);

struct Node {
    stand: Stand,
    /// Two connections of this node alone, as a server of its own would have.
    own: OwnPool,
    warm: OnceCell<()>,
}

pub fn open(stand: Stand) -> Opening {
    opening(async { Ok(Node { own: stand.own_pool(2)?, stand, warm: OnceCell::new() }) })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        self.warm_up().await?;
        const LOCK: &str = "SELECT pg_try_advisory_lock(hashtextextended($1, 0))";
        let name = stand.key("stock");
        //= FLAW the session that has the lock goes back to the pool, for anybody to borrow
        let locked = || async { self.borrowed().await?.one::<bool>(LOCK, (&name,)).await };
        if !stand.within(PATIENCE, locked).await? {
            return Ok(Outcome::Contended);
        }
        let sale = stand.in_transaction(async |tx| read_check_write(stand, tx, buyer).await);
        let outcome = sale.await;
        const UNLOCK: &str = "SELECT pg_advisory_unlock(hashtextextended($1, 0))";
        //= FLAW another session of the pool, which never had the lock
        if !self.borrowed().await?.one::<bool>(UNLOCK, (&name,)).await? {
            stand.note(LEAKED);
        }
        outcome
    }

    async fn close(&self) {
        self.own.pool.close().await; // and with the sessions whatever they still hold
    }
}

impl Node {
    async fn borrowed(&self) -> Result<Sql, Trouble> {
        self.stand.sql_of(&self.own.pool).await
    }

    /// Both connections are there, as in any server that has run for a while. By one buyer: two,
    /// each with one in hand, would wait for each other.
    async fn warm_up(&self) -> Result<(), Trouble> {
        let both = async || tokio::try_join!(self.borrowed(), self.borrowed()).map(drop);
        self.warm.get_or_try_init(both).await.map(|_| ())
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "session-advisory-lock",
    family: Family::Database,
    promise: Promise {
        one_node: Harms { undersells: Never, ..Harms::POSSIBLE },
        across_nodes: Harms::POSSIBLE,
    },
    crash_points: &["the stock is written"],
    demonstrations: &[
        demonstration("one-by-one", Harm::Notes(LEAKED), Scenario::SMALL.concurrency(1)),
        demonstration("same-session", Harm::Oversells, Scenario::SMALL),
        demonstration("double-click", Harm::Duplicates, Scenario::DOUBLE_CLICK),
        demonstration(
            "two-servers",
            Harm::Undersells,
            Scenario::SMALL.stock(6).buyers(6).concurrency(1).nodes(2),
        ),
    ],
    ..Strategy::PLAIN
};

const LEAKED: &str = "the unlock reached another session";
