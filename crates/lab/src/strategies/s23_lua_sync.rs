//! 23. `lua-sync`: one script decides, the request itself writes the order.

use crate::{
    selling::{Buyer, Opening, Outcome, Sell, Trouble, opening},
    stand::Stand,
    strategy::{
        Demonstration, Family, Harm, Harms, Never, Possible, Promise, Scenario, Strategy, Words,
    },
};
use locks::wire::{Line, LuaScript};
use redis::cmd;

pub const STRATEGY: Strategy = Strategy {
    number: 23,
    id: "lua-sync",
    family: Family::RedisCounter,
    title: Words::new("One Lua script, then the order", "一段 Lua 判断，当场写订单"),
    idea: Words::new(
        "A script looks at the buyer and at the stock and changes both, in one step; nobody can \
         come in between. An admitted request writes the order to Postgres before answering. \
         One round trip for a loser, two for a winner.",
        "一段脚本把“这个人买过没有”和“还有没有货”一起看、一起改，中间谁也插不进来。通过的人先把订单写进 Postgres 再回答。没抢到只需一次往返，抢到需要两次。",
    ),
    source: Words::new(
        "The first half of the final form in the course notes 《秒杀》: Redis decides who is eligible. \
         The notes go on to write the order in another thread (in-process-queue, 25); here the \
         request waits for it, which is the honest baseline to measure the queues against.",
        "课程笔记《秒杀》最终版的前一半：由 Redis 判断资格。笔记接着让另一个线程去写订单（in-process-queue，第 25 种）；这里让请求自己等它写完，正好用作衡量各种队\
         列的基准。",
    ),
    fails: Words::new(
        "Script and order are two steps. A node that dies in between has taken a unit and sold it \
         to nobody. It must not be given back on a mere error either: the order may have been \
         written and only the answer lost, and then the unit would be sold twice. And every winner \
         waits for a commit: when the database is slow, so is the sale.",
        "脚本和订单是两步。节点在两步之间死掉，货扣了，却没卖给任何人。出错时也不能直接把货退回去：也许订单已写成，只是回答丢了，退回去就会一件卖两次。而且每个抢到的人都要等数据库提交：数据\
         库慢，抢购就慢。",
    ),
    break_it: Words::new(
        "crash_at=\"the script has decided\": the unit is gone. work_ms shows how a slow database \
         slows every winner.",
        "crash_at=\"the script has decided\"：这一件就没了。调大 work_ms，可以看到数据库一慢，抢到的人全都跟着慢。",
    ),
    instead: Words::new(
        "Let the script also write a promise into a stream that survives a crash, and let a writer \
         turn promises into orders: lua-stream (26).",
        "让脚本把“承诺”同时写进一个崩溃也不丢的流，再由写入器变成订单：lua-stream（第 26 种）。",
    ),
    promise: Promise { one_node: HARMS, across_nodes: HARMS },
    needs: &[],
    options: &[],
    crash_points: &["the script has decided"],
    demonstrations: &[Demonstration {
        shows: Harm::Undersells,
        teaches: Words::new(
            "The node dies between the script and the order: Redis has counted down, Postgres \
             knows nothing.",
            "节点死在脚本和订单之间：Redis 已经减了，Postgres 一无所知。",
        ),
        scenario: Scenario {
            concurrency: 1,
            options: &[("crash_at", "the script has decided"), ("restart_ms", "0")],
            ..Scenario::SMALL
        },
    }],
    routes_by_buyer: false,
    code: concat!(include_str!("s23_lua_sync.rs"), "\n", include_str!("scripts/decide.lua")),
};

const HARMS: Harms = Harms { oversells: Never, undersells: Possible, duplicates: Never };

// --- the purchase

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
        stand.write_order(sql.send(), buyer).await
    }
}
