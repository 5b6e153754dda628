//! `lua-sync`: one script decides, the request itself writes the order.

use crate::prelude::*;
use locks::wire::{Line, LuaScript};
use redis::cmd;

static DECIDE: LuaScript = LuaScript::new("decide.lua", include_str!("scripts/decide.lua"));

struct Node {
    redis: Line,
    stock: String,
    buyers: String,
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    opening(async move {
        let (redis, stock) = (stand.line().clone(), stand.key("stock"));
        let mut install = cmd("SETNX");
        let _: bool = redis.send(install.arg(&stock).arg(stand.stock())).await?;
        Ok(Node { redis, stock, buyers: stand.key("buyers"), stand })
    })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let call = DECIDE.on(&[&self.stock, &self.buyers]);
        let call = call.arg(&buyer.name).arg(stand.per_user_limit());
        match self.redis.run(&call).await? {
            1 => {}
            2 => return Ok(Outcome::Duplicate),
            _ => return Ok(Outcome::SoldOut),
        }
        stand.crash_point("the script has decided").await;

        stand.meet("the script has decided").await;
        stand.pause().await;
        stand.work().await;

        let mut sql = stand.sql().await?;
        stand.write_order(&mut sql, buyer).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "lua-sync",
    family: Family::RedisCounter,
    promise: Promise::everywhere(HARMS),
    crash_points: &["the script has decided"],
    demonstrations: &[Demonstration {
        id: "undersells",
        shows: Harm::Undersells,
        scenario: Scenario {
            concurrency: 1,
            options: &[("crash_at", "the script has decided"), ("restart_ms", "0")],
            ..Scenario::SMALL
        },
    }],
    ..Strategy::PLAIN
};

const HARMS: Harms = Harms { oversells: Never, undersells: Possible, duplicates: Never };
