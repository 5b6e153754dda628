//! A sale by the contract of docs/judge.md, in memory: right, or wrong in just one way. It runs on
//! a runtime of its own, so that a kill ends it in the middle of whatever it does.

use super::{launch::Folder, locked};
use crate::support::prelude::*;
use Manner::*;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, http::HeaderMap};
use judge::history::{History, Meaning};
use judge::{Config, Error, adapter::Adapter, report::Report, verdict::Kind};
use std::net::TcpListener;
use tokio::{runtime::Runtime, time::sleep};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    Right,
    Slow,
    /// Every other request has to come again.
    Busy,
    StoresLater,
    /// Looks at the stock before it looks at the buyer, and at no key.
    KnowsNoKey,
    /// Hangs with its work done and its answer unsent, until it is killed.
    HangsAfterStoring,
    /// Stores an order with its refusal, and takes it back a moment later.
    TakesBack,
    /// Breaks off some answers after their work is done.
    BreaksOff,
    TooMany,
    /// Is killed, and takes long to say what is stored.
    ListsSlowly,
    /// Is killed, and a proxy answers 502 meanwhile.
    BehindAProxy,
    /// Is killed, and runs again as soon as the judge has noticed.
    Supervised,
    /// Never answers who buys.
    Hangs,
    // From here on wrong.
    Oversells,
    SellsTwice,
    GivesAnIdTwice,
    Forgets,
    StoresWhatItRefuses,
    TakesAKeyBack,
    LosesUnits,
    MarksBeforeItFails,
    Miscounts,
    /// Hangs with a unit taken and nothing stored, until it is killed.
    HangsBeforeStoring,
    /// Sells again for a key that it has sold for.
    ForgetsKeys,
    /// Answers 202 and never stores some of it.
    AcceptsAndForgets,
    /// Says 503, and carries it out later beyond the stock.
    CarriesOutLater,
    /// Starts again without its last orders, which it had acknowledged.
    LosesTheLast,
    /// Starts again with its orders and without its keys.
    LosesItsKeys,
    MiscountsWhenStarted,
    /// Stores the first order once more, long after its answer.
    StoresAgain,
}

/// What survives a kill.
#[derive(Default)]
struct Sale {
    stock: usize,
    /// Units that were taken, with an order or without one.
    taken: usize,
    requests: usize,
    orders: Vec<(String, String)>,
    keys: HashMap<String, String>,
    marked: BTreeSet<String>,
    lives: usize,
    /// A proxy has nobody behind it.
    is_away: bool,
    /// The judge knows of the kill.
    is_noticed: bool,
    /// Readings of the stock, since something is stored.
    readings: usize,
    wronged: BTreeSet<String>,
}

struct Shop {
    manner: Manner,
    sale: Mutex<Sale>,
    /// Each request that hangs has one.
    hanging: Arc<()>,
}

type Shared = State<Arc<Shop>>;

pub const CONTRACT: &str = include_str!("../../crates/judge/adapters/contract.json");

/// Stored orders at which a server that hangs begins to.
const HANGS_AT: usize = 40;

async fn reset(State(shop): Shared, Json(body): Json<Value>) -> StatusCode {
    let stock = body["stock"].as_u64().unwrap_or_default() as usize;
    *locked(&shop.sale) = Sale { stock, lives: 1, ..Sale::default() };
    StatusCode::NO_CONTENT
}

async fn stock(State(shop): Shared) -> Json<Value> {
    let mut sale = locked(&shop.sale);
    let miscounts = (shop.manner == Miscounts && !sale.orders.is_empty())
        || (shop.manner == MiscountsWhenStarted && sale.lives > 1);
    let remaining = sale.stock as i64 - sale.orders.len() as i64 + i64::from(miscounts);
    if let Some((_, user)) = sale.orders.first().cloned() {
        sale.readings += 1;
        // Everything was as it should be when it was read before, and is the same now.
        if shop.manner == StoresAgain && sale.readings == 3 {
            sale.orders.push(("again".to_owned(), user));
        }
    }
    Json(json!({"remaining": remaining}))
}

async fn orders(State(shop): Shared) -> Json<Value> {
    let sale = locked(&shop.sale);
    let rows = sale.orders.iter().enumerate().map(
        |(number, (id, user))| json!({"order_id": id, "user": user, "row": number, "shop": "main"}),
    );
    Json(json!({"orders": rows.collect::<Vec<_>>()}))
}

