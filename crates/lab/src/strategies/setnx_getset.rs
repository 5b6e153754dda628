//! `setnx-getset`: the time of expiry is the value, and GETSET decides who takes an expired
//!     lock.

use crate::prelude::*;
use locks::{Lock, SetnxGetset, wire::Clock};

struct Node {
    lock: SetnxGetset,
    name: String,
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    let clock = Clock::default();
    clock.set_offset_ms(stand.whole("clock_skew_ms") * i64::from(stand.node()));
    let lock = SetnxGetset::new(stand.line().clone(), stand.millis("lease_ms"), clock);
    ready(Node { lock, name: stand.key("lock"), stand })
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
    id: "setnx-getset",
    family: Family::DistributedLock,
    promise: Promise::everywhere(HARMS),
    options: &[lease_ms(2_000), wait_ms(5_000), CLOCK_SKEW_MS],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        Demonstration {
            id: "oversells",
            shows: Harm::Oversells,
            // Enough units that the fast one, from whom nobody can take it, does not sell them all;
            // and time enough to wait for it.
            scenario: Scenario {
                nodes: 3,
                stock: 8,
                buyers: 32,
                concurrency: 32,
                options: &[("clock_skew_ms", "5000"), ("wait_ms", "10000")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            id: "oversells-2",
            shows: Harm::Oversells,
            scenario: Scenario {
                stock: 1,
                buyers: 2,
                concurrency: 2,
                options: &[("lease_ms", "100"), ("pause_ms", "500")],
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

const CLOCK_SKEW_MS: OptionSpec = whole("clock_skew_ms", (0, 0, 60_000));
