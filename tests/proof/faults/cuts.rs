//! The append-only file is cut at random: what was answered before the cut must be there.

use super::*;
use tokio::sync::mpsc;

struct Workbench {
    redis: RedisProcess,
    services: Services,
    accepted: mpsc::Receiver<AcceptedBatch>,
    sale: SaleId,
    dice: Random,
}

struct Bought {
    user: UserId,
    id: OrderId,
    safe_from: u64,
}

impl Workbench {
    async fn start(servers: &Servers) -> Self {
        let safe = ["--appendfsync", "always", "--aof-load-truncated", "yes"];
        let redis = RedisProcess::start(&servers.folder("cut"), free_port(), &safe);
        redis.until_ready().await;
        let database = servers.database().await;
        let (services, accepted) = services_without_tasks(&database, &redis.url(), "");
        let given = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or(now_ms().cast_unsigned());
        println!("cuts: SEED={seed}");
        let (sale, dice) = (SaleId::from_i64(0), Random::new(seed));
        let mut bench = Self { redis, services, accepted, sale, dice };
        bench.rebuild().await;
        bench.sale = new_sale(&bench.services, 60, None).await;
        bench
    }

    async fn rebuild(&self) {
        let mut suspects = HashSet::new();
        wait_for!(self.services.rebuild.step(&mut suspects).await.is_ok());
    }

    async fn begin(&mut self) {
        self.redis.kill();
        self.redis.empty().expect("its files");
        while self.accepted.try_recv().is_ok() {}
        let forget = "TRUNCATE orders CASCADE; UPDATE sales SET taken = 0;";
        self.services.databases.postgres.execute(forget).await.expect("executes");
        self.redis.come_back().await.expect("redis starts");
        self.rebuild().await;
    }

    async fn buy(&mut self) -> Vec<Bought> {
        let mut bought = Vec::new();
        for _ in 0..3 + self.dice.below(6) {
            let users: Vec<UserId> = (0..=self.dice.below(5)).map(|_| UserId::random()).collect();
            let admission = &self.services.admission;
            let asked = users.iter().map(|user| admission.purchase(self.sale, *user, None));
            let answers = join_all(asked).await;
            let (_, safe_from) = self.redis.last_increment().expect("a file");
            for (user, answer) in users.into_iter().zip(answers) {
                let Ok(PurchaseResult::Accepted { order_id: id, .. }) = answer else {
                    panic!("{answer:?}");
                };
                bought.push(Bought { user, id, safe_from });
            }
            while let Ok(batch) = self.accepted.try_recv() {
                if self.dice.below(2) == 0 {
                    self.services.orders.persist(&[batch], Expect::New).await.expect("written");
                }
            }
        }
        bought
    }

    async fn rows(&self) -> HashSet<(OrderId, UserId)> {
        let rows = sqlx::query_as("SELECT id, user_id FROM orders");
        let rows: Vec<_> = rows.fetch_all(&self.services.databases.postgres).await.expect("rows");
        rows.into_iter().collect()
    }

    /// How many were bought, were on disk before the cut and so must not be touched, are kept.
    async fn round(&mut self) -> [usize; 3] {
        self.begin().await;
        let (_, before) = self.redis.last_increment().expect("a file");
        let bought = self.buy().await;
        let written = self.rows().await;
        self.redis.kill();
        let (_, length) = self.redis.last_increment().expect("a file");
        // Half of the cuts anywhere, which is mostly in the function library at the beginning.
        let from = before.min(length) * self.dice.below(2);
        let at = from + self.dice.below(length - from + 1);
        self.redis.cut(at).expect("the file is cut");
        self.redis.come_back().await.expect("redis starts");
        self.rebuild().await;
        let audit = wait_for!("the sale is quiescent", {
            let audit = self.services.auditor.audit(self.sale).await.ok()?;
            audit.quiescent.then_some(audit)
        });
        let context = format!("cut at {at} of {length}: {audit:#?}");
        assert!(audit.ok && audit.conserved == Some(true), "{context}");
        assert!(audit.live >= written.len() as i64, "a row is gone; {context}");
        let rows = self.rows().await;
        let is_kept = |order: &&Bought| rows.contains(&(order.id, order.user));
        let safe = bought.iter().filter(|order| order.safe_from <= at);
        for order in safe.clone() {
            assert!(is_kept(&order), "order {} is lost; {context}", order.id);
        }
        let kept = bought.iter().filter(is_kept).count();
        assert_eq!(rows.len(), kept, "nobody bought these; {context}");
        [bought.len(), safe.count(), kept]
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_cut_anywhere_breaks_nothing() {
    let cuts = std::env::var("CUTS").ok();
    let cuts: u32 = cuts.map_or(12, |cuts| cuts.parse().expect("CUTS is a number"));
    let servers = Servers::own().await;
    let mut bench = Workbench::start(&servers).await;
    let [mut bought, mut safe, mut kept] = [0; 3];
    for _ in 0..cuts {
        let outcome = bench.round().await;
        (bought, safe, kept) = (bought + outcome[0], safe + outcome[1], kept + outcome[2]);
    }
    println!("{cuts} cuts: of {bought} orders {safe} were on disk before, {kept} are kept");
    assert!(kept >= safe && safe > 0, "no cut was behind an order");
    assert!(kept < bought || cuts < 5, "no cut took anything away");
}