async fn proxy(State(shop): Shared, request: Request, next: Next) -> Response {
    if shop.manner == ListsSlowly && request.method() == Method::GET {
        sleep(Duration::from_millis(1_100)).await;
    }
    let is_away = locked(&shop.sale).is_away;
    if is_away { StatusCode::BAD_GATEWAY.into_response() } else { next.run(request).await }
}

/// `None`: it hangs.
type Answer = Option<Response>;

fn no(code: &str) -> Answer {
    Some((StatusCode::CONFLICT, Json(json!({"code": code}))).into_response())
}

fn come_again() -> Answer {
    Some(StatusCode::SERVICE_UNAVAILABLE.into_response())
}

fn too_many() -> Answer {
    Some((StatusCode::TOO_MANY_REQUESTS, [("retry-after", "1")]).into_response())
}

fn broken_off() -> Answer {
    let broken = stream::iter([Err::<Vec<u8>, _>("broken off")]);
    Some(Body::from_stream(broken).into_response())
}

async fn order(State(shop): Shared, headers: HeaderMap, Json(body): Json<Value>) -> Response {
    let user = body["user"].as_str().unwrap_or_default();
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).unwrap_or_default();
    if shop.manner == Slow {
        sleep(Duration::from_millis(user.len() as u64 * 10)).await;
    }
    if let Some(answer) = shop.answer(user, key) {
        return answer;
    }
    let _hangs = shop.hanging.clone();
    std::future::pending().await
}

impl Shop {
    fn sold(&self, sale: &Sale, id: String) -> Answer {
        let status = match self.manner {
            StoresLater | StoresAgain | AcceptsAndForgets => StatusCode::ACCEPTED,
            _ => StatusCode::CREATED,
        };
        Some((status, Json(json!({"order_id": id, "answer": sale.requests}))).into_response())
    }

    fn answer(self: &Arc<Self>, user: &str, key: &str) -> Answer {
        let mut sale = locked(&self.sale);
        sale.requests += 1;
        match self.manner {
            Hangs => return None,
            Busy if sale.requests % 2 == 1 => return come_again(),
            TooMany if sale.requests % 20 == 1 => return too_many(),
            KnowsNoKey if sale.taken >= sale.stock => return no("sold_out"),
            _ => {}
        }
        let known = sale.keys.get(key).cloned();
        let has_one = sale.orders.iter().any(|(_, owner)| owner == user);
        let sells_again = match (self.manner, known) {
            (ForgetsKeys, Some(_)) => {
                sale.wronged.insert(user.to_owned());
                true
            }
            (KnowsNoKey, _) | (_, None) => self.manner == SellsTwice,
            (_, Some(id)) => return self.answer_again(&mut sale, user, id),
        };
        if (has_one || sale.marked.contains(user)) && !sells_again {
            return no("already_ordered");
        }
        let more = if self.manner == Oversells { 3 } else { 0 };
        if sale.taken >= sale.stock + more {
            return self.refuse(&mut sale, user);
        }
        sale.taken += 1;
        if has_one || sale.taken > sale.stock {
            sale.wronged.insert(user.to_owned());
        }
        let is_odd_one = sale.taken % 10 == 5;
        let hangs = sale.lives == 1 && sale.orders.len() >= HANGS_AT;
        let mut id = format!("o{}", sale.taken);
        match self.manner {
            LosesUnits if is_odd_one => return come_again(),
            MarksBeforeItFails if is_odd_one => {
                sale.taken -= 1;
                sale.marked.insert(user.to_owned());
                return come_again();
            }
            HangsBeforeStoring if hangs => return None,
            GivesAnIdTwice if is_odd_one => id = "o1".to_owned(),
            Forgets | AcceptsAndForgets if is_odd_one => {
                sale.wronged.insert(user.to_owned());
                sale.marked.insert(user.to_owned());
                return self.sold(&sale, id);
            }
            StoresLater => {
                sale.marked.insert(user.to_owned());
                let row = (id.clone(), user.to_owned());
                self.later(30, |sale| sale.orders.push(row));
                sale.keys.insert(key.to_owned(), id.clone());
                return self.sold(&sale, id);
            }
            _ => {}
        }
        sale.orders.push((id.clone(), user.to_owned()));
        if self.manner == StoresWhatItRefuses && is_odd_one {
            sale.wronged.insert(user.to_owned());
            return no("sold_out");
        }
        sale.keys.insert(key.to_owned(), id.clone());
        match self.manner {
            HangsAfterStoring if hangs => None,
            BreaksOff if is_odd_one => broken_off(),
            _ => self.sold(&sale, id),
        }
    }

