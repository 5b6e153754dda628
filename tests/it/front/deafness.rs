//! Pause and close take effect on every instance before they answer, also on one that hears nothing of it: Redis
//! judges by its own state, which the operator's change reaches first. And no instance has to answer for that, so one
//! that is cut off or dead holds nothing up.

use crate::support::{
    Servers,
    app::{Options, Shopper, TestApp},
    plant::{IGNORE_THE_WINDOW, plant},
    proxy::{Address, Fault, Proxy},
};
use reqwest::{Method, StatusCode};
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// An operator's change takes three round trips; this is for a busy machine.
const SOON: Duration = Duration::from_secs(5);

fn port(proxy: &Proxy) -> std::net::SocketAddr {
    match proxy.address() {
        Address::Tcp(address) => *address,
        Address::Unix(path) => panic!("a unix socket: {}", path.display()),
    }
}

/// Two instances that hear each other, and two that will not.
struct Stage {
    app: TestApp,
    /// Sells, as long as Redis lets it, and learns nothing from Postgres any more.
    deaf: TestApp,
    /// Reaches neither store any more.
    cut_off: TestApp,
    networks: Vec<Proxy>,
}

impl Stage {
    async fn start(servers: &Servers) -> Self {
        let app = TestApp::start_on(servers, Options::default()).await;
        let socket = &servers.postgres.address().socket_dir;
        let postgres = Address::Unix(socket.join(".s.PGSQL.5432"));
        let redis = Address::Unix(servers.redis.socket());
        let mut networks = Vec::new();
        for target in [postgres.clone(), postgres, redis] {
            networks.push(Proxy::start(target).await);
        }
        let deaf = TestApp::launch(
            app.database.clone().through(port(&networks[0])),
            app.redis_url.clone(),
            app.prefix.clone(),
            Options::without_writer(),
        );
        let cut_off = TestApp::launch(
            app.database.clone().through(port(&networks[1])),
            format!("redis://{}", networks[2].address()),
            app.prefix.clone(),
            Options::without_writer(),
        );
        let (deaf, cut_off) = tokio::join!(deaf, cut_off);
        Self {
            app,
            deaf,
            cut_off,
            networks,
        }
    }

    /// A sale that every instance knows and sells.
    async fn sale(&self) -> String {
        let sale = self.app.sale(1_000_000, json!({})).await;
        for instance in [&self.app, &self.deaf, &self.cut_off] {
            instance.shopper().must_buy(&sale).await;
        }
        sale
    }

    async fn hear_nothing(&self) {
        for network in &self.networks {
            network.set(Fault::BlackHole).await;
        }
    }

    async fn finish(self) {
        for network in &self.networks {
            network.set(Fault::None).await;
            network.cut();
        }
        self.deaf.stop().await;
        self.cut_off.stop().await;
        self.app.finish().await;
    }
}

/// How many purchases that began after the operator's answer the deaf instance has accepted, and what it told the
/// others.
async fn accepted_after(stage: &Stage, sale: &str, action: &str) -> (usize, Vec<String>) {
    let enough = Arc::new(AtomicBool::new(false));
    let before = Arc::new(AtomicUsize::new(0));
    // A rush that is in the gate, in the script and on the way back when the operator acts.
    let rush: Vec<_> = (0..40)
        .map(|_| {
            let entrance = stage.deaf.entrance();
            let (sale, enough, before) = (sale.to_owned(), enough.clone(), before.clone());
            tokio::spawn(async move {
                while !enough.load(Relaxed) {
                    let reply = entrance.shopper().buy(&sale).await;
                    before.fetch_add(usize::from(reply.is_accepted()), Relaxed);
                }
            })
        })
        .collect();
    while before.load(Relaxed) < 100 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let path = format!("/api/v1/admin/sales/{sale}/{action}");
    let asked = Instant::now();
    let answer = stage.app.admin(Method::POST, &path, None).await;
    answer.assert(StatusCode::OK);
    let took = asked.elapsed();
    let late: Vec<Shopper> = (0..100).map(|_| stage.deaf.shopper()).collect();
    let late = TestApp::all_buy(late, sale).await;
    enough.store(true, Relaxed);
    for one in rush {
        one.await.expect("no panic");
    }
    assert!(took < SOON, "{action} took {took:?}");
    let accepted = late.iter().filter(|reply| reply.is_accepted());
    let codes = late.iter().map(|reply| reply.code().to_owned());
    (accepted.count(), codes.collect())
}

/// What an instance shows of a sale, from what it knows by itself.
async fn shown(app: &TestApp, sale: &str) -> String {
    let reply = app.get(&format!("/api/v1/sales/{sale}")).await;
    reply.text("state").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_hears_nothing_accepts_nothing_after_the_operators_answer() {
    let stage = Stage::start(Servers::shared().await).await;
    let (paused, closed) = (stage.sale().await, stage.sale().await);
    stage.hear_nothing().await;
    for (sale, action, refusal) in [(&paused, "pause", "paused"), (&closed, "close", "ended")] {
        let (accepted, codes) = accepted_after(&stage, sale, action).await;
        assert_eq!(accepted, 0, "{action}");
        assert!(codes.iter().all(|code| code == refusal), "{codes:?}");
        assert_eq!(shown(&stage.app, sale).await, refusal);
        // It has really heard nothing.
        assert_eq!(shown(&stage.deaf, sale).await, "open");
    }
    let app_database = stage.app.audit(&paused).await;
    assert!(app_database.ok, "{app_database:#?}");
    stage.finish().await;
}

/// The same with a function that does not look at the flags: then the deaf instance sells on, and this test sees it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_sells_on_is_noticed() {
    let servers = Servers::own().await;
    let stage = Stage::start(&servers).await;
    plant(&mut stage.app.redis().await, IGNORE_THE_WINDOW).await;
    let sale = stage.sale().await;
    stage.hear_nothing().await;
    let (accepted, _) = accepted_after(&stage, &sale, "pause").await;
    assert!(accepted > 0);
    stage.finish().await;
}
