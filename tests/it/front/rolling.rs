//! A rolling upgrade: three instances behind a real proxy are replaced one after the other, under a steady load, and
//! no client sees a refused connection, a broken answer, or a 5xx.

use super::{Deployment, Kind, Proxy};
use crate::support::app::eventually;
use reqwest::{Client, StatusCode};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    sync::{
        self, Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{sync::Mutex, task::JoinSet};

const LANES: usize = 12;
/// Longer than the proxies keep idle connections (2 s), and than Caddy needs to notice (1 s).
const NOTICE: &str = "4";
/// What an instance has after SIGTERM: the notice, and 10 s.
const GONE_WITHIN: Duration = Duration::from_secs(14);

/// One deployment at a time: a machine that is too slow for three of them would be seen as an instance that fails.
static TURN: Mutex<()> = Mutex::const_new(());

/// What clients have seen so far.
#[derive(Default)]
struct Seen {
    answers: AtomicUsize,
    /// What went wrong, and how often.
    failures: sync::Mutex<BTreeMap<String, usize>>,
    /// Orders that were answered 202.
    orders: sync::Mutex<Vec<i64>>,
}

impl Seen {
    fn fail(&self, what: String) {
        let mut failures = self.failures.lock().expect("no panic");
        *failures.entry(what).or_default() += 1;
    }

    /// Notes an answer; its body, if it is one of a program that works.
    async fn note(&self, what: &str, sent: reqwest::Result<reqwest::Response>) -> Option<Value> {
        let response = match sent {
            Ok(response) => response,
            Err(error) => {
                self.fail(format!("{what}: {}", with_causes(&error)));
                return None;
            }
        };
        let status = response.status();
        if status.is_server_error() {
            let text = response.text().await.unwrap_or_default();
            let first = text.lines().next().unwrap_or_default().to_owned();
            self.fail(format!("{what}: {status} {first}"));
            return None;
        }
        match response.json().await {
            Ok(body) => {
                self.answers.fetch_add(1, Relaxed);
                Some(body)
            }
            Err(error) => {
                self.fail(format!("{what}: {status}, {}", with_causes(&error)));
                None
            }
        }
    }

    fn failed(&self) -> usize {
        self.failures.lock().expect("no panic").values().sum()
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text += &format!(": {cause}");
        next = cause.source();
    }
    text
}

/// A client who keeps their connection and buys, looks at the order, and looks at the sale, again and again. Nobody
/// retries: what fails is seen.
async fn shop_on(
    base: String,
    sale: String,
    tokens: impl Fn() -> String,
    seen: Arc<Seen>,
    enough: Arc<AtomicBool>,
) {
    let client = Client::new();
    while !enough.load(Relaxed) {
        let token = tokens();
        let url = format!("{base}/api/v1/sales/{sale}/orders");
        let bought = client.post(url).bearer_auth(&token).send().await;
        if let Some(body) = seen.note("buying", bought).await {
            let order = body["order_id"].as_str().map(str::to_owned);
            let Some(order) = order else {
                seen.fail(format!("buying: {body}"));
                continue;
            };
            let id = order.parse().expect("a number");
            seen.orders.lock().expect("no panic").push(id);
            let url = format!("{base}/api/v1/orders/{order}");
            let looked = client.get(url).bearer_auth(&token).send().await;
            seen.note("looking at the order", looked).await;
        }
        let url = format!("{base}/api/v1/sales/{sale}");
        let looked = client.get(url).send().await;
        seen.note("looking at the sale", looked).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A deployment behind a proxy, with shoppers.
struct Rush {
    deployment: Deployment,
    proxy: Proxy,
    sale: String,
    seen: Arc<Seen>,
    enough: Arc<AtomicBool>,
    lanes: JoinSet<()>,
}

impl Rush {
    async fn start(kind: Kind, notice: &str) -> Self {
        let settings = [("DRAIN_NOTICE", notice), ("TRUST_PROXY", "127.0.0.1")];
        let deployment = Deployment::start(3, &settings).await;
        let proxy = Proxy::start(kind, &deployment.home, &deployment.addresses()).await;
        let sale = deployment.sale(1_000_000).await;
        let mut rush = Self {
            deployment,
            proxy,
            sale,
            seen: Arc::default(),
            enough: Arc::default(),
            lanes: JoinSet::new(),
        };
        for _ in 0..LANES {
            let signer = rush.deployment.tokens.clone();
            let tokens = move || {
                let expires_at = time::OffsetDateTime::now_utc() + time::Duration::HOUR;
                signer.mint(flash_sale::domain::UserId::random(), "tester", expires_at)
            };
            rush.lanes.spawn(shop_on(
                rush.proxy.base.clone(),
                rush.sale.clone(),
                tokens,
                rush.seen.clone(),
                rush.enough.clone(),
            ));
        }
        rush.until_answered(500).await;
        rush
    }

    /// Waits for so many more answers.
    async fn until_answered(&self, more: usize) {
        let before = self.seen.answers.load(Relaxed);
        wait_for!(self.seen.answers.load(Relaxed) >= before + more);
    }

    /// Every promise was kept; what clients saw go wrong.
    async fn end(mut self) -> BTreeMap<String, usize> {
        self.enough.store(true, Relaxed);
        while let Some(lane) = self.lanes.join_next().await {
            lane.expect("no panic");
        }
        self.deployment.assert_sound(&self.sale).await;
        let mut orders = std::mem::take(&mut *self.seen.orders.lock().expect("no panic"));
        let promised = orders.len();
        orders.sort_unstable();
        orders.dedup();
        assert_eq!(orders.len(), promised, "no id is given out twice");
        let mut connection = self.deployment.database.connect().await;
        let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM orders WHERE id = ANY($1)")
            .bind(&orders)
            .fetch_one(&mut connection)
            .await
            .expect("a number");
        assert_eq!(
            rows,
            i64::try_from(promised).expect("few"),
            "every 202 is a row"
        );
        drop(connection);
        if self.seen.failed() > 0 {
            println!("{}", self.proxy.said());
        }
        drop(self.proxy);
        self.deployment.finish().await;
        let failures = self.seen.failures.lock().expect("no panic");
        failures.clone()
    }
}

async fn nobody_is_refused_while_instances_are_replaced(kind: Kind) {
    let _turn = TURN.lock().await;
    let mut rush = Rush::start(kind, NOTICE).await;
    for number in 0..rush.deployment.instances.len() {
        let old = rush.deployment.instances[number].take();
        let old = old.expect("an instance runs");
        let url = old.url("/routable");
        let before = rush.seen.answers.load(Relaxed);
        let going = old.terminate_within(GONE_WITHIN);
        tokio::pin!(going);
        // It says that it goes while it still answers.
        let told = eventually("it says that it goes", async || {
            let asked = Client::new().get(&url).send().await.ok()?;
            (asked.status() == StatusCode::SERVICE_UNAVAILABLE).then_some(())
        });
        tokio::select! {
            () = told => {}
            () = &mut going => panic!("it was gone before it could say so"),
        }
        going.await;
        assert!(
            rush.seen.answers.load(Relaxed) > before + 50,
            "the others serve meanwhile"
        );
        rush.deployment.start_instance(number).await;
        rush.until_answered(300).await;
    }
    let failures = rush.end().await;
    assert!(failures.is_empty(), "{kind:?}: {failures:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_refused_while_instances_are_replaced_behind_nginx() {
    nobody_is_refused_while_instances_are_replaced(Kind::Nginx).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_refused_while_instances_are_replaced_behind_caddy() {
    nobody_is_refused_while_instances_are_replaced(Kind::Caddy).await;
}

/// The same shoppers notice an instance that dies instead: so the tests above can fail. What was promised is kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_dies_instead_is_noticed() {
    let _turn = TURN.lock().await;
    let mut rush = Rush::start(Kind::Nginx, NOTICE).await;
    for round in 0..20 {
        let number = round % rush.deployment.instances.len();
        rush.deployment.kill(number);
        rush.until_answered(50).await;
        rush.deployment.start_instance(number).await;
        rush.until_answered(50).await;
        if rush.seen.failed() > 0 {
            break;
        }
    }
    assert!(!rush.end().await.is_empty());
}