    fn answer_again(&self, sale: &mut Sale, user: &str, id: String) -> Answer {
        let lost_its_keys = self.manner == LosesItsKeys && sale.lives > 1;
        if self.manner == TakesAKeyBack || lost_its_keys {
            sale.wronged.insert(user.to_owned());
            return no("sold_out");
        }
        self.sold(sale, id)
    }

    /// There is nothing left.
    fn refuse(self: &Arc<Self>, sale: &mut Sale, user: &str) -> Answer {
        let row = (format!("late-{user}"), user.to_owned());
        match self.manner {
            TakesBack => {
                sale.orders.push(row.clone());
                self.later(300, move |sale| sale.orders.retain(|stored| *stored != row));
            }
            CarriesOutLater if sale.wronged.len() < 3 && sale.wronged.insert(user.to_owned()) => {
                self.later(1_000, |sale| sale.orders.push(row));
                return come_again();
            }
            _ => {}
        }
        no("sold_out")
    }

    fn later(self: &Arc<Self>, millis: u64, act: impl FnOnce(&mut Sale) + Send + 'static) {
        let shop = self.clone();
        tokio::spawn(async move {
            sleep(Duration::from_millis(millis)).await;
            act(&mut locked(&shop.sale));
        });
    }

    fn routes(self: &Arc<Self>) -> Router {
        Router::new()
            .route("/reset", post(reset))
            .route("/orders", post(order).get(orders))
            .route("/stock", get(stock))
            .layer(from_fn_with_state(self.clone(), proxy))
            .with_state(self.clone())
    }
}

/// The server, and the folder in which commands are left for it.
pub struct BuggySale {
    shop: Arc<Shop>,
    /// Stays open through a kill, or another process could take the port meanwhile.
    listener: TcpListener,
    folder: Folder,
    runtime: Mutex<Option<Runtime>>,
}

impl BuggySale {
    pub fn start(manner: Manner) -> Arc<Self> {
        Self::on(TcpListener::bind("127.0.0.1:0").expect("a port"), manner)
    }

