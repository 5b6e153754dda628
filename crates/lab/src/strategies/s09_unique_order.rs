//! 9. `unique-order`: the database refuses a second order.

use crate::{
    selling::{Buyer, Opening, Outcome, Sell, Trouble, ready},
    stand::{Stand, Transaction, new_order_id},
    strategy::{
        Demonstration, Family, Harm, Harms, Never, OptionKind, OptionSpec, Possible, Promise,
        Scenario, Strategy, Words,
    },
};

pub const STRATEGY: Strategy = Strategy {
    number: 9,
    id: "unique-order",
    family: Family::Database,
    title: Words::new("A unique index says \"one each\"", "唯一索引：一人一单"),
    idea: Words::new(
        "One order per buyer is a constraint, so write it as one: a unique index on sale and \
         buyer. Insert the order first; if the index refuses it, the stock has not been touched. \
         Then take a unit by a conditional update, all in one transaction.",
        "“一人一单”是一条约束，那就写成约束：在（活动，买家）上建唯一索引。先插订单，索引拒绝时库存还没动过；再用带条件的扣减取一件，全在一个事务里。",
    ),
    source: Words::new(
        "The usual last line of defence in flash-sale articles; here as the first. PostgreSQL \
         manual, \"INSERT ... ON CONFLICT\".",
        "秒杀文章里常见的“最后一道防线”，这里放到第一道。PostgreSQL 手册 “INSERT … ON CONFLICT”。",
    ),
    fails: Words::new(
        "It does not, in this order. The other way round, with the stock taken first and not given \
         back, every second click eats a unit: nobody oversells, and units are missing at the end.",
        "按这个顺序它不会错。反过来——先扣库存，发现重复后又不还——每一次重复点击都会吃掉一件：没有超卖，最后却少了货。",
    ),
    break_it: Words::new(
        "order=stock-first, and let buyers click twice (duplicate_share).",
        "设 order=stock-first，并让买家连点两下（duplicate_share）。",
    ),
    instead: Words::new(
        "Keep it, whatever else decides: a constraint holds also against the bug that is written \
         next year.",
        "无论由谁裁决，都请保留它：约束连明年才写出来的 bug 也挡得住。",
    ),
    promise: Promise { one_node: HARMS, across_nodes: HARMS },
    needs: &[],
    options: &[OptionSpec {
        name: "order",
        teaches: Words::new(
            "order-first: the duplicate is found before the stock moves. stock-first: the stock is \
             taken in a transaction of its own, and a duplicate does not give it back.",
            "order-first：先发现重复，再动库存。stock-first：扣库存是单独一个事务，发现重复时不归还。",
        ),
        kind: OptionKind::Choice(&["order-first", "stock-first"]),
    }],
    crash_points: &["the order is written", "committed"],
    demonstrations: &[
        Demonstration {
            shows: Harm::Undersells,
            teaches: Words::new(
                "Stock first: five people click twice, and the second clicks eat what the others \
                 would have bought.",
                "先扣库存：五个人都连点两下，第二下吃掉了别人本可以买到的货。",
            ),
            scenario: Scenario {
                buyers: 5,
                concurrency: 1,
                duplicates_percent: 100,
                options: &[("order", "stock-first")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            shows: Harm::Holds,
            teaches: Words::new("Order first: everybody gets one.", "先插订单：每个人都买到一件。"),
            scenario: Scenario {
                buyers: 5,
                concurrency: 10,
                duplicates_percent: 100,
                nodes: 3,
                ..Scenario::SMALL
            },
        },
    ],
    routes_by_buyer: false,
    code: include_str!("s09_unique_order.rs"),
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
        let stock_first = stand.choice("order") == "stock-first";
        let mut transaction = stand.begin().await?;
        if stock_first {
            if !self.take_one(&mut transaction).await? {
                return transaction.end(Ok(Outcome::SoldOut)).await;
            }
            transaction.commit().await?; // from here on nobody gives the unit back
            transaction = stand.begin().await?;
        }
        let mut outcome = self.write_order(&mut transaction, buyer).await;
        stand.crash_point("the order is written").await;

        // The same buyer's second click waits at the index.
        stand.meet("the order is written").await;
        stand.pause().await;
        stand.work().await;

        if matches!(outcome, Ok(Outcome::Sold { .. }))
            && !stock_first
            && !self.take_one(&mut transaction).await?
        {
            outcome = Ok(Outcome::SoldOut); // rolled back, and the order with it
        }
        let outcome = transaction.end(outcome).await;
        stand.crash_point("committed").await;
        outcome
    }
}

impl Node {
    async fn take_one(&self, transaction: &mut Transaction) -> Result<bool, Trouble> {
        let taken = sqlx::query(
            "UPDATE lab.stock SET remaining = remaining - 1 WHERE arena = $1 AND item = 'thing' \
             AND remaining > 0",
        )
        .bind(self.stand.arena())
        .execute(transaction.send())
        .await?;
        Ok(taken.rows_affected() > 0)
    }

    /// The buyer's first order, or second, as far as the limit goes. Waits for a click that is
    /// under way.
    async fn write_order(
        &self,
        transaction: &mut Transaction,
        buyer: &Buyer,
    ) -> Result<Outcome, Trouble> {
        for nth in 1..=self.stand.per_user_limit() {
            let order_id = new_order_id();
            let written = sqlx::query(
                "INSERT INTO lab.unique_orders (id, arena, buyer, nth) VALUES ($1, $2, $3, $4)
                 ON CONFLICT ON CONSTRAINT lab_unique_orders_buyer_nth_unique DO NOTHING",
            )
            .bind(&order_id)
            .bind(self.stand.arena())
            .bind(&buyer.name)
            .bind(nth)
            .execute(transaction.send())
            .await?;
            if written.rows_affected() > 0 {
                return Ok(Outcome::Sold { order_id });
            }
        }
        Ok(Outcome::Duplicate)
    }
}
