//! A rolling upgrade: three instances behind a real proxy are replaced one after the other, under a
//! steady load, and no client sees a refused connection, a broken answer, or a 5xx.

use super::*;
use reqwest::RequestBuilder;
use tokio::{sync::Mutex, task::JoinSet};

const LANES: usize = 12;
/// Longer than the proxies keep idle connections (2 s), and than Caddy needs to notice (1 s).
const NOTICE: &str = "4";

/// One deployment at a time: on a slow machine three of them would look like instances that fail.
static TURN: Mutex<()> = Mutex::const_new(());

/// What clients have seen so far.
#[derive(Default)]
struct Seen {
    answers: AtomicUsize,
    /// What went wrong, and how often.
    failures: std::sync::Mutex<BTreeMap<String, usize>>,
    /// Orders that were answered 202.
    orders: std::sync::Mutex<Vec<i64>>,
    enough: AtomicBool,
}

impl Seen {
    fn fail(&self, what: String) {
        *self.failures.lock().expect("no panic").entry(what).or_default() += 1;
    }

    /// Sends it and notes the answer; its body, if it is one of a program that works.
    async fn send(&self, what: &str, request: RequestBuilder) -> Option<Value> {
        let answer = async {
            let response = request.send().await.map_err(|error| format!("{error:?}"))?;
            let status = response.status();
            if status.is_server_error() {
                let text = response.text().await.unwrap_or_default();
                return Err(format!("{status} {}", text.lines().next().unwrap_or_default()));
            }
            response.json().await.map_err(|error| format!("{status}, {error:?}"))
        };
        let answer = answer.await;
        match &answer {
            Ok(_) => drop(self.answers.fetch_add(1, Relaxed)),
            Err(failure) => self.fail(format!("{what}: {failure}")),
        }
        answer.ok()
    }

    fn failed(&self) -> usize {
        self.failures.lock().expect("no panic").values().sum()
    }
}

/// A client who keeps their connection and buys, looks at the order, and looks at the sale, again
/// and again. Nobody retries: what fails is seen.
async fn shop_on(base: String, sale: String, token: impl Fn() -> String, seen: Arc<Seen>) {
    let client = client();
    let sale = format!("{base}/api/v1/sales/{sale}");
    while !seen.enough.load(Relaxed) {
        let token = token();
        let request = client.post(format!("{sale}/orders")).bearer_auth(&token);
        if let Some(body) = seen.send("buying", request).await {
            let Some(order) = body["order_id"].as_str() else {
                seen.fail(format!("buying: {body}"));
                continue;
            };
            seen.orders.lock().expect("no panic").push(order.parse().expect("a number"));
            let request = client.get(format!("{base}/api/v1/orders/{order}"));
            seen.send("looking at the order", request.bearer_auth(&token)).await;
        }
        seen.send("looking at the sale", client.get(&sale)).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A deployment behind a proxy, with shoppers.
struct Rush {
    deployment: Deployment,
    proxy: Proxy,
    sale: String,
    seen: Arc<Seen>,
    lanes: JoinSet<()>,
}

impl Rush {
    async fn start(kind: Kind) -> Self {
        let settings = [("DRAIN_NOTICE", NOTICE), ("TRUST_PROXY", "127.0.0.1")];
        let deployment = Deployment::start(3, &settings).await;
        let proxy = Proxy::start(kind, &deployment).await;
        let sale = deployment.running().sale(1_000_000).await;
        let mut rush =
            Self { deployment, proxy, sale, seen: Arc::default(), lanes: JoinSet::new() };
        for _ in 0..LANES {
            let signer = rush.deployment.tokens.clone();
            let (base, sale) = (rush.proxy.base.clone(), rush.sale.clone());
            rush.lanes.spawn(shop_on(base, sale, move || mint(&signer), rush.seen.clone()));
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
        self.seen.enough.store(true, Relaxed);
        while let Some(lane) = self.lanes.join_next().await {
            lane.expect("no panic");
        }
        self.deployment.assert_sound(&self.sale).await;
        let orders = std::mem::take(&mut *self.seen.orders.lock().expect("no panic"));
        let mut connection = self.deployment.database.connect().await;
        let rows = sqlx::query_scalar("SELECT count(*) FROM orders WHERE id = ANY($1)");
        let rows: i64 = rows.bind(&orders).fetch_one(&mut connection).await.expect("a number");
        assert_eq!(rows, orders.len() as i64, "every 202 is a row, and no id is given out twice");
        drop(connection);
        if self.seen.failed() > 0 {
            println!("{}", fs::read_to_string(&self.proxy.log).unwrap_or_default());
        }
        drop(self.proxy);
        self.deployment.finish().await;
        self.seen.failures.lock().expect("no panic").clone()
    }
}

async fn nobody_is_refused_while_instances_are_replaced(kind: Kind) {
    let _turn = TURN.lock().await;
    let mut rush = Rush::start(kind).await;
    for number in 0..rush.deployment.instances.len() {
        let old = rush.deployment.instances[number].take().expect("an instance runs");
        let url = old.url("/routable");
        let before = rush.seen.answers.load(Relaxed);
        let going = old.terminate_within(GONE_WITHIN);
        tokio::pin!(going);
        // It says that it goes while it still answers.
        let told = eventually("it says that it goes", async || {
            (client().get(&url).send().await.ok()?.status() == 503).then_some(())
        });
        tokio::select! {
            () = told => {}
            () = &mut going => panic!("it was gone before it could say so"),
        }
        going.await;
        let served = rush.seen.answers.load(Relaxed) - before;
        assert!(served > 50, "the others serve meanwhile: {served}");
        rush.deployment.start_instance(number).await;
        rush.until_answered(300).await;
    }
    let failures = rush.end().await;
    assert!(failures.is_empty(), "{kind:?}: {failures:#?}");
}

cases! { nobody_is_refused_while_instances_are_replaced:
    nobody_is_refused_while_instances_are_replaced_behind_nginx => Kind::Nginx,
    nobody_is_refused_while_instances_are_replaced_behind_caddy => Kind::Caddy,
}

/// The same shoppers notice an instance that dies: the tests above can fail. Promises are kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_dies_instead_is_noticed() {
    let _turn = TURN.lock().await;
    let mut rush = Rush::start(Kind::Nginx).await;
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