    pub fn on(listener: TcpListener, manner: Manner) -> Arc<Self> {
        let shop = Arc::new(Shop { manner, sale: Mutex::default(), hanging: Arc::default() });
        let folder = Folder::create(&std::env::temp_dir(), "fs-judge-").expect("a folder");
        let runtime = Mutex::new(Some(serve(shop.routes(), &listener)));
        Arc::new(Self { shop, listener, folder, runtime })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.listener.local_addr().expect("an address"))
    }

    /// A shell command that has the server do this and waits until it is done.
    pub fn command(&self, command: &str) -> String {
        let file = self.folder.0.join(command);
        format!("touch '{0}'; while [ -e '{0}' ]; do sleep 0.01; done", file.display())
    }

    fn kill(&self) {
        match self.shop.manner {
            BehindAProxy => locked(&self.shop.sale).is_away = true,
            _ => self.stop(),
        }
    }

    fn stop(&self) {
        if let Some(runtime) = locked(&self.runtime).take() {
            runtime.shutdown_background();
        }
    }

    /// A client that comes while nobody serves is refused; a supervisor starts it again.
    fn turn_away(&self) {
        if locked(&self.runtime).is_some() {
            return;
        }
        while self.listener.accept().is_ok() {}
        if self.shop.manner == Supervised && locked(&self.shop.sale).is_noticed {
            self.start_again();
        }
    }

    fn start_again(&self) {
        let mut sale = locked(&self.shop.sale);
        if self.shop.manner == LosesTheLast {
            let first = sale.orders.len().saturating_sub(3);
            for (_, user) in sale.orders.split_off(first) {
                sale.marked.insert(user.clone());
                sale.wronged.insert(user);
            }
        }
        (sale.lives, sale.is_away) = (sale.lives + 1, false);
        drop(sale);
        self.stop();
        *locked(&self.runtime) = Some(serve(self.shop.routes(), &self.listener));
    }

    fn hangs(&self) -> bool {
        matches!(self.shop.manner, HangsAfterStoring | HangsBeforeStoring)
    }

    fn is_killed(&self) -> bool {
        let more = [ListsSlowly, BehindAProxy, Supervised, LosesTheLast, LosesItsKeys];
        self.hangs() || self.shop.manner == MiscountsWhenStarted || more.contains(&self.shop.manner)
    }

    async fn obey(&self) -> ! {
        loop {
            // One that hangs lets itself be killed only then.
            let may_be_killed = !self.hangs() || self.hanging() > 0;
            for (what, act) in [("kill", Self::kill as fn(&Self)), ("start", Self::start_again)] {
                let file = self.folder.0.join(what);
                if file.exists() && (what != "kill" || may_be_killed) {
                    act(self);
                    std::fs::remove_file(file).expect("its own file");
                }
            }
            self.turn_away();
            sleep(Duration::from_millis(5)).await;
        }
    }

    pub fn hanging(&self) -> usize {
        Arc::strong_count(&self.shop.hanging) - 1
    }

    /// To be set up, which comes before everything else.
    pub fn was_asked(&self) -> bool {
        locked(&self.shop.sale).lives > 0
    }

    pub fn wronged(&self) -> BTreeSet<String> {
        locked(&self.shop.sale).wronged.clone()
    }

    pub async fn judged(
        &self,
        change: impl FnOnce(&mut Config),
    ) -> Result<(Report, History), Error> {
        let mut config = storm_on(self.url());
        if self.is_killed() {
            config.kill = Some(self.command("kill"));
            let is_alone = self.shop.manner != Supervised;
            config.start = Some(self.command("start")).filter(|_| is_alone);
        }
        if self.shop.manner == KnowsNoKey {
            let no_key = CONTRACT.replace("\"Idempotency-Key\": \"{key}\"", "");
            config.adapter = Some(Adapter::parse(&no_key).expect("an adapter"));
        }
        change(&mut config);
        let shop = self.shop.clone();
        let progress = move |event: judge::Event<'_>| {
            if matches!(event, judge::Event::Killed) {
                locked(&shop.sale).is_noticed = true;
            }
        };
        self.beside(judge::run(config, Arc::new(progress))).await
    }

    /// Does what the commands want meanwhile.
    pub async fn beside<T>(&self, other: impl Future<Output = T>) -> T {
        tokio::select! {
            result = other => result,
            never = self.obey() => never,
        }
    }

    pub async fn must_hold(&self, storms: usize) {
        for storm in 0..storms {
            let (report, history) = self.judged(|_| ()).await.expect("a verdict");
            let said = report.verdict_in_words();
            assert_eq!(said, "held", "{:?}, storm {storm}: {report:#?}", self.shop.manner);
            assert_eq!(report.stored, Some(50));
            let is_proxied = self.shop.manner == BehindAProxy;
            assert!(is_proxied || report.answers.of(Meaning::Unexpected) == 0, "{report:#?}");
            let mut requests = history.requests.iter();
            assert!(!self.hangs() || requests.any(|request| request.means == Meaning::Lost));
        }
    }
}

impl Drop for BuggySale {
    fn drop(&mut self) {
        self.stop();
    }
}

pub fn serve(routes: Router, listener: &TcpListener) -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().expect("a runtime");
    listener.set_nonblocking(true).expect("nonblocking");
    let listener = listener.try_clone().expect("the same port");
    runtime.spawn(async move {
        axum::serve(tokio::net::TcpListener::from_std(listener).expect("a listener"), routes).await
    });
    runtime
}

/// What a server at fault has not done at once, it will never do.
pub const SOON: Option<Duration> = Some(Duration::from_millis(300));

/// Small, and patient with a busy machine: what a correct server does late is not missing.
pub fn storm_on(url: String) -> Config {
    Config {
        url,
        stock: 50,
        buyers: 90,
        concurrency: 12,
        duplicates: 0.3,
        retries: 8,
        timeout: Duration::from_secs(60),
        settle: Some(Duration::from_secs(60)),
        time_limit: Duration::from_secs(120),
        ..Config::default()
    }
}

pub fn kinds(report: &Report) -> Vec<Kind> {
    report.findings.iter().map(|finding| finding.kind).collect()
}
