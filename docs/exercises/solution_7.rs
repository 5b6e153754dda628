//! `my-idea`: a script in Redis decides, Postgres gets the order.

use crate::prelude::*;

const DECIDE: &str = "
    if redis.call('SISMEMBER', KEYS[2], ARGV[1]) == 1 then return 2 end
    if tonumber(redis.call('GET', KEYS[1])) < 1 then return 0 end
    redis.call('DECR', KEYS[1])
    redis.call('SADD', KEYS[2], ARGV[1])
    return 1";
static SCRIPT: LuaScript = LuaScript::new("my-idea.lua", DECIDE);

pub struct Node;

pub async fn open(bench: &Bench) -> Result<Node> {
    let _: bool = bench.redis("SETNX", (bench.key("stock"), bench.stock())).await?;
    Ok(Node)
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        let decide = SCRIPT.on(&[&bench.key("stock"), &bench.key("buyers")]).arg(&buyer.name);
        match bench.line.send(&decide).await? {
            1 => {}
            2 => return Ok(Outcome::Duplicate),
            _ => return Ok(Outcome::SoldOut),
        }
        bench.crash_point("the script has decided").await;
        bench.interleave("the script has decided").await;

        bench.write_order(&mut bench.sql().await?, buyer).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "my-idea",
    promise: Promise::everywhere(Harms::UNSOLD),
    crash_points: &["the script has decided"],
    demonstrations: &[show("crash", Undersells, SMALL.concurrency(1).options(CRASH))],
    ..Strategy::PLAIN
};

const CRASH: &[(&str, &str)] = &[("crash_at", "the script has decided"), ("restart_ms", "0")];
