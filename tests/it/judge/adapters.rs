//! Servers that speak otherwise: their adapters, and what is said of bad ones.

use crate::support::buggy_sale::{BuggySale, CONTRACT, Manner, SOON, kinds, serve, storm_on};
use crate::support::prelude::*;
use axum::extract::{Path, Query, State};
use axum::response::{AppendHeaders, IntoResponse, Json};
use axum::routing::{get, post, put};
use axum::{Router, http::HeaderMap};
use judge::history::{History, Meaning};
use judge::{adapter::Adapter, report::Report, verdict::Kind};

const VOUCHERS: &str = include_str!("../../../examples/adapters/vouchers.json");

/// Forms, query strings, numbers for ids and codes, pages, void rows: all that the contract is not.
#[derive(Default)]
struct Vouchers {
    cap: usize,
    accounts: Vec<u64>,
    grabbed: Vec<Value>,
    sells_twice: bool,
    /// Refuses with a unit left.
    leaks: bool,
    stores_twice: bool,
    /// Readings of the list, each of which has another order.
    readings: usize,
    /// A page begins with the last row of the page before.
    repeats: bool,
}

impl Vouchers {
    fn sold(&self) -> usize {
        self.grabbed.iter().filter(|row| row["state"] == "held").count()
    }
}

type Shared = State<Arc<Mutex<Vouchers>>>;
type Words = Query<HashMap<String, String>>;

async fn open(State(shop): Shared, Query(words): Words) -> Json<Value> {
    locked(&shop).cap = words["cap"].parse().expect("a number");
    Json(json!({"voucher": {"no": 7}}))
}

async fn login(State(shop): Shared, headers: HeaderMap, form: String) -> impl IntoResponse {
    let hosts: Vec<_> = headers.get_all("host").iter().collect();
    assert!(form.starts_with("login=u") && hosts == ["vouchers.example"], "{form} {hosts:?}");
    let mut shop = locked(&shop);
    let id = 1_000 + shop.accounts.len() as u64;
    shop.accounts.push(id);
    let cookies = [format!("account={id}; Path=/; HttpOnly"), "theme=dark".to_owned()];
    let cookies = AppendHeaders(cookies.map(|cookie| ("set-cookie", cookie)));
    let account = json!({"id": id, "session": format!("s/{id}?"), "kind": "person"});
    (cookies, Json(json!({ "account": account })))
}

async fn grab(
    State(shop): Shared,
    Path(no): Path<u64>,
    Query(words): Words,
    headers: HeaderMap,
) -> Json<Value> {
    let session = words["session"].trim_matches(['s', '/', '?']);
    let (mut shop, id) = (locked(&shop), session.parse::<u64>().expect("a session"));
    assert!(no == 7 && shop.accounts.contains(&id), "{words:?}");
    assert_eq!(headers["cookie"], format!("account={id}; theme=dark"));
    let sold = shop.sold();
    let has_one = shop.grabbed.iter().any(|row| row["holder"]["id"] == id);
    let code = match (has_one && !shop.sells_twice, sold + usize::from(shop.leaks) < shop.cap) {
        (true, _) => 6,
        (false, true) => 0,
        (false, false) => 4 + id % 2,
    };
    let no = shop.grabbed.len() as u64 + 1;
    if code == 0 {
        shop.grabbed.push(json!({"no": no, "holder": {"id": id}, "state": "held"}));
        let state = if id % 2 == 0 { "void" } else { "torn" };
        shop.grabbed.push(json!({"no": no + 1, "holder": {"id": id}, "state": state}));
        if shop.stores_twice && sold == 4 {
            let first = shop.grabbed[0].clone();
            shop.grabbed.push(first);
        }
    }
    Json(json!({"code": code, "data": {"no": no}}))
}

async fn export(State(shop): Shared, Query(words): Words) -> Json<Value> {
    let (mut shop, behind) = (locked(&shop), words.get("behind"));
    let behind: usize = behind.map_or(0, |no| no.parse().expect("a number"));
    let behind = behind.saturating_sub(usize::from(shop.repeats));
    shop.readings += 1;
    let mut page: Vec<Value> = shop.grabbed.iter().skip(behind).take(7).cloned().collect();
    // The last row is the last, whatever the order of the others.
    let others = if shop.stores_twice { 0 } else { page.len().saturating_sub(1) };
    page[..others].rotate_left(shop.readings % others.max(1));
    Json(page.into())
}

async fn left(State(shop): Shared) -> String {
    let shop = locked(&shop);
    format!("{}\n", shop.cap - shop.sold())
}

