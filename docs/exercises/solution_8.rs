//! `my-idea`: the script also writes down what is owed; a server that lives on delivers it.

use crate::prelude::*;

const DECIDE: &str = "
    if redis.call('SISMEMBER', KEYS[2], ARGV[1]) == 1 then return 2 end
    if tonumber(redis.call('GET', KEYS[1])) < 1 then return 0 end
    redis.call('DECR', KEYS[1])
    redis.call('SADD', KEYS[2], ARGV[1])
    redis.call('HSET', KEYS[3], ARGV[2], ARGV[1])
    return 1";
static SCRIPT: LuaScript = LuaScript::new("my-idea.lua", DECIDE);

pub struct Node;

pub async fn open(stand: &Stand) -> Result<Node, Trouble> {
    let _: bool = stand.redis("SETNX", (stand.key("stock"), stand.stock())).await?;
    deliver(stand).await?; // what a node before this one still owed
    Ok(Node)
}

impl Sell for Node {
    async fn buy(&self, stand: &Stand, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let order_id = new_order_id();
        let keys = ["stock", "buyers", "owed"].map(|name| stand.key(name));
        let decide = SCRIPT.on(&[&keys[0], &keys[1], &keys[2]]).arg(&buyer.name).arg(&order_id);
        match stand.line.send(&decide).await? {
            1 => {}
            2 => return Ok(Outcome::Duplicate),
            _ => return Ok(Outcome::SoldOut),
        }
        stand.crash_point("the script has decided").await;
        stand.interleave("the script has decided").await;

        write(stand, &order_id, &buyer.name).await?;
        Ok(Outcome::Sold { order_id })
    }

    /// Before a verdict: nobody is asking any more, so what is owed now was owed by the dead.
    async fn settle(&self, stand: &Stand) {
        stand.until(async || deliver(stand).await.map(|()| true)).await;
    }
}

async fn deliver(stand: &Stand) -> Result<(), Trouble> {
    let owed: Vec<(String, String)> = stand.redis("HGETALL", stand.key("owed")).await?;
    for (order_id, buyer) in &owed {
        write(stand, order_id, buyer).await?;
    }
    Ok(())
}

/// Twice is once: the id says so.
async fn write(stand: &Stand, order_id: &str, buyer: &str) -> Result<(), Trouble> {
    const WRITE: &str = "INSERT INTO lab.orders (id, arena, buyer) VALUES ($1, $2, $3)
                         ON CONFLICT DO NOTHING";
    stand.sql().await?.run(WRITE, (order_id, stand.arena(), buyer)).await?;
    let _: i64 = stand.redis("HDEL", (stand.key("owed"), order_id)).await?;
    Ok(())
}

pub const STRATEGY: Strategy = Strategy {
    id: "my-idea",
    crash_points: &["the script has decided"],
    demonstrations: &[show("crash", Holds, SMALL.concurrency(1).options(CRASH))],
    ..Strategy::PLAIN
};

const CRASH: &[(&str, &str)] = &[("crash_at", "the script has decided"), ("restart_ms", "0")];
