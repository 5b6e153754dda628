//! `multi-lock`: all of several independent Redis servers.

use crate::prelude::*;
use locks::{Lock, MultiLock, wire::Line};

/// How many independent Redis servers the lock is spread over.
const SERVERS: usize = 3;

struct Node {
    lock: MultiLock,
    servers: Vec<Line>,
    name: String,
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    opening(async move {
        let mut servers = stand.lines(SERVERS).await?;
        let down = usize::try_from(stand.whole("redis_nodes_down")).unwrap_or(0);
        for server in servers.iter_mut().rev().take(down) {
            *server = Line::new("redis+unix:///dev/null/nobody")?.to("a dead server");
        }
        Ok(Node {
            lock: MultiLock::new(servers.clone(), stand.millis("lease_ms")),
            servers,
            name: stand.key("lock"),
            stand,
        })
    })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let wait = stand.millis("wait_ms");
        let acquired = self.lock.acquire(&self.name, wait).await?;
        let Some(guard) = acquired.held() else {
            return Ok(Outcome::Contended);
        };
        let mut transaction = stand.begin().await?;
        let outcome = self.sell(&mut transaction, buyer).await;
        let outcome = transaction.end(outcome).await;
        stand.crash_point("committed").await; // the lock is not given back: its lease has to end it
        stand.release(guard).await;
        outcome
    }
}

impl Node {
    async fn sell(&self, transaction: &mut Sql, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        if stand.has_bought(transaction, buyer).await? {
            return Ok(Outcome::Duplicate);
        }
        let remaining: i32 = sqlx::query_scalar(
            "SELECT remaining FROM lab.stock WHERE arena = $1 AND item = 'thing'",
        )
        .bind(stand.arena())
        .fetch_one(transaction.send())
        .await?;
        if remaining < 1 {
            return Ok(Outcome::SoldOut);
        }

        stand.meet("the stock is read").await; // only if the lock lets two in
        stand.redis_node_loss(&self.servers, &self.name).await;
        stand.pause().await;
        stand.work().await;

        sqlx::query("UPDATE lab.stock SET remaining = $2 WHERE arena = $1 AND item = 'thing'")
            .bind(stand.arena())
            .bind(remaining - 1)
            .execute(transaction.send())
            .await?;
        stand.crash_point("the stock is written").await;
        stand.write_order(transaction, buyer).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "multi-lock",
    family: Family::DistributedLock,
    promise: Promise::everywhere(HARMS),
    needs: &[Need::RedisNodes(3)],
    options: &[lease_ms(2_000), wait_ms(5_000), redis_node_loss(3), NODES_DOWN],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        Demonstration {
            id: "holds",
            shows: Harm::Holds,
            scenario: Scenario {
                stock: 1,
                buyers: 2,
                concurrency: 2,
                options: &[("redis_node_loss", "2"), ("pause_ms", "500")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            id: "oversells",
            shows: Harm::Oversells,
            scenario: Scenario {
                stock: 1,
                buyers: 2,
                concurrency: 2,
                options: &[("redis_node_loss", "3"), ("pause_ms", "500")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            id: "fails",
            shows: Harm::Fails,
            scenario: Scenario {
                stock: 1,
                buyers: 2,
                concurrency: 2,
                options: &[("redis_nodes_down", "1"), ("wait_ms", "50")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            id: "duplicates",
            shows: Harm::Duplicates,
            scenario: Scenario {
                options: &[("lease_ms", "100"), ("pause_ms", "500")],
                ..Scenario::DOUBLE_CLICK
            },
        },
        Demonstration {
            id: "undersells",
            shows: Harm::Undersells,
            scenario: Scenario {
                stock: 5,
                buyers: 5,
                concurrency: 5,
                options: &[("wait_ms", "0")],
                ..Scenario::SMALL
            },
        },
    ],
    ..Strategy::PLAIN
};

const HARMS: Harms = Harms { oversells: Possible, undersells: Possible, duplicates: Possible };

const NODES_DOWN: OptionSpec = whole("redis_nodes_down", (0, 0, 3));
