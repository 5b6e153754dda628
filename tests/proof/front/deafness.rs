//! Pause and close hold everywhere before they answer, since Redis decides by its own state.

use super::*;
use crate::support::plant::{IGNORE_THE_WINDOW, plant};

struct Stage {
    app: TestApp,
    deaf: TestApp,
    cut_off: TestApp,
    networks: Vec<Proxy>,
}

impl Stage {
    async fn start(servers: &Servers) -> Self {
        let app = TestApp::start_on(servers, Options::default()).await;
        let postgres = Address::of_postgres(servers.postgres.address());
        let redis = Address::Unix(servers.redis.socket());
        let targets = [postgres.clone(), postgres, redis];
        let networks = join_all(targets.map(Proxy::start)).await;
        let launch = |postgres: &Proxy, redis: String| {
            let database = app.database.clone().through(postgres.address);
            TestApp::launch(database, redis, app.prefix.clone(), Options::without_writer())
        };
        let redis = format!("redis://{}", networks[2].address);
        let deaf = launch(&networks[0], app.redis_url.clone());
        let (deaf, cut_off) = tokio::join!(deaf, launch(&networks[1], redis));
        Self { app, deaf, cut_off, networks }
    }

    async fn sale(&self) -> String {
        let sale = self.app.sale(1_000_000, json!({})).await;
        for instance in [&self.app, &self.deaf, &self.cut_off] {
            instance.shopper().must_buy(&sale).await;
        }
        sale
    }

    async fn hear_nothing(&self) {
        join_all(self.networks.iter().map(|network| network.set(Fault::BlackHole))).await;
    }

    async fn finish(self) {
        for network in &self.networks {
            network.set(Fault::None).await;
            network.cut();
        }
        self.deaf.stop().await;
        self.cut_off.stop().await;
    }
}

/// What the deaf instance told those who asked after the operator was answered.
async fn told_after(stage: &Stage, sale: &str, action: &str) -> Vec<Reply> {
    // Purchases in the queue, in Redis and on the way back when the operator acts.
    let mut rush = Rush::default();
    for _ in 0..40 {
        let (entrance, sale, told) =
            (stage.deaf.entrance.clone(), sale.to_owned(), rush.told.clone());
        rush.lanes.spawn(async move {
            while !locked(&told).is_over {
                let reply = entrance.shopper().buy(&sale).await;
                locked(&told).answers += usize::from(reply.is_accepted());
            }
        });
    }
    rush.until(100, |told| told.answers).await;
    stage.app.steer(sale, action).await;
    let late = TestApp::all_buy(stage.deaf.shoppers(100), sale).await;
    rush.end().await;
    late
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_hears_nothing_accepts_nothing_after_the_operators_answer() {
    let stage = Stage::start(Servers::shared().await).await;
    let (paused, closed) = (stage.sale().await, stage.sale().await);
    stage.hear_nothing().await;
    for (sale, action, refusal) in [(&paused, "pause", "paused"), (&closed, "close", "ended")] {
        let late = told_after(&stage, sale, action).await;
        // An accepted one has none. Of a busy machine some hear that they should come again.
        let codes: Vec<&str> = late.iter().map(Reply::code).collect();
        let is_right = |code: &&str| [refusal, "unavailable"].contains(code);
        assert!(codes.iter().all(is_right) && codes.contains(&refusal), "{action}: {codes:?}");
        assert_eq!(stage.app.sale_now(sale).await["state"], refusal);
        assert_eq!(stage.deaf.sale_now(sale).await["state"], "open");
    }
    let audit = stage.app.audit(&paused).await;
    assert!(audit.ok, "{audit:#?}");
    stage.finish().await;
}

/// With a function that ignores the flags the deaf instance sells on, and this test sees it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_sells_on_is_noticed() {
    let servers = Servers::own().await;
    let stage = Stage::start(&servers).await;
    plant(&mut stage.app.redis().await, IGNORE_THE_WINDOW).await;
    let sale = stage.sale().await;
    stage.hear_nothing().await;
    assert!(told_after(&stage, &sale, "pause").await.iter().any(Reply::is_accepted));
    stage.finish().await;
}
