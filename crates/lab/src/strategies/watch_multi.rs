//! `watch-multi`: WATCH, read, MULTI, write, EXEC: nothing is written if anything has changed.

use crate::prelude::*;
use locks::wire::Line;
use parking_lot::Mutex;
use redis::cmd;

pub struct Node {
    /// WATCH belongs to a connection, so no two attempts share one.
    idle: Mutex<Vec<Line>>,
}

pub async fn open(bench: &Bench) -> Result<Node> {
    let _: bool = bench.redis("SETNX", (bench.key("stock"), bench.stock())).await?;
    Ok(Node { idle: Mutex::default() })
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        //= FLAW without retries a buyer who was overtaken is turned away, and the unit stays
        //= CURE a buyer who was overtaken looks again, for as long as there is a unit
        bench.retrying(bench.whole("retries"), || self.attempt(bench, buyer)).await
    }
}

impl Node {
    async fn attempt(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        let (stock, buyers) = (bench.key("stock"), bench.key("buyers"));
        // An error drops the connection, and its WATCH with it.
        let redis = self.idle.lock().pop().unwrap_or_else(|| bench.line.another_connection());
        let _: () = redis.send(cmd("WATCH").arg(&stock).arg(&buyers)).await?;
        let left: i32 = redis.send(cmd("GET").arg(&stock)).await?;
        let bought: Option<i32> = redis.send(cmd("HGET").arg(&buyers).arg(&buyer.name)).await?;
        let has_enough = bought.unwrap_or(0) >= bench.per_user_limit();
        if has_enough || left < 1 {
            let _: () = redis.send(&cmd("UNWATCH")).await?;
            self.idle.lock().push(redis);
            return Ok(if has_enough { Outcome::Duplicate } else { Outcome::SoldOut });
        }
        bench.interleave("the stock is read").await; // somebody else reads the same

        let _: () = redis.send(&cmd("MULTI")).await?;
        let _: () = redis.send(cmd("DECR").arg(&stock)).await?;
        let _: () = redis.send(cmd("HINCRBY").arg(&buyers).arg(&buyer.name).arg(1)).await?;
        //= CURE if stock or buyers have changed since WATCH, nothing is written
        let written: Option<(i32, i32)> = redis.send(&cmd("EXEC")).await?;
        self.idle.lock().push(redis);
        if written.is_none() {
            bench.note("somebody else was faster");
            return Ok(Outcome::Contended);
        }
        bench.crash_point("the unit is taken").await;
        //= FLAW the unit is taken, the order is another step: a crash before it loses the unit
        bench.write_order(&mut bench.sql().await?, buyer).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "watch-multi",
    options: &[retries(10_000)],
    demonstrations: &[
        show("without-retries", Undersells, SIX.options(&[("retries", "0")])).at(1),
        show("with-retries", Holds, SIX).at(2),
        show("crash", Undersells, ONE_BY_ONE.options(UNIT_LOST)).at(4),
    ],
    ..COUNTER_STRATEGY
};

const SIX: Scenario = SMALL.buyers(6);
