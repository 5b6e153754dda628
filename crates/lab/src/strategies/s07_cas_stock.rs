//! 7. `cas-stock`: write only if the stock is still what I saw.

use crate::{
    options::retries,
    selling::{Buyer, Opening, Outcome, Sell, Trouble, opening},
    stand::{Stand, Transaction},
    strategy::{
        Demonstration, Family, Harm, Harms, Never, OptionKind, OptionSpec, Possible, Promise,
        Scenario, Strategy, Words,
    },
};
use std::{
    sync::atomic::{AtomicBool, Ordering::AcqRel},
    time::Duration,
};
use tokio::sync::Semaphore;

pub const STRATEGY: Strategy = Strategy {
    number: 7,
    id: "cas-stock",
    family: Family::Database,
    title: Words::new("WHERE stock = what I saw", "乐观锁：比较库存本身（CAS）"),
    idea: Words::new(
        "Why keep a version when the stock itself changes with every sale? Compare and set the \
         stock: write one less only if it is still the number that was read.",
        "每卖一件库存都会变，何必另设版本号？直接比较并设置库存：只有库存还是读到的那个数时，才写回少一件。",
    ),
    source: Words::new(
        "《秒杀》 (course notes), optimistic lock by comparing the value itself (CAS). The notes do \
         not speak of ABA.",
        "《秒杀》课程笔记“CAS 法”：以库存代替版本号。笔记没有提到 ABA 问题。",
    ),
    fails: Words::new(
        "As with a version, most attempts fail under load. And a number can come back: 4, 3, and \
         after a cancellation 4 again (ABA). The stock is right all the same, but whatever else \
         was decided from the first look is stale, such as \"this buyer has no order yet\".",
        "和版本号一样，高并发下多数尝试都会失败。而且数字会“回来”：4 变 3，有人退单又变回 4（ABA）。库存本身没错，但凭第一眼做出的其他判断已经过期了，比如“这个买家还没有订\
         单”。",
    ),
    break_it: Words::new(
        "aba=on: an early order is cancelled between the two clicks of one person. retries=0 shows \
         how many attempts fail.",
        "aba=on：在同一个人的两次点击之间，有一个早先的订单被取消。retries=0 可以看到有多少次尝试失败。",
    ),
    instead: Words::new(
        "A version that only ever grows does not come back (6); a condition that says what is \
         meant needs neither (8); and one order per person is the unique index's task (9).",
        "只增不减的版本号不会“回来”（第 6 种）；直接写出真正的条件则两者都不需要（第 8 种）；一人一单交给唯一索引（第 9 种）。",
    ),
    promise: Promise { one_node: HARMS, across_nodes: HARMS },
    needs: &[],
    options: &[
        retries(
            10_000,
            Words::new(
                "How often a buyer looks again. 0: most go home although there are units.",
                "失败后重看几次。0：明明有货，大多数人却空手而归。",
            ),
        ),
        OptionSpec {
            name: "aba",
            teaches: Words::new(
                "on: somebody has bought before the storm, and cancels after the first sale: the \
                 stock is back at the number that the next buyer has read.",
                "on：压测之前有人先买了一件，第一笔成交之后他退单：库存又变回下一个买家读到的那个数。",
            ),
            kind: OptionKind::Choice(&["off", "on"]),
        },
    ],
    crash_points: &["the stock is written"],
    demonstrations: &[
        Demonstration {
            shows: Harm::Duplicates,
            teaches: Words::new(
                "ABA: both clicks read 4. The first sells (3), an early buyer cancels (4), and the \
                 second click finds its 4.",
                "ABA：两次点击都读到 4。第一次卖出（3），早先的买家退单（又是 4），第二次点击正好又看到自己的 4。",
            ),
            scenario: Scenario { options: &[("aba", "on")], ..Scenario::DOUBLE_CLICK },
        },
        Demonstration {
            shows: Harm::Holds,
            teaches: Words::new(
                "Without a cancellation the second click looks again, and finds its order.",
                "没有退单时，第二次点击会失败重看，然后查到自己的订单。",
            ),
            scenario: Scenario::DOUBLE_CLICK,
        },
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
    ],
    routes_by_buyer: false,
    code: include_str!("s07_cas_stock.rs"),
};

