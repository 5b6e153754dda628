//! `token-list`: a Redis list with one token for each unit, and LPOP.

use crate::prelude::*;

static FILL: LuaScript = lua!("fill.lua");

pub struct Node;

pub async fn open(bench: &Bench) -> Result<Node> {
    let fill = FILL.on(&[&bench.key("tokens"), &bench.key("filled")]).arg(bench.stock());
    let _: u32 = bench.line.send(&fill).await?;
    Ok(Node)
}

impl Sell for Node {
    async fn buy(&self, bench: &Bench, buyer: &Buyer) -> Result<Outcome> {
        let (tokens, entry) = (bench.key("tokens"), (bench.key("buyers"), &buyer.name));
        if bench.choice("first") == "token" {
            let token: Option<u32> = bench.redis("LPOP", &tokens).await?;
            if token.is_none() {
                return Ok(Outcome::SoldOut);
            }
            //= FLAW a second click has popped a token by now, and does not put it back
            if !bench.redis("SADD", &entry).await? {
                return Ok(Outcome::Duplicate);
            }
        } else {
            //= CURE the set decides first: only a buyer who is new to it takes a token
            if !bench.redis("SADD", &entry).await? {
                return Ok(Outcome::Duplicate);
            }
            let token: Option<u32> = bench.redis("LPOP", &tokens).await?;
            if token.is_none() {
                let _: bool = bench.redis("SREM", &entry).await?;
                return Ok(Outcome::SoldOut);
            }
        }
        bench.crash_point("the unit is taken").await;
        bench.interleave("the unit is taken").await;

        //= FLAW the unit is taken, the order is another step: a crash before it loses the unit
        bench.write_order(&mut bench.sql().await?, buyer).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "token-list",
    options: &[choice("first", &["buyer", "token"])],
    demonstrations: &[
        show("token-first", Undersells, CLICKS.options(&[("first", "token")])).at(1),
        show("buyer-first", Holds, CLICKS).at(2),
        show("crash", Undersells, ONE_BY_ONE.options(UNIT_LOST)).at(3),
    ],
    scripts: &[script!("fill.lua")],
    ..COUNTER_STRATEGY
};

const CLICKS: Scenario = SMALL.stock(4).buyers(4).concurrency(1).double_clicks();
