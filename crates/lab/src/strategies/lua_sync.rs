//! `lua-sync`: one script decides, the request itself writes the order.

use crate::prelude::*;

static DECIDE: LuaScript = lua!("decide.lua");

pub struct Node;

pub async fn open(bench: &Bench) -> Result<Node> {
    let _: bool = bench.redis("SETNX", (bench.key("stock"), bench.stock())).await?;
    Ok(Node)
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        let decide = DECIDE.on(&[&bench.key("stock"), &bench.key("buyers")]).arg(&buyer.name);
        //= CURE buyer and stock are checked and changed in one step: nobody can come in between
        match bench.line.send(&decide.arg(bench.per_user_limit())).await? {
            1 => {}
            2 => return Ok(Outcome::Duplicate),
            _ => return Ok(Outcome::SoldOut),
        }
        bench.crash_point("the script has decided").await;
        bench.interleave("the script has decided").await;

        //= FLAW the unit is taken, the order is another step: a crash before it loses the unit
        bench.write_order(&mut bench.sql().await?, buyer).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "lua-sync",
    crash_points: &["the script has decided"],
    demonstrations: &[
        show("three-nodes", Holds, SMALL.nodes(3).double_clicks()).at(1),
        show("crash", Undersells, ONE_BY_ONE.options(CRASH)).at(2),
    ],
    scripts: &[script!("decide.lua")],
    ..COUNTER_STRATEGY
};

const CRASH: &[(&str, &str)] = &[("crash_at", "the script has decided"), ("restart_ms", "0")];