const HARMS: Harms = Harms { oversells: Never, undersells: Possible, duplicates: Possible };

/// The early buyer of `aba=on`, who cancels after the first sale.
struct EarlyBird {
    sold_first: AtomicBool,
    has_cancelled: Semaphore,
}

const EARLY_BIRD: &str = "early bird";

impl EarlyBird {
    async fn buy(stand: &Stand) -> Result<(), Trouble> {
        let mut transaction = stand.begin().await?;
        // Once in an arena: the first node that opens does it.
        let taken = sqlx::query(
            "UPDATE lab.stock SET remaining = remaining - 1, version = 1
             WHERE arena = $1 AND item = 'thing' AND version = 0",
        )
        .bind(stand.arena())
        .execute(transaction.send())
        .await?;
        if taken.rows_affected() > 0 {
            stand.write_order(transaction.send(), &Buyer { name: EARLY_BIRD.to_owned() }).await?;
        }
        transaction.commit().await
    }

    /// The first buyer goes on; the others wait until the early bird has cancelled.
    async fn let_the_first_go(&self) {
        if self.sold_first.swap(true, AcqRel) {
            let _ =
                tokio::time::timeout(Duration::from_secs(1), self.has_cancelled.acquire()).await;
        }
    }

    async fn cancel(&self, stand: &Stand) -> Result<(), Trouble> {
        let mut sql = stand.sql().await?;
        sqlx::query(
            "WITH gone AS (DELETE FROM lab.orders WHERE arena = $1 AND buyer = $2 RETURNING id)
             UPDATE lab.stock SET remaining = remaining + (SELECT count(*) FROM gone)
             WHERE arena = $1 AND item = 'thing'",
        )
        .bind(stand.arena())
        .bind(EARLY_BIRD)
        .execute(sql.send())
        .await?;
        self.has_cancelled.close();
        Ok(())
    }
}

// --- the purchase

struct Node {
    stand: Stand,
    early_bird: Option<EarlyBird>,
}

pub fn open(stand: Stand) -> Opening {
    opening(async {
        let mut early_bird = None;
        if stand.choice("aba") == "on" {
            EarlyBird::buy(&stand).await?;
            early_bird = Some(EarlyBird {
                sold_first: AtomicBool::new(false),
                has_cancelled: Semaphore::new(0),
            });
        }
        Ok(Node { stand, early_bird })
    })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        for _ in 0..=stand.whole("retries") {
            let mut sql = stand.sql().await?;
            let remaining: i32 = sqlx::query_scalar(
                "SELECT remaining FROM lab.stock WHERE arena = $1 AND item = 'thing'",
            )
            .bind(stand.arena())
            .fetch_one(sql.send())
            .await?;
            if remaining < 1 {
                return Ok(Outcome::SoldOut);
            }
            if stand.has_bought(sql.send(), buyer).await? {
                return Ok(Outcome::Duplicate);
            }
            drop(sql);

            stand.meet("the stock is read").await; // somebody else reads the same number
            stand.pause().await;
            stand.work().await;
            if let Some(early_bird) = &self.early_bird {
                early_bird.let_the_first_go().await;
            }

            let mut transaction = stand.begin().await?;
            let outcome = self.sell(&mut transaction, buyer, remaining).await;
            let outcome = transaction.end(outcome).await?;
            if let Some(early_bird) = &self.early_bird {
                early_bird.cancel(stand).await?;
            }
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
        seen: i32,
    ) -> Result<Outcome, Trouble> {
        let stand = &self.stand;
        let taken = sqlx::query(
            "UPDATE lab.stock SET remaining = remaining - 1 WHERE arena = $1 AND item = 'thing' \
             AND remaining = $2",
        )
        .bind(stand.arena())
        .bind(seen)
        .execute(transaction.send())
        .await?;
        if taken.rows_affected() == 0 {
            return Ok(Outcome::Contended);
        }
        stand.crash_point("the stock is written").await;
        stand.write_order(transaction.send(), buyer).await
    }
}
