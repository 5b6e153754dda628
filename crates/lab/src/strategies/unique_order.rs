//! `unique-order`: the database refuses a second order.

use crate::prelude::*;

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
    async fn take_one(&self, transaction: &mut Sql) -> Result<bool, Trouble> {
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
    async fn write_order(&self, transaction: &mut Sql, buyer: &Buyer) -> Result<Outcome, Trouble> {
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

pub const STRATEGY: Strategy = Strategy {
    id: "unique-order",
    family: Family::Database,
    promise: Promise::everywhere(HARMS),
    options: &[OptionSpec {
        name: "order",
        kind: crate::strategy::OptionKind::Choice(&["order-first", "stock-first"]),
    }],
    crash_points: &["the order is written", "committed"],
    demonstrations: &[
        Demonstration {
            id: "undersells",
            shows: Harm::Undersells,
            scenario: Scenario {
                buyers: 5,
                concurrency: 1,
                duplicates_percent: 100,
                options: &[("order", "stock-first")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            id: "holds",
            shows: Harm::Holds,
            scenario: Scenario {
                buyers: 5,
                concurrency: 10,
                duplicates_percent: 100,
                nodes: 3,
                ..Scenario::SMALL
            },
        },
    ],
    ..Strategy::PLAIN
};

const HARMS: Harms = Harms { oversells: Never, undersells: Possible, duplicates: Never };
