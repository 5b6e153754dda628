//! 8. `conditional-update`: one statement checks and writes.

use crate::{
    selling::{Buyer, Opening, Outcome, Sell, Trouble, ready},
    stand::{Stand, Transaction},
    strategy::{Demonstration, Family, Harm, Promise, Scenario, Strategy, Words},
};

pub const STRATEGY: Strategy = Strategy {
    number: 8,
    id: "conditional-update",
    family: Family::Database,
    title: Words::new("SET stock = stock - 1 WHERE stock > 0", "带条件的扣减：WHERE 库存 > 0"),
    idea: Words::new(
        "Say what is meant and let the database do it: take one if there is one. Check and write \
         are one statement, and Postgres lets one transaction at a time write a row; who waited \
         looks at the row again before writing.",
        "直接说出真正的意思，让数据库去做：有货就减一。判断和扣减是同一条语句，同一行同时只有一个事务能写；等到的人会重新判断这一行再写。",
    ),
    source: Words::new(
        "《秒杀》 (course notes), where CAS is loosened from \"stock = seen\" to \"stock > 0\"; \
         PostgreSQL manual, \"Read Committed Isolation Level\": a waiting UPDATE evaluates its \
         WHERE again.",
        "《秒杀》课程笔记：把 CAS 的“库存 = 读到的值”放宽为“库存 > 0”；PostgreSQL 手册 “Read Committed” 一节：等待中的 UPDATE 会重新计\
         算 WHERE。",
    ),
    fails: Words::new(
        "It does not. The price is one hot row: sales are written one after the other, so a few \
         thousand a second are the end, and buyers who come too late still ask the database.",
        "它不会卖错。代价是一行热点：成交只能一个接一个地写，每秒几千单就到头了，而且来晚的人仍然要问一次数据库。",
    ),
    break_it: Words::new(
        "It cannot be broken here. work_ms inside the transaction shows what a long transaction \
         costs everybody else.",
        "在这里打不破它。work_ms 会让事务变长，可以看到长事务让其他所有人付出的代价。",
    ),
    instead: Words::new(
        "Nothing, up to a few thousand sales a second. Beyond that the decision moves to memory \
         and the writing into batches (26).",
        "每秒几千单以内，不需要换。再往上，就要在内存里裁决、成批写库（第 26 种）。",
    ),
    promise: Promise::SOUND,
    needs: &[],
    options: &[],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        Demonstration {
            shows: Harm::Holds,
            teaches: Words::new(
                "Three nodes, no lock, nothing wrong.",
                "三个节点，没有锁，也没有错。",
            ),
            scenario: Scenario { nodes: 3, ..Scenario::SMALL },
        },
        Demonstration {
            shows: Harm::Holds,
            teaches: Words::new(
                "Two clicks on two nodes: the row of the stock keeps the second from looking \
                 before the first is committed.",
                "两次点击落在两个节点：库存那一行让第二次点击在第一次提交之前看不了。",
            ),
            scenario: Scenario { nodes: 2, ..Scenario::DOUBLE_CLICK },
        },
    ],
    routes_by_buyer: false,
    code: include_str!("s08_conditional_update.rs"),
};

// --- the purchase

struct Node {
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    ready(Node { stand })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let mut transaction = self.stand.begin().await?;
        let outcome = self.sell(&mut transaction, buyer).await;
        let outcome = transaction.end(outcome).await;
        self.stand.crash_point("committed").await;
        outcome
    }
}

impl Node {
    async fn sell(&self, transaction: &mut Transaction, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let taken = sqlx::query(
            "UPDATE lab.stock SET remaining = remaining - 1 WHERE arena = $1 AND item = 'thing' \
             AND remaining > 0",
        )
        .bind(stand.arena())
        .execute(transaction.send())
        .await?;
        if taken.rows_affected() == 0 {
            return Ok(Outcome::SoldOut);
        }
        stand.crash_point("the stock is written").await;

        stand.meet("the stock is taken").await; // nobody else can take one before the commit
        stand.pause().await;
        stand.work().await;

        // After the update: the row is ours until the commit, so nobody is buying meanwhile.
        if stand.has_bought(transaction.send(), buyer).await? {
            return Ok(Outcome::Duplicate); // rolled back, and the unit with it
        }
        stand.write_order(transaction.send(), buyer).await
    }
}
