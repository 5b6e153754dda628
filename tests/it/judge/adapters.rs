//! Servers that speak otherwise: their adapters, and what is said of bad ones.

use crate::support::buggy_sale::{serve, storm_on};
use crate::support::locked;
use axum::Router;
use axum::extract::{Path, Query, State};
use axum::response::Json;
use axum::routing::{get, post, put};
use judge::adapter::Adapter;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

const CONTRACT: &str = include_str!("../../../crates/judge/adapters/contract.json");
const VOUCHERS: &str = include_str!("../../../examples/adapters/vouchers.json");

#[test]
fn a_bad_adapter_is_told_which_member_is_wrong() {
    let bad = |from: &str, to: &str, member: &str, why: &str| {
        assert!(CONTRACT.contains(from), "{from}");
        let error = Adapter::parse(&CONTRACT.replacen(from, to, 1)).expect_err(to).to_string();
        assert!(error.starts_with(&format!("adapter: {member}: ")), "{error}");
        assert!(error.contains(why), "{error}");
    };
    bad("\"order\":", "\"ordr\":", "ordr", "unknown field");
    bad("\"rows\"", "\"lines\"", "orders.lines", "unknown field `lines`");
    bad("\"sold_out\" }", "\"gone\" }", "order.answers[1].means", "unknown variant `gone`");
    bad("\"come_again\"", "\"lost\"", "order.answers[3].means", "must be sold");
    bad("201, 202", "2010", "order.answers[0].status", "from 100 to 599");
    bad("\"/order_id\"", "\"order_id\"", "order.answers[0].order_id", "no JSON pointer");
    bad("\"at\": \"/code\", ", "", "order.answers[1].is", "needs `at`");
    bad("\"means\": \"sold\"", "\"means\": \"come_again\"", "order.answers", "none means sold");
    bad("{user}", "{usr}", "order.request.body.user", "no variable {usr} here, only key, number");
    bad("{stock}", "{user}", "setup[0].body.stock", "no variable {user}");
    bad("\"/reset\"", "\"reset\"", "setup[0].path", "does not begin with /");
    bad("\"POST\"", "\"PO ST\"", "setup[0].method", "is no method");
    bad("Idempotency-Key", "Idempotency Key", "order.request.headers.Idempotency Key", "header");
    bad("\"/remaining\"", "\"remaining\"", "remaining.at", "no JSON pointer");
    bad("\"about\"", "\"per_user\": 0, \"about\"", "per_user", "at least 1");
    let unset = CONTRACT.replacen("{key}", "{env:NOBODY_SETS_THIS}", 1);
    let error = Adapter::parse(&unset).expect("an adapter").environment().expect_err("unset");
    assert_eq!(error.member, "order.request.headers.Idempotency-Key");
    let more = format!("{CONTRACT} 1");
    assert_eq!(Adapter::parse(&more).expect_err("two values").member, "the end of the file");
}

/// Forms, query strings, numbers for ids and codes, pages, void rows: all that the contract is not.
#[derive(Default)]
struct Vouchers {
    cap: usize,
    accounts: Vec<u64>,
    grabbed: Vec<Value>,
    sells_twice: bool,
}

type Shared = State<Arc<Mutex<Vouchers>>>;
type Words = Query<HashMap<String, String>>;

async fn open(State(shop): Shared, Query(words): Words) -> Json<Value> {
    locked(&shop).cap = words["cap"].parse().expect("a number");
    Json(json!({"voucher": {"no": 7}}))
}

async fn login(State(shop): Shared, form: String) -> Json<Value> {
    assert!(form.starts_with("login=u"), "{form}");
    let mut shop = locked(&shop);
    let id = 1_000 + shop.accounts.len() as u64;
    shop.accounts.push(id);
    Json(json!({"account": {"id": id, "session": format!("s/{id}?")}}))
}

async fn grab(State(shop): Shared, Path(no): Path<u64>, Query(words): Words) -> Json<Value> {
    let session = words["session"].trim_matches(['s', '/', '?']);
    let (mut shop, id) = (locked(&shop), session.parse::<u64>().expect("a session"));
    assert!(no == 7 && shop.accounts.contains(&id), "{words:?}");
    let sold = shop.grabbed.iter().filter(|row| row["state"] == "held").count();
    let has_one = shop.grabbed.iter().any(|row| row["holder"]["id"] == id);
    let code = match (has_one && !shop.sells_twice, sold < shop.cap) {
        (true, _) => 6,
        (false, true) => 0,
        (false, false) => 4 + id % 2,
    };
    let no = shop.grabbed.len() as u64 + 1;
    if code == 0 {
        shop.grabbed.push(json!({"no": no, "holder": {"id": id}, "state": "held"}));
        shop.grabbed.push(json!({"no": no + 1, "holder": {"id": id}, "state": "void"}));
    }
    Json(json!({"code": code, "data": {"no": no}}))
}

async fn export(State(shop): Shared, Query(words): Words) -> Json<Value> {
    let behind = words.get("behind").map_or(0, |no| no.parse().expect("a number"));
    Json(locked(&shop).grabbed.iter().skip(behind).take(7).cloned().collect())
}

async fn left(State(shop): Shared) -> String {
    let shop = locked(&shop);
    format!("{}\n", shop.cap - shop.grabbed.len() / 2)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_other_shapes_is_judged_through_its_adapter() {
    for sells_twice in [false, true] {
        let shop = Arc::new(Mutex::new(Vouchers { sells_twice, ..Vouchers::default() }));
        let routes = Router::new()
            .route("/api/vouchers/spring", put(open))
            .route("/api/login", post(login))
            .route("/api/grab/{no}", get(grab))
            .route("/api/export/{no}", get(export))
            .route("/api/left/{no}", get(left))
            .with_state(shop);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("nonblocking");
        let server = serve(routes, &listener);
        let url = format!("http://{}/api/", listener.local_addr().expect("an address"));
        let mut config = storm_on(url);
        config.adapter = Some(Adapter::parse(VOUCHERS).expect("the example"));
        let judged = judge::run(config, Arc::new(|_| ())).await;
        server.shutdown_background();
        let verdict = judged.expect("a verdict").0.verdict_in_words();
        let expected =
            if sells_twice { "BROKEN (sold_twice, key_answered_differently)" } else { "held" };
        assert_eq!(verdict, expected);
    }
}
