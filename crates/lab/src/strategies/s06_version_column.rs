//! 6. `version-column`: write only if nobody has written since.

use crate::{
    options::retries,
    selling::{Buyer, Opening, Outcome, Sell, Trouble, ready},
    stand::{Stand, Transaction},
    strategy::{
        Demonstration, Family, Harm, Harms, Never, Possible, Promise, Scenario, Strategy, Words,
    },
};

pub const STRATEGY: Strategy = Strategy {
    number: 6,
    id: "version-column",
    family: Family::Database,
    title: Words::new("WHERE version = what I saw", "乐观锁：版本号"),
    idea: Words::new(
        "Optimistic: nobody waits. Every write of the row counts its version up, and a buyer \
         writes only if the version is still the one they read. A late writer looks \
         again.",
        "乐观锁：谁也不等。每次写这一行，版本号加一；买家只有在版本号还是自己读到的那个时才能写。来晚的人重新再看一次。",
    ),
    source: Words::new(
        "《秒杀》 (course notes), optimistic locks by version; 《分布式锁的三种实现》, the database way. Both \
         leave out what happens without a second try.",
        "《秒杀》课程笔记“乐观锁：版本号法”；《分布式锁的三种实现》中的数据库方案。两篇都没说：如果不重试会怎样。",
    ),
    fails: Words::new(
        "It never oversells. But of a hundred buyers who read the same version one wins and \
         ninety-nine lose, although there are units for all of them: without retries it undersells \
         badly, and with them most of the work is thrown away.",
        "它不会超卖。但一百个人读到同一个版本号，只有一个成功，另外九十九个失败——哪怕货足够每人一件：不重试就严重少卖，重试又白做大量的工。",
    ),
    break_it: Words::new("Set retries to 0.", "把 retries 设为 0。"),
    instead: Words::new(
        "The version guards more than is needed: all that matters is that the stock does not fall \
         below zero (8).",
        "版本号管得太宽了：真正要紧的只是库存不小于零（第 8 种）。",
    ),
    promise: Promise { one_node: HARMS, across_nodes: HARMS },
    needs: &[],
    options: &[retries(
        10_000,
        Words::new(
            "How often a buyer looks again. Every failure is somebody else's success, so as many \
             retries as there are units are always enough. 0: a buyer who loses the race leaves, \
             and units stay.",
            "失败后重看几次。每次失败都意味着别人成功了一次，所以重试次数只要不少于库存就一定够。0：输掉一次就走人，货反而剩下。",
        ),
    )],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        Demonstration {
            shows: Harm::Undersells,
            teaches: Words::new(
                "Six buyers, five units, no second try: of any two who read the same version one \
                 goes home.",
                "六个买家、五件货、不重试：凡是读到同一版本的两个人，总有一个空手而归。",
            ),
            scenario: Scenario {
                buyers: 6,
                concurrency: 6,
                options: &[("retries", "0")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            shows: Harm::Contends,
            teaches: Words::new(
                "The losers are told that others were faster.",
                "失败者得到的回答是“别人更快”。",
            ),
            scenario: Scenario { options: &[("retries", "0")], ..Scenario::SMALL },
        },
        Demonstration {
            shows: Harm::Holds,
            teaches: Words::new("With retries everything is sold.", "允许重试，就能全部卖完。"),
            scenario: Scenario { buyers: 6, concurrency: 6, ..Scenario::SMALL },
        },
    ],
    routes_by_buyer: false,
    code: include_str!("s06_version_column.rs"),
};

const HARMS: Harms = Harms { oversells: Never, undersells: Possible, duplicates: Never };

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
        for _ in 0..=stand.whole("retries") {
            let mut sql = stand.sql().await?;
            let (remaining, version): (i32, i64) = sqlx::query_as(
                "SELECT remaining, version FROM lab.stock WHERE arena = $1 AND item = 'thing'",
            )
            .bind(stand.arena())
            .fetch_one(sql.send())
            .await?;
            if remaining < 1 {
                return Ok(Outcome::SoldOut);
            }
            // After the version: an order that is written from here on changes it.
            if stand.has_bought(sql.send(), buyer).await? {
                return Ok(Outcome::Duplicate);
            }
            drop(sql);

            stand.meet("the version is read").await; // somebody else reads the same one
            stand.pause().await;
            stand.work().await;

            let mut transaction = stand.begin().await?;
            let outcome = self.sell(&mut transaction, buyer, version).await;
            let outcome = transaction.end(outcome).await?;
            stand.crash_point("committed").await;
            if outcome != Outcome::Contended {
                return Ok(outcome);
            }
        }
        Ok(Outcome::Contended)
    }
}

impl Node {
    async fn sell(
        &self,
        transaction: &mut Transaction,
        buyer: &Buyer,
        version: i64,
    ) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let taken = sqlx::query(
            "UPDATE lab.stock SET remaining = remaining - 1, version = version + 1
             WHERE arena = $1 AND item = 'thing' AND version = $2",
        )
        .bind(stand.arena())
        .bind(version)
        .execute(transaction.send())
        .await?;
        if taken.rows_affected() == 0 {
            return Ok(Outcome::Contended);
        }
        stand.crash_point("the stock is written").await;
        stand.write_order(transaction.send(), buyer).await
    }
}
