//! `zookeeper-lock`: a queue of ephemeral nodes.

use crate::prelude::*;
use crate::servers::Servers;
use locks::{
    Lock, ZooKeeperLock,
    zookeeper::{Zoo, ZooKeeperGuard},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::AcqRel},
    },
    time::Duration,
};

struct Node {
    lock: ZooKeeperLock,
    /// ZooKeeper's own view of its sessions, for the lab to end one.
    servers: Arc<Servers>,
    lost: AtomicBool,
    name: String,
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    opening(async move {
        let servers = stand.servers().clone();
        let zoo = Zoo::new(&stand.zookeeper().await?, SESSION_TIMEOUT);
        let zoo = zoo.of(&format!("node-{}", stand.node())).counted_by(&stand.meter().wires);
        Ok(Node {
            lock: ZooKeeperLock::new(zoo),
            servers,
            lost: AtomicBool::new(false),
            name: stand.arena().to_owned(),
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
        let outcome = self.sell(&guard, &mut transaction, buyer).await;
        let outcome = transaction.end(outcome).await;
        stand.crash_point("committed").await; // the lock is not given back: its lease has to end it
        stand.release(guard).await;
        outcome
    }
}

impl Node {
    async fn sell(
        &self,
        guard: &ZooKeeperGuard,
        transaction: &mut Sql,
        buyer: &Buyer,
    ) -> Result<Outcome, Trouble> {
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
        self.lose_session(guard).await;
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

    /// As ZooKeeper does when it has not heard of a session for too long: its nodes are removed.
    async fn lose_session(&self, guard: &ZooKeeperGuard) {
        if self.stand.choice("session_loss") == "off" || self.lost.swap(true, AcqRel) {
            return;
        }
        self.stand.note(match self.servers.remove_zookeeper_node(guard.path()).await {
            Ok(()) => "the holder's session ended",
            Err(_) => "zookeeper did not answer",
        });
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "zookeeper-lock",
    family: Family::DistributedLock,
    promise: Promise::everywhere(HARMS),
    needs: &[Need::ZooKeeper],
    options: &[wait_ms(5_000), SESSION_LOSS],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        Demonstration {
            id: "oversells",
            shows: Harm::Oversells,
            scenario: Scenario {
                stock: 1,
                buyers: 2,
                concurrency: 2,
                options: &[("session_loss", "on"), ("pause_ms", "600")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            id: "duplicates",
            shows: Harm::Duplicates,
            scenario: Scenario {
                options: &[("session_loss", "on"), ("pause_ms", "600")],
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

/// How long ZooKeeper waits for a sign of life.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

const SESSION_LOSS: OptionSpec =
    OptionSpec { name: "session_loss", kind: crate::strategy::OptionKind::Choice(&["off", "on"]) };
