//! `setnx-expire`: a lock of two commands, SETNX and EXPIRE.

use crate::prelude::*;
use futures_util::future::BoxFuture;
use locks::{
    Lock, SetnxExpire,
    setnx_expire::Repair,
    wire::{Sent, Verdict, Watcher},
};
use std::sync::Arc;

/// Looks over the lock's shoulder: where it dies, and where two of it stand at once.
struct Between(Stand);

impl Watcher for Between {
    fn before<'a>(&'a self, sent: &'a Sent) -> BoxFuture<'a, Verdict> {
        Box::pin(async {
            if sent.text.starts_with("PEXPIRE") {
                self.0.crash_point("between SETNX and EXPIRE").await;
            }
            if sent.text.starts_with("PTTL") {
                let stand = self.0.clone();
                let meeting = async move { stand.meet("the key has no expiry").await };
                return Verdict::GoThenWait(Box::pin(meeting));
            }
            Verdict::Go
        })
    }
}

struct Node {
    lock: SetnxExpire,
    name: String,
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    let line = stand.line().clone().watched_by(Arc::new(Between(stand.clone())));
    let repair = match stand.choice("repair") {
        "never" => Repair::Never,
        "delete-and-take" => Repair::DeleteAndTake,
        "only-expire" => Repair::OnlyExpire,
        _ => Repair::TakeOver,
    };
    let lock = SetnxExpire::new(line, stand.millis("lease_ms")).repaired_by(repair);
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
    id: "setnx-expire",
    family: Family::DistributedLock,
    promise: Promise::everywhere(HARMS),
    options: &[lease_ms(2_000), wait_ms(5_000), REPAIR],
    crash_points: &["between SETNX and EXPIRE", "the stock is written", "committed"],
    demonstrations: &[
        Demonstration {
            id: "undersells",
            shows: Harm::Undersells,
            scenario: Scenario {
                concurrency: 5,
                options: &[
                    ("crash_at", "between SETNX and EXPIRE"),
                    ("restart_ms", "0"),
                    ("repair", "never"),
                    ("wait_ms", "50"),
                ],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            id: "oversells",
            shows: Harm::Oversells,
            scenario: Scenario {
                stock: 1,
                buyers: 12,
                concurrency: 4,
                options: &[
                    ("crash_at", "between SETNX and EXPIRE"),
                    ("restart_ms", "0"),
                    ("wait_ms", "50"),
                ],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            id: "holds",
            shows: Harm::Holds,
            scenario: Scenario {
                stock: 1,
                buyers: 12,
                concurrency: 4,
                options: &[
                    ("crash_at", "between SETNX and EXPIRE"),
                    ("restart_ms", "0"),
                    ("repair", "only-expire"),
                    // The lease is longer than the first holder waits to be met.
                    ("wait_ms", "3400"),
                    ("lease_ms", "1600"),
                ],
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
    ],
    ..Strategy::PLAIN
};

const HARMS: Harms = Harms { oversells: Possible, undersells: Possible, duplicates: Possible };

const REPAIR: OptionSpec = OptionSpec {
    name: "repair",
    kind: crate::strategy::OptionKind::Choice(&[
        "take-over",
        "never",
        "delete-and-take",
        "only-expire",
    ]),
};
