//! 1. `naive`: read the stock, check it, write it back less one.

use crate::{
    selling::{Buyer, Opening, Outcome, Sell, Trouble, ready},
    stand::Stand,
    strategy::{
        Demonstration, Expected, Family, Harm, Harms, Possible, Promise, Scenario, Strategy, Words,
    },
};

pub const STRATEGY: Strategy = Strategy {
    number: 1,
    id: "naive",
    family: Family::Nothing,
    title: Words::new("Read, check, write back", "先查、再判断、后写回"),
    idea: Words::new(
        "Read how many are left; if there is one, write one less and insert the order. Every line \
         is right, and alone it sells exactly what there is.",
        "先查还剩几件；有货就把“少一件”的数写回去，再插入订单。每一行单看都没错，一个人买的时候也确实卖得一件不差。",
    ),
    source: Words::new(
        "The first version in every article on flash sales, among them the incident report 《突击Redis\
         重大事故现场，又是“分布式锁”惹的祸》, where the same three steps oversold behind a lock that had expired.",
        "几乎每篇秒杀文章的第一版代码；《突击Redis重大事故现场，又是“分布式锁”惹的祸》里的超卖，也正是锁过期之后露出来的这三步。",
    ),
    fails: Words::new(
        "Between reading and writing another buyer reads the same number. Both write back the same \
         \"one less\", and one unit is sold twice. The check for a second order of the same person \
         has the same gap. And a crash between the two writes loses a unit.",
        "在“查”和“写”之间，另一个买家查到了同一个数。两个人都写回同一个“少一件”，一件货就卖了两次。“这个人买过没有”的检查也有同样的空档。要是在两次写之间崩溃，还会白白丢掉一件。",
    ),
    break_it: Words::new(
        "Just storm it: two buyers are made to read the stock before either writes. With \
         interleave=off it still happens, only less often; work_ms widens the gap.",
        "直接压测即可：两个买家会被安排在写之前都读到库存。interleave=off 时照样会发生，只是少一些；work_ms 可以把空档拉大。",
    ),
    instead: Words::new(
        "Let the database check and write in one statement: conditional-update (8).",
        "让数据库用一条语句同时完成判断和扣减：conditional-update（第 8 种）。",
    ),
    promise: Promise { one_node: HARMS, across_nodes: HARMS },
    needs: &[],
    options: &[],
    crash_points: &["the stock is written"],
    demonstrations: &[
        Demonstration {
            shows: Harm::Duplicates,
            teaches: Words::new(
                "One person clicks twice: both clicks see that there is no order yet.",
                "同一个人连点两下：两次点击都看到“还没有订单”。",
            ),
            scenario: Scenario::DOUBLE_CLICK,
        },
        Demonstration {
            shows: Harm::Undersells,
            teaches: Words::new(
                "The node dies after it has written the stock and before the order: the unit is \
                 gone.",
                "写完库存、还没写订单时节点崩溃：这一件就凭空消失了。",
            ),
            // One at a time, so that nothing hides the missing unit.
            scenario: Scenario {
                concurrency: 1,
                options: &[("crash_at", "the stock is written"), ("restart_ms", "0")],
                ..Scenario::SMALL
            },
        },
    ],
    routes_by_buyer: false,
    code: include_str!("s01_naive.rs"),
};

const HARMS: Harms = Harms { oversells: Expected, undersells: Possible, duplicates: Possible };

// --- the purchase

struct Node {
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    ready(Node { stand })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let mut sql = stand.sql().await?;
        if stand.has_bought(sql.send(), buyer).await? {
            return Ok(Outcome::Duplicate);
        }
        let remaining: i32 = sqlx::query_scalar(
            "SELECT remaining FROM lab.stock WHERE arena = $1 AND item = 'thing'",
        )
        .bind(stand.arena())
        .fetch_one(sql.send())
        .await?;
        if remaining < 1 {
            return Ok(Outcome::SoldOut);
        }

        stand.meet("the stock is read").await; // somebody else reads the same number
        stand.pause().await;
        stand.work().await;

        sqlx::query("UPDATE lab.stock SET remaining = $2 WHERE arena = $1 AND item = 'thing'")
            .bind(stand.arena())
            .bind(remaining - 1)
            .execute(sql.send())
            .await?;
        stand.crash_point("the stock is written").await;
        stand.write_order(sql.send(), buyer).await
    }
}
