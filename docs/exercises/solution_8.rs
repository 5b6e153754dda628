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

pub async fn open(bench: &Bench) -> Result<Node> {
    let _: bool = bench.redis("SETNX", (bench.key("stock"), bench.stock())).await?;
    deliver(bench).await?; // what a node before this one still owed
    Ok(Node)
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        let order_id = new_order_id();
        let keys = ["stock", "buyers", "owed"].map(|name| bench.key(name));
        let decide = SCRIPT.on(&[&keys[0], &keys[1], &keys[2]]).arg(&buyer.name).arg(&order_id);
        match bench.line.send(&decide).await? {
            1 => {}
            2 => return Ok(Outcome::Duplicate),
            _ => return Ok(Outcome::SoldOut),
        }
        bench.crash_point("the script has decided").await;
        bench.interleave("the script has decided").await;

        write(bench, &order_id, &buyer.name).await?;
        Ok(Outcome::Sold { order_id })
    }

    /// Before a verdict: nobody is asking any more, so what is owed now was owed by the dead.
    async fn settle(&self, bench: &Bench) {
        bench.until(async || deliver(bench).await.map(|()| true)).await;
    }
}

async fn deliver(bench: &Bench) -> Result {
    let owed: Vec<(String, String)> = bench.redis("HGETALL", bench.key("owed")).await?;
    for (order_id, buyer) in &owed {
        write(bench, order_id, buyer).await?;
    }
    Ok(())
}

/// Twice is once: the id says so.
async fn write(bench: &Bench, order_id: &str, buyer: &str) -> Result {
    const WRITE: &str = "INSERT INTO lab.orders (id, arena, buyer) VALUES ($1, $2, $3)
                         ON CONFLICT DO NOTHING";
    bench.sql().await?.run(WRITE, (order_id, bench.arena(), buyer)).await?;
    let _: i64 = bench.redis("HDEL", (bench.key("owed"), order_id)).await?;
    Ok(())
}

pub const STRATEGY: Strategy = Strategy {
    id: "my-idea",
    crash_points: &["the script has decided"],
    demonstrations: &[show("crash", Holds, SMALL.concurrency(1).options(CRASH))],
    ..Strategy::PLAIN
};

const CRASH: &[(&str, &str)] = &[("crash_at", "the script has decided"), ("restart_ms", "0")];