/// The verdict in words, or why there is none.
async fn judged(shop: Vouchers, adapter: &str) -> Result<String, String> {
    let is_wrong = shop.repeats || shop.sells_twice || shop.leaks || shop.stores_twice;
    let host = r#""Host": "vouchers.example", "Content-Type""#;
    let adapter = adapter.replace(r#""Content-Type""#, host);
    let routes = Router::new()
        .route("/api/vouchers/spring", put(open))
        .route("/api/login", post(login))
        .route("/api/grab/{no}", get(grab))
        .route("/api/export/{no}", get(export))
        .route("/api/left/{no}", get(left))
        .with_state(Arc::new(Mutex::new(shop)));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let server = serve(routes, &listener);
    let url = format!("http://{}/api/", listener.local_addr().expect("an address"));
    let mut config = storm_on(url);
    config.settle = if is_wrong { SOON } else { config.settle };
    config.adapter = Some(Adapter::parse(&adapter).expect("an adapter"));
    let judged = judge::run(config, Arc::new(|_| ())).await;
    server.shutdown_background();
    let (report, _) = judged.map_err(|error| error.to_string())?;
    assert_eq!(report.answers.of(Meaning::Unexpected), 0, "{report:#?}");
    Ok(report.verdict_in_words())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_other_shapes_is_judged_through_its_adapter() {
    assert_eq!(judged(Vouchers::default(), VOUCHERS).await.as_deref(), Ok("held"));
    let wrong = judged(Vouchers { sells_twice: true, ..Vouchers::default() }, VOUCHERS).await;
    assert_eq!(wrong.as_deref(), Ok("BROKEN (sold_twice, key_answered_differently)"));
    let leaks = judged(Vouchers { leaks: true, ..Vouchers::default() }, VOUCHERS).await;
    assert_eq!(leaks.as_deref(), Ok("BROKEN (undersold, false_sold_out)"));
    let twice = judged(Vouchers { stores_twice: true, ..Vouchers::default() }, VOUCHERS).await;
    assert_eq!(twice.as_deref(), Ok("BROKEN (order_id_twice)"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adapter_that_reads_wrongly_accuses_nobody() {
    let one_name = VOUCHERS.replace("/account/id", "/account/kind");
    let why = judged(Vouchers::default(), &one_name).await.expect_err("one name for all");
    assert!(why.contains("buyer: capture.user: \"person\""), "{why}");
    let repeats = Vouchers { repeats: true, ..Vouchers::default() };
    let said = judged(repeats, VOUCHERS).await.expect("a report");
    let why = "undecided (what is stored cannot be read: next_page repeats order ";
    assert!(said.starts_with(why) && said.ends_with(": it must begin after {last})"), "{said}");
    let no_buyer = VOUCHERS.replace("/holder/id", "/state");
    let said = judged(Vouchers::default(), &no_buyer).await.expect("a report");
    assert!(said.starts_with("undecided (orders.user names nobody who asked: "), "{said}");
    assert!(said.ends_with(", stored under held)"), "{said}");
}

async fn judged_by(adapter: Adapter, manner: Manner) -> Result<(Report, History), judge::Error> {
    let change = |config: &mut judge::Config| {
        (config.adapter, config.settle) = (Some(adapter), SOON);
    };
    BuggySale::start(manner).judged(change).await
}

/// A right server, whose answers and rows have more numbers than the id.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adapter_that_does_not_fit_is_told_where() {
    let (id, row_id) = ("/order/answers/0/order_id", "/orders/order_id");
    let [means, at] = ["means", "at"]
        .map(|member| move |index: usize| format!("/order/answers/{index}/{member}"));
    let body = json!({"stock": "{stock}"});
    let sale =
        json!({"method": "POST", "path": "/reset", "body": body, "capture": {"sale": "/id"}});
    let cases = [
        (json!({id: "/id"}), "order.answers[0].order_id: nothing at \"/id\" in "),
        (json!({"/order/answers/0/status": 200}), "orders are stored, and no answer means sold"),
        (json!({id: "/answer"}), "order.answers[…].order_id and orders.order_id"),
        (json!({row_id: "/row"}), "order.answers[…].order_id and orders.order_id"),
        (json!({"/orders/user": "/shop"}), "orders.user names nobody who asked"),
        (json!({"/orders/user": "/shop", row_id: "/row"}), "orders.user and orders.order_id"),
        (json!({"/orders/user": "/shop", id: "/answer"}), "orders.user and orders.order_id"),
        (json!({"/orders/rows": "/rows"}), "adapter: orders.rows: /orders: no list at \"/rows\""),
        (
            json!({row_id: "/id"}),
            "adapter: orders.order_id: /orders: a row has nothing at \"/id\": {",
        ),
        (json!({"/orders/user": "/who"}), "adapter: orders.user: /orders: a row has nothing at "),
        (json!({"/orders/request/path": "/list"}), "adapter: orders.request: /list answered 404"),
        (json!({"/remaining/at": "/left"}), "adapter: remaining.at: /stock: no whole number at "),
        (
            json!({"/setup/0": sale}),
            "adapter: setup[0].capture.sale: POST /reset: nothing at \"/id\"",
        ),
        (json!({"/setup": []}), "setup: after [] 0 units remain, not 50: did it do anything?"),
        (json!({"/setup": [], "/remaining": null}), "setup: not one of 50 units was sold"),
        (
            json!({means(1): "already_ordered", means(2): "sold_out"}),
            "who heard already_ordered have no order, and nobody who heard sold_out is without",
        ),
        (json!({means(0): "sold_out", means(1): "sold"}), "who heard sold have nothing stored"),
        (json!({at(1): "/kode", at(2): "/kode"}), "order.answers[1].at: nothing at \"/kode\" in {"),
        (
            json!({"/order/answers/1/is": "gone"}),
            "order.answers[1].is: \"sold_out\" at \"/code\" in {",
        ),
    ];
    let judge = async |(changes, why): (Value, &'static str)| {
        let mut adapter: Value = serde_json::from_str(CONTRACT).expect("JSON");
        for (at, to) in changes.as_object().expect("members") {
            *adapter.pointer_mut(at).expect("a member") = to.clone();
        }
        let adapter = Adapter::parse(&adapter.to_string()).expect("an adapter");
        let said = match judged_by(adapter, Manner::Right).await {
            Ok((report, _)) => report.verdict_in_words(),
            Err(error) => format!("undecided ({error})"),
        };
        assert!(said.starts_with("undecided (") && said.contains(why), "{changes}: {said}");
    };
    stream::iter(cases).for_each_concurrent(None, judge).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_of_two_is_tried_with_a_third_request() {
    let mut adapter = Adapter::contract().expect("an adapter");
    adapter.per_user = 2;
    let (report, _) = judged_by(adapter, Manner::SellsTwice).await.expect("a verdict");
    assert_eq!(kinds(&report), [Kind::SoldTwice], "{report:#?}");
}
