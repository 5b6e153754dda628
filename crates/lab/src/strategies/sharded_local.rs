//! `sharded-local`: every node sells its own share of the stock out of its own memory.

use crate::prelude::*;
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

struct Node {
    memory: Mutex<Memory>,
    stand: Stand,
}

/// What a crash forgets.
struct Memory {
    units: i32,
    /// How many each buyer has, of those who come to this node: all that this buyer has anywhere.
    bought: HashMap<String, i32>,
}

pub fn open(stand: Stand) -> Opening {
    opening(async move {
        let mut transaction = stand.begin().await?;
        let left: i32 = sqlx::query_scalar(
            "SELECT remaining FROM lab.stock WHERE arena = $1 AND item = 'thing' FOR UPDATE",
        )
        .bind(stand.arena())
        .fetch_one(transaction.send())
        .await?;
        // The share leaves Postgres for good: a second incarnation (or process) of this node cannot
        // have it again, and nobody can take more than there is.
        let units = share(&stand).min(left);
        sqlx::query("UPDATE lab.stock SET remaining = $2 WHERE arena = $1 AND item = 'thing'")
            .bind(stand.arena())
            .bind(left - units)
            .execute(transaction.send())
            .await?;
        let bought: Vec<(String, i64)> = sqlx::query_as(
            "SELECT buyer, count(*) FROM lab.unique_orders WHERE arena = $1 GROUP BY buyer",
        )
        .bind(stand.arena())
        .fetch_all(transaction.send())
        .await?;
        transaction.commit().await?;
        let bought = bought.into_iter();
        let memory = Mutex::new(Memory {
            units,
            bought: bought
                .map(|(buyer, orders)| (buyer, i32::try_from(orders).unwrap_or(i32::MAX)))
                .collect(),
        });
        Ok(Node { memory, stand })
    })
}

/// How many units this node is dealt.
fn share(stand: &Stand) -> i32 {
    let nodes = i32::try_from(stand.nodes()).unwrap_or(1).max(1);
    let node = i32::try_from(stand.node()).unwrap_or(0);
    let even = |units: i32, node: i32, nodes: i32| units / nodes + i32::from(node < units % nodes);
    if stand.choice("shares") == "even" || nodes == 1 {
        return even(stand.stock(), node, nodes);
    }
    let rest = stand.stock() / 5;
    if node == 0 { stand.stock() - rest } else { even(rest, node - 1, nodes - 1) }
}

impl Node {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let nth = {
            let mut memory = self.memory();
            let bought = memory.bought.get(&buyer.name).copied().unwrap_or(0);
            if bought >= stand.per_user_limit() {
                return Ok(Outcome::Duplicate);
            }
            if memory.units < 1 {
                return Ok(Outcome::SoldOut);
            }
            memory.units -= 1;
            memory.bought.insert(buyer.name.clone(), bought + 1);
            bought + 1
        };
        stand.crash_point("the unit is taken").await;

        stand.meet("the unit is taken").await;
        stand.pause().await;
        stand.work().await;

        // The index holds what the hash promises: should another process serve the same buyer, it
        // says so.
        let order_id = new_order_id();
        let mut sql = stand.sql().await?;
        let written = sqlx::query(
            "INSERT INTO lab.unique_orders (id, arena, buyer, nth) VALUES ($1, $2, $3, $4)
             ON CONFLICT (arena, buyer, nth) DO NOTHING",
        )
        .bind(&order_id)
        .bind(stand.arena())
        .bind(&buyer.name)
        .bind(nth)
        .execute(sql.send())
        .await?;
        if written.rows_affected() == 0 {
            self.memory().units += 1;
            return Ok(Outcome::Duplicate);
        }
        Ok(Outcome::Sold { order_id })
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "sharded-local",
    family: Family::Split,
    promise: Promise::everywhere(HARMS),
    options: &[SHARES],
    crash_points: &["the unit is taken"],
    demonstrations: &[
        Demonstration {
            id: "undersells",
            shows: Harm::Undersells,
            scenario: Scenario {
                concurrency: 1,
                options: &[
                    ("crash_at", "the unit is taken"),
                    ("crash_after", "2"),
                    ("restart_ms", "0"),
                ],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            id: "undersells-2",
            shows: Harm::Undersells,
            scenario: Scenario {
                stock: 20,
                buyers: 24,
                nodes: 3,
                options: &[("shares", "uneven")],
                ..Scenario::SMALL
            },
        },
    ],
    routes_by_buyer: true,
    ..Strategy::PLAIN
};

const HARMS: Harms = Harms { oversells: Never, undersells: Possible, duplicates: Never };

const SHARES: OptionSpec =
    OptionSpec { name: "shares", kind: crate::strategy::OptionKind::Choice(&["even", "uneven"]) };
