//! 10. `serializable`: the naive purchase, and the database promises that it went as if alone.

use crate::{
    options::retries,
    selling::{Buyer, Opening, Outcome, Sell, Trouble, ready},
    stand::{Stand, Transaction},
    strategy::{
        Demonstration, Family, Harm, Harms, Never, Possible, Promise, Scenario, Strategy, Words,
    },
};

pub const STRATEGY: Strategy = Strategy {
    number: 10,
    id: "serializable",
    family: Family::Database,
    title: Words::new("BEGIN ISOLATION LEVEL SERIALIZABLE", "可串行化隔离级别"),
    idea: Words::new(
        "Write the purchase as if there were nobody else, and ask the database to see to it: \
         whatever commits under SERIALIZABLE could have happened one after the other. What could \
         not is ended with error 40001 and has to be tried again.",
        "就当没有别人，照最简单的写法写，让数据库负责：在 SERIALIZABLE 下能提交的事务，效果等同于一个接一个执行；做不到的会以 40001 报错，由你重试。",
    ),
    source: Words::new(
        "PostgreSQL manual, \"Serializable Isolation Level\"; Cahill, Roehm, Fekete, \
         \"Serializable Isolation for Snapshot Databases\" (2008).",
        "PostgreSQL 手册 “Serializable Isolation Level”；Cahill、Röhm、Fekete 2008 年的论文 “Serializable \
         Isolation for Snapshot Databases”。",
    ),
    fails: Words::new(
        "It never sells wrong. Under load nearly all transactions are ended and tried again: \
         correct, and slow. Without retries buyers are turned away for nothing.",
        "它从不卖错。但压力一大，几乎所有事务都会被中止重来：正确，但是慢。不重试的话，买家会被无缘无故地拒绝。",
    ),
    break_it: Words::new("Set retries to 0.", "把 retries 设为 0。"),
    instead: Words::new(
        "For one hot row a conditional update says the same for less (8). Keep SERIALIZABLE for \
         rules that no constraint can say.",
        "对一行热点来说，带条件的扣减花更少的代价做到同样的事（第 8 种）。SERIALIZABLE 留给那些约束表达不了的规则。",
    ),
    promise: Promise { one_node: HARMS, across_nodes: HARMS },
    needs: &[],
    options: &[retries(
        10_000,
        Words::new(
            "How often a purchase that was ended with 40001 is tried again. 0: the buyer is told \
             that others were faster.",
            "以 40001 中止的购买再试几次。0：买家会被告知“别人更快”。",
        ),
    )],
    crash_points: &["the stock is written", "committed"],
    demonstrations: &[
        Demonstration {
            shows: Harm::Undersells,
            teaches: Words::new(
                "Six buyers, five units, no second try.",
                "六个买家、五件货、不重试。",
            ),
            scenario: Scenario {
                buyers: 6,
                concurrency: 6,
                options: &[("retries", "0")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            shows: Harm::Notes(NOT_SERIALIZABLE),
            teaches: Words::new(
                "How often Postgres ends a transaction so that the others went as if alone.",
                "为了让其他事务“仿佛独自执行”，Postgres 中止了多少次事务。",
            ),
            scenario: Scenario::SMALL,
        },
        Demonstration {
            shows: Harm::Holds,
            teaches: Words::new(
                "The code of naive (1), and two clicks on two nodes.",
                "naive（第 1 种）的代码，两次点击落在两个节点上。",
            ),
            scenario: Scenario { nodes: 2, ..Scenario::DOUBLE_CLICK },
        },
    ],
    routes_by_buyer: false,
    code: include_str!("s10_serializable.rs"),
};

const HARMS: Harms = Harms { oversells: Never, undersells: Possible, duplicates: Never };
const NOT_SERIALIZABLE: &str = "40001 could not serialize";

// --- the purchase

struct Node {
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    ready(Node { stand })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        for _ in 0..=self.stand.whole("retries") {
            let mut transaction =
                self.stand.begin_with("BEGIN ISOLATION LEVEL SERIALIZABLE").await?;
            let outcome = self.sell(&mut transaction, buyer).await;
            let outcome = transaction.end(outcome).await;
            match &outcome {
                // Also at the commit.
                Err(trouble) if trouble.sqlstate().as_deref() == Some("40001") => {
                    self.stand.note(NOT_SERIALIZABLE)
                }
                _ => {
                    self.stand.crash_point("committed").await;
                    return outcome;
                }
            }
        }
        Ok(Outcome::Contended)
    }
}

impl Node {
    async fn sell(&self, transaction: &mut Transaction, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        if stand.has_bought(transaction.send(), buyer).await? {
            return Ok(Outcome::Duplicate);
        }
        let remaining: i32 = sqlx::query_scalar(
            "SELECT remaining FROM lab.stock WHERE arena = $1 AND item = 'thing'",
        )
        .bind(stand.arena())
        .fetch_one(transaction.send())
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
            .execute(transaction.send())
            .await?;
        stand.crash_point("the stock is written").await;
        stand.write_order(transaction.send(), buyer).await
    }
}
