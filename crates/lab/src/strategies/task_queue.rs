//! `task-queue`: requests stand in a Redis list, and one consumer serves them in turn.

use crate::consumer::{Request, TaskQueue};
use crate::prelude::*;
use std::sync::Arc;

pub struct Node {
    queue: Arc<TaskQueue>,
}

pub async fn open(bench: &Bench) -> Result<Node> {
    Ok(Node { queue: TaskQueue::open(bench, |on, tx, asked| Box::pin(serve(on, tx, asked)))? })
}

impl Sell for Node {
    async fn buy(&self, _: &Bench, buyer: &Buyer) -> Result<Outcome> {
        //= FLAW the buyer waits here: if this server dies, there may be an order and no answer
        self.queue.ask(buyer).await
    }

    async fn settle(&self, _: &Bench) {
        self.queue.settle().await;
    }
}

/// The till, at which buyers are served one after the other.
async fn serve(bench: &Bench, tx: &mut Sql, asked: &Request) -> Result<Outcome> {
    let (id, buyer, order_id) = (&asked.id, &asked.buyer, asked.id.clone());
    bench.crash_point("a request is in hand").await;
    const SERVED: &str = "SELECT EXISTS (SELECT FROM lab.orders WHERE id = $1)";
    //= CURE a request that comes again after a crash is answered, not sold again
    if tx.one(SERVED, (id,)).await? {
        return Ok(Outcome::Sold { order_id }); // by a consumer that died before it said so
    }
    if bench.has_bought(tx, buyer).await? {
        return Ok(Outcome::Duplicate);
    }
    const READ: &str = "SELECT remaining FROM lab.stock WHERE arena = $1 AND item = 'thing'";
    //= CURE an advisory lock lets one session consume: nobody else reads before it has written
    let remaining: i32 = tx.one(READ, (bench.arena(),)).await?;
    if remaining < 1 {
        return Ok(Outcome::SoldOut);
    }

    bench.interleave("the stock is read").await; // nobody else comes here

    const WRITE: &str = "UPDATE lab.stock SET remaining = $2 WHERE arena = $1 AND item = 'thing'";
    tx.run(WRITE, (bench.arena(), remaining - 1)).await?;
    const ORDER: &str = "INSERT INTO lab.orders (id, arena, buyer) VALUES ($1, $2, $3)";
    tx.run(ORDER, (id, bench.arena(), &buyer.name)).await?;
    Ok(Outcome::Sold { order_id })
}

pub const STRATEGY: Strategy = Strategy {
    id: "task-queue",
    family: Family::Queue,
    crash_points: &["a request is in hand"],
    demonstrations: &[
        show("crash", Fails, SMALL.concurrency(8).options(CRASH)).at(1),
        show("three-nodes", Holds, SMALL.nodes(3).double_clicks()).at(3),
    ],
    ..Strategy::PLAIN
};

const CRASH: &[(&str, &str)] = &[("crash_at", "a request is in hand"), ("restart_ms", "0")];
