//! `token-list`: a Redis list with one token for each unit, and LPOP.

use crate::prelude::*;

static FILL: LuaScript = lua!("fill.lua");

pub struct Node {
    tokens: String,
    buyers: String,
}

pub async fn open(stand: &Stand) -> Result<Node, Trouble> {
    let (tokens, buyers) = (stand.key("tokens"), stand.key("buyers"));
    let fill = FILL.on(&[&tokens, &stand.key("filled")]).arg(stand.stock());
    let _: u32 = stand.line.send(&fill).await?;
    Ok(Node { tokens, buyers })
}

impl Sell for Node {
    async fn buy(&self, stand: &Stand, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let entry = (&self.buyers, &buyer.name);
        if stand.choice("first") == "token" {
            let token: Option<u32> = stand.redis("LPOP", &self.tokens).await?;
            if token.is_none() {
                return Ok(Outcome::SoldOut);
            }
            //= FLAW a second click has popped a token by now, and does not put it back
            if !stand.redis("SADD", entry).await? {
                return Ok(Outcome::Duplicate);
            }
        } else {
            //= CURE the set decides first: only a buyer who is new to it takes a token
            if !stand.redis("SADD", entry).await? {
                return Ok(Outcome::Duplicate);
            }
            let token: Option<u32> = stand.redis("LPOP", &self.tokens).await?;
            if token.is_none() {
                let _: bool = stand.redis("SREM", entry).await?;
                return Ok(Outcome::SoldOut);
            }
        }
        stand.crash_point("the unit is taken").await;
        stand.interleave("the unit is taken").await;

        stand.write_order(&mut stand.sql().await?, buyer).await
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "token-list",
    family: Family::RedisCounter,
    promise: Promise::everywhere(Harms::UNSOLD),
    options: &[choice("first", &["buyer", "token"])],
    crash_points: &["the unit is taken"],
    demonstrations: &[
        show("token-first", Undersells, CLICKS.options(&[("first", "token")])),
        show("buyer-first", Holds, CLICKS),
        show("crash", Undersells, ONE_BY_ONE.options(CRASH)),
    ],
    scripts: &[script!("fill.lua")],
    ..Strategy::PLAIN
};

const CLICKS: Scenario = SMALL.stock(4).buyers(4).concurrency(1).double_clicks();
const ONE_BY_ONE: Scenario = SMALL.concurrency(1);
const CRASH: &[(&str, &str)] = &[("crash_at", "the unit is taken"), ("restart_ms", "0")];
