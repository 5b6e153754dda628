//! The append-only file of Redis is cut at a random byte, again and again. With `appendfsync
//! always` an order that was answered before the cut must be there. `CUTS=1000` is the recorded
//! run, `SEED=…` repeats one.

use super::{OwnRedis, cut, dice};
use crate::support::{
    Servers,
    app::{eventually, shop_without_loops},
    random::Random,
};
use flash_sale::{
    domain::{Admission, OrderId, SaleId, UserId},
    embedded::{RedisFsync, RedisSettings},
    sale::{Audit, Shop, catalogue::NewSale, log::AcceptedBatch, orders::Expect},
    worker::{rebuild, writer},
};
use futures_util::future::join_all;
use sqlx::Executor;
use std::{
    collections::HashSet,
    fs,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::mpsc;

const STOCK: i64 = 60;

/// A shop whose every step the test makes itself.
struct Workbench {
    redis: OwnRedis,
    shop: Arc<Shop>,
    accepted: mpsc::Receiver<AcceptedBatch>,
    sale: SaleId,
    dice: Random,
}

/// An order that was answered, and how long the file was then.
struct Bought {
    user: UserId,
    id: OrderId,
    safe_from: u64,
}

/// What one cut did.
struct Outcome {
    bought: usize,
    /// Orders that the cut must not touch, because they were on disk before it.
    safe: usize,
    kept: usize,
}

impl Workbench {
    async fn start(servers: &Servers) -> Self {
        let settings = RedisSettings {
            fsync: RedisFsync::Always,
            extra_args: ["--aof-load-truncated", "yes"].map(str::to_owned).to_vec(),
        };
        let redis = OwnRedis::start(servers.folder("cut"), settings).await;
        let database = servers.database().await;
        let (shop, accepted) = shop_without_loops(&database, &redis.server().url(), "");
        let mut bench = Self {
            redis,
            shop,
            accepted,
            sale: SaleId::from_i64(0),
            dice: dice("cuts"),
        };
        bench.rebuild().await;
        let sale = bench.shop.create_sale(NewSale {
            title: "a thing".to_owned(),
            price_cents: 100,
            stock: STOCK,
            ..NewSale::default()
        });
        bench.sale = sale.await.expect("a sale").sale.id;
        bench
    }

    async fn rebuild(&self) {
        let mut suspects = HashSet::new();
        eventually("redis is approved", async || {
            rebuild::step(&self.shop, &mut suspects).await.ok()
        })
        .await;
    }

    /// A new Redis, and a sale of which nothing is sold.
    async fn begin(&mut self) {
        self.redis.kill();
        fs::remove_dir_all(self.redis.files()).expect("its files");
        while self.accepted.try_recv().is_ok() {}
        let forget = "TRUNCATE orders CASCADE; UPDATE sales SET taken = 0;";
        let forgotten = self.shop.postgres.execute(forget);
        let (forgotten, ()) = tokio::join!(forgotten, self.redis.start_again());
        forgotten.expect("executes");
        self.rebuild().await;
    }

    /// Some purchases one after the other, some at once.
    async fn buy(&mut self) -> Vec<Bought> {
        let mut bought = Vec::new();
        for _ in 0..3 + self.dice.below(6) {
            let users: Vec<UserId> = (0..=self.dice.below(5)).map(|_| UserId::random()).collect();
            let asked = users
                .iter()
                .map(|user| self.shop.purchase(self.sale, *user, None));
            let answers = join_all(asked).await;
            let (_, safe_from) = self.redis.last_incr();
            for (user, answer) in users.into_iter().zip(answers) {
                let Ok(Admission::Accepted { order_id: id, .. }) = answer else {
                    panic!("{answer:?}");
                };
                bought.push(Bought {
                    user,
                    id,
                    safe_from,
                });
            }
            while let Ok(batch) = self.accepted.try_recv() {
                if self.dice.below(2) == 0 {
                    writer::persist(&self.shop, &[batch], Expect::New)
                        .await
                        .expect("written");
                }
            }
        }
        bought
    }

    async fn round(&mut self) -> Outcome {
        self.begin().await;
        let (_, before) = self.redis.last_incr();
        let bought = self.buy().await;
        let written: i64 = sqlx::query_scalar("SELECT count(*) FROM orders")
            .fetch_one(&self.shop.postgres)
            .await
            .expect("a number");
        self.redis.kill();
        let (file, length) = self.redis.last_incr();
        // Half of the cuts anywhere, which is mostly in the function library at the beginning.
        let from = before.min(length) * self.dice.below(2);
        let at = from + self.dice.below(length - from + 1);
        cut(&file, at);
        self.redis.start_again().await;
        self.rebuild().await;

        let audit = self.audit().await;
        let context = format!("cut at {at} of {length}: {audit:#?}");
        assert!(audit.ok && audit.conserved == Some(true), "{context}");
        assert!(audit.live >= written, "a row is gone; {context}");
        let rows: Vec<(OrderId, UserId)> = sqlx::query_as("SELECT id, user_id FROM orders")
            .fetch_all(&self.shop.postgres)
            .await
            .expect("the orders");
        let rows: HashSet<(OrderId, UserId)> = rows.into_iter().collect();
        let is_kept = |order: &&Bought| rows.contains(&(order.id, order.user));
        let safe = bought.iter().filter(|order| order.safe_from <= at);
        for order in safe.clone() {
            assert!(is_kept(&order), "order {} is lost; {context}", order.id);
        }
        let kept = bought.iter().filter(is_kept).count();
        assert_eq!(rows.len(), kept, "nobody bought these; {context}");
        Outcome {
            bought: bought.len(),
            safe: safe.count(),
            kept,
        }
    }

    async fn audit(&self) -> Audit {
        eventually("the sale is quiescent", async || {
            let audit = self.shop.audit(self.sale).await.ok()?;
            audit.quiescent.then_some(audit)
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_cut_anywhere_breaks_nothing() {
    let cuts: u32 = std::env::var("CUTS")
        .ok()
        .map_or(12, |cuts| cuts.parse().expect("CUTS is a number"));
    let servers = Servers::own().await;
    let mut bench = Workbench::start(&servers).await;
    let (mut bought, mut safe, mut kept) = (0, 0, 0);
    let mut longest = Duration::ZERO;
    let began = Instant::now();
    for _ in 0..cuts {
        let round = Instant::now();
        let outcome = bench.round().await;
        longest = longest.max(round.elapsed());
        bought += outcome.bought;
        safe += outcome.safe;
        kept += outcome.kept;
    }
    println!(
        "{cuts} cuts in {:?} (the longest {longest:?}): of {bought} orders {safe} were on disk before the cut, {kept} are kept, no violation",
        began.elapsed()
    );
    // Otherwise nothing was shown.
    assert!(kept >= safe && safe > 0, "no cut was behind an order");
    assert!(kept < bought || cuts < 5, "no cut took anything away");
}
