//! `sharded-local`: each node sells its share of the stock from memory, buyers are routed by hash.

use crate::prelude::*;
use parking_lot::Mutex;
use std::collections::HashMap;

pub struct Node {
    memory: Mutex<Memory>,
}

/// What a crash forgets.
struct Memory {
    units: i32,
    /// How many each buyer has: all buyers of this node come to no other.
    bought: HashMap<String, i32>,
}

pub async fn open(bench: &Bench) -> Result<Node> {
    // The share leaves Postgres for good, so that nobody is dealt it again.
    const DEAL: &str = "WITH before AS (
            SELECT remaining FROM lab.stock WHERE arena = $1 AND item = 'thing' FOR UPDATE)
        UPDATE lab.stock SET remaining = greatest(before.remaining - $2, 0) FROM before
        WHERE arena = $1 AND item = 'thing' RETURNING least(before.remaining, $2)";
    //= FLAW nobody else can sell this share, and a crash loses what is left of it
    let units = bench.sql().await?.one(DEAL, (bench.arena(), share(bench))).await?;
    Ok(Node { memory: Mutex::new(Memory { units, bought: HashMap::new() }) })
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        let nth = {
            let mut memory = self.memory.lock();
            let bought = memory.bought.get(&buyer.name).copied().unwrap_or(0);
            if bought >= bench.per_user_limit() {
                return Ok(Outcome::Duplicate);
            }
            if memory.units < 1 {
                return Ok(Outcome::SoldOut);
            }
            memory.units -= 1;
            memory.bought.insert(buyer.name.clone(), bought + 1);
            bought + 1
        };
        bench.crash_point("the unit is taken").await;
        bench.interleave("the unit is taken").await;

        const WRITE: &str = "INSERT INTO lab.unique_orders (id, arena, buyer, nth)
            VALUES ($1, $2, $3, $4) ON CONFLICT (arena, buyer, nth) DO NOTHING";
        let order_id = new_order_id();
        let order = (&order_id, bench.arena(), &buyer.name, nth);
        //= CURE the index knows orders from before a crash, and of other processes
        if bench.sql().await?.run(WRITE, order).await? == 0 {
            self.memory.lock().units += 1;
            return Ok(Outcome::Duplicate);
        }
        Ok(Outcome::Sold { order_id })
    }
}

/// How many units this node is dealt.
fn share(bench: &Bench) -> i32 {
    let (node, nodes) = (bench.node as i32, bench.shared.definition.nodes as i32);
    let even = |units: i32, node: i32, nodes: i32| units / nodes + i32::from(node < units % nodes);
    let rest = bench.stock() / 5;
    match bench.choice("shares") {
        "uneven" if nodes > 1 && node == 0 => bench.stock() - rest,
        "uneven" if nodes > 1 => even(rest, node - 1, nodes - 1),
        _ => even(bench.stock(), node, nodes),
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "sharded-local",
    family: Family::Split,
    promise: Promise::everywhere(Harms::UNSOLD),
    options: &[choice("shares", &["even", "uneven"])],
    crash_points: &["the unit is taken"],
    demonstrations: &[
        show("crash", Undersells, SMALL.concurrency(1).options(CRASH)).at(1),
        show("uneven", Undersells, UNEVEN).at(1),
    ],
    routes_by_buyer: true,
    ..Strategy::PLAIN
};

const CRASH: &[(&str, &str)] =
    &[("crash_at", "the unit is taken"), ("crash_after", "2"), ("restart_ms", "0")];
const UNEVEN: Scenario =
    SMALL.stock(20).buyers(24).concurrency(25).nodes(3).options(&[("shares", "uneven")]);
