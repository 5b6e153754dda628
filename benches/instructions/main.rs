//! The pure parts of a purchase, each run as often as asked: what `scripts/instructions.py` lets
//! callgrind count. Instructions do not depend on what else the machine does, so a regression shows
//! on a busy one.
//!
//! ```text
//! instructions --list            the names
//! instructions NAME TIMES        runs a part TIMES times and prints nothing
//! ```
//!
//! Nothing here waits, connects, or reads a clock that matters.

use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::{Request, request::Parts};
use axum::{body::Body, response::IntoResponse};
use flash_sale::admission::{AdmissionSettings, ids, refusals};
use flash_sale::domain::UserId;
use flash_sale::domain::{AccessPolicy, IdempotencyKey, OrderId, PurchaseResult, Sale, SaleId};
use flash_sale::http::{
    AccessPolicies, Draining, HttpState, error::of_refusal, extract::RetryKey, orders::accepted,
};
use flash_sale::redis::functions::{self, AdmitOptions, Buyer, Snapshot};
use flash_sale::redis::{Keys, Redis};
use flash_sale::telemetry::instruments::Metrics;
use flash_sale::{
    auth::TokenSigner, catalog::cache::SaleCache, config::ProxyTrust, databases::Databases,
};
use flash_sale::{fail_point::FailPoints, order_log::AcceptedBatch};
use flash_sale::{payments::provider::SimulatedPayments, services::Services};
use futures_util::FutureExt;
use lab::http::LabState;
use redis::{Cmd, Pipeline, RedisFuture, Value, aio::ConnectionLike};
use std::{hint::black_box, net::SocketAddr, process::ExitCode, sync::Arc};
use time::{OffsetDateTime, macros::datetime};
use tokio_util::sync::CancellationToken;
use tower::Service;
use web::events::Streams;

/// The allocator of the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Part = fn(usize);

const PARTS: &[(&str, Part)] = &[
    ("token-verify", token_verify),
    ("id-encode-decode", id_encode_decode),
    ("retry-key-extract", retry_key_extract),
    ("refuse-from-memory", refuse_from_memory),
    ("answer-accepted", answer_accepted),
    ("answer-sold-out", answer_sold_out),
    ("request-sold-out", request_sold_out),
    ("admit-batch-of-64", admit_batch),
    ("log-entry-of-64", log_entry),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["--list", ..] => PARTS.iter().for_each(|(name, _)| println!("{name}")),
        // Everything once: that it runs at all.
        [] => {
            PARTS.iter().for_each(|(_, part)| part(1));
            println!("every pure part runs; scripts/instructions.py counts");
        }
        [name, ref times @ ..] => {
            let part = PARTS.iter().find(|(known, _)| *known == name);
            let times = times.first().and_then(|times| times.parse().ok());
            let (Some((_, part)), Some(times)) = (part, times) else {
                eprintln!("instructions: no part {name}, or not how often");
                return ExitCode::from(2);
            };
            part(times);
        }
    }
    ExitCode::SUCCESS
}

const SECRET: &[u8] = b"a secret of at least thirty-two bytes";
const NOW: OffsetDateTime = datetime!(2026-11-20 12:00 UTC);

fn token_verify(times: usize) {
    let signer = TokenSigner::new(SECRET).expect("a long secret");
    let token = signer.mint(UserId::from_bytes([7; 16]), "load", NOW + time::Duration::DAY);
    for _ in 0..times {
        assert!(black_box(signer.verify(black_box(&token), NOW)).is_some());
    }
}

fn id_encode_decode(times: usize) {
    let second = NOW.unix_timestamp();
    for sequence in 0..times {
        let id = ids::encode(black_box(second), black_box(sequence as u32)).expect("in range");
        black_box(ids::decode(black_box(id)));
    }
}

fn parts() -> Parts {
    let request = Request::post("/api/v1/sales/1/orders")
        .header("host", "127.0.0.1:8080")
        .header("authorization", "Bearer something")
        .header("idempotency-key", "0b9d1e0a-6f6b-4f3e-9a53-8a2f6d3a9a10")
        .header("content-length", "0");
    request.body(()).expect("a request").into_parts().0
}

fn retry_key_extract(times: usize) {
    let mut parts = parts();
    for _ in 0..times {
        let found = RetryKey::from_request_parts(black_box(&mut parts), &()).now_or_never();
        assert!(matches!(black_box(found), Some(Ok(RetryKey(Some(_))))));
    }
}

fn sale() -> Sale {
    Sale {
        id: SaleId::from_i64(1),
        title: "phone".to_owned(),
        description: String::new(),
        image_url: String::new(),
        currency: "USD".to_owned(),
        price_cents: 1,
        original_price_cents: None,
        stock: 10,
        per_user_limit: 1,
        opens_at: datetime!(2020-01-01 00:00 UTC),
        closes_at: datetime!(2090-01-01 00:00 UTC),
        payment_timeout_secs: 60,
        paused: false,
        closed: false,
        epoch: 1,
        version: 1,
        access_policy: AccessPolicy::default(),
    }
}

/// Sold out, said from memory to a user who has not bought: the look-up of the sale included.
fn refuse_from_memory(times: usize) {
    let cache = SaleCache::new();
    sell_out(&cache);
    let newcomer = UserId::from_bytes([99; 16]);
    for _ in 0..times {
        let cached = cache.get(black_box(SaleId::from_i64(1))).expect("known");
        let refusal = refusals::from_cache(&cached, &cache.clock, black_box(newcomer), None);
        assert!(matches!(black_box(refusal), Some(PurchaseResult::SoldOut)));
    }
}

/// Puts a sale into the cache that has nothing left, and whose buyers are known.
fn sell_out(cache: &SaleCache) {
    let cached = cache.learn(sale());
    let buyers: Vec<UserId> = (0..10).map(|number| UserId::from_bytes([number; 16])).collect();
    cached.tell(Some(Snapshot {
        epoch: 1,
        version: 1,
        stock: 10,
        remaining: 0,
        admitted: 10,
        pending: 0,
        revision: 10,
        approved: "this".into(),
        process: "this".into(),
    }));
    cached.buyers.saw(1, 10, buyers.iter().copied());
}

fn answer_accepted(times: usize) {
    for number in 0..times {
        let order = OrderId::from_i64((1 << 57) + number as i64);
        black_box(accepted(black_box(SaleId::from_i64(7)), order, false));
    }
}

fn answer_sold_out(times: usize) {
    for _ in 0..times {
        let problem = of_refusal(black_box(PurchaseResult::SoldOut), NOW).expect("a refusal");
        black_box(problem.into_response());
    }
}

/// A whole request, from its parsed head to its answer: the layers, the token, the cache.
fn request_sold_out(times: usize) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let _inside = runtime.enter();
    let redis = Redis::new("redis://127.0.0.1:1", "").expect("an address");
    let services = Services::new(
        Databases {
            postgres: flash_sale::postgres::pool(sqlx::postgres::PgConnectOptions::new(), 1),
            redis: Arc::new(redis),
        },
        Arc::new(SimulatedPayments),
        AdmissionSettings { high_water: 1, batch_limit: 1, handoff: None },
        Metrics::published(),
        FailPoints::default(),
    );
    sell_out(&services.catalog.cache);
    let tokens = TokenSigner::new(SECRET).expect("a long secret");
    let tomorrow = OffsetDateTime::now_utc() + time::Duration::DAY;
    let token = tokens.mint(UserId::from_bytes([99; 16]), "load", tomorrow);
    let state = HttpState {
        access: Arc::new(AccessPolicies::new(&services, &tokens, None)),
        services,
        tokens: Arc::new(tokens),
        admin: None,
        limits: None,
        metrics: Arc::new(String::new),
        streams: Streams::new(false, CancellationToken::new()),
        draining: Draining::default(),
        trust_proxy: ProxyTrust::Nobody,
        lab: LabState::default(),
    };
    let mut router = flash_sale::http::router(state).with_state(());
    let peer = ([127, 0, 0, 1], 1).into();
    let bearer = format!("Bearer {token}");
    for _ in 0..times {
        let mut request = Request::post("/api/v1/sales/1/orders")
            .header("host", "127.0.0.1:8080")
            .header("authorization", &bearer)
            .header("content-length", "0")
            .body(Body::empty())
            .expect("a request");
        // As the server does for the router.
        request.extensions_mut().insert(ConnectInfo::<SocketAddr>(peer));
        let answer = router.call(black_box(request)).now_or_never();
        let answer = answer.expect("it waits for nothing").expect("infallible");
        assert_eq!(black_box(answer).status(), 409);
    }
}

const BATCH: usize = 64;

/// A Redis that accepts whole batches.
struct Yes(Value);

impl ConnectionLike for Yes {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        black_box(command.get_packed_command());
        Box::pin(std::future::ready(Ok(self.0.clone())))
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        _: &'a Pipeline,
        _: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(std::future::ready(Ok(vec![Value::Nil; count])))
    }

    fn get_db(&self) -> i64 {
        0
    }
}

/// The command of a batch, and its reply read.
fn admit_batch(times: usize) {
    let bytes = |bytes: Vec<u8>| Value::BulkString(bytes);
    let mut redis = Yes(Value::Array(vec![
        bytes(b"ok".to_vec()),
        Value::Int(1_795_000_000_000),
        Value::Int(9_000),
        Value::Int(1_000),
        Value::Int(12),
        bytes(b"1795000000000-0".to_vec()),
        bytes(vec![b'A'; BATCH]),
        bytes(Vec::new()),
        bytes(vec![0; BATCH]),
    ]));
    let keys = Keys::new("");
    let buyers: Vec<Buyer> = (0..BATCH)
        .map(|number| Buyer {
            user: UserId::from_bytes([number as u8; 16]),
            order_id: OrderId::from_i64((1 << 57) + number as i64),
            key: IdempotencyKey::parse(b"a key"),
        })
        .collect();
    let options = AdmitOptions { high_water: 1_000_000, own_writer: true, readmitted: None };
    for _ in 0..times {
        let (sale, buyers) = (SaleId::from_i64(1), black_box(&buyers[..]));
        let asked = functions::admit(&mut redis, &keys, sale, 1, options, buyers);
        let told = asked.now_or_never().expect("it waits for nothing");
        assert_eq!(black_box(told.expect("a reply").expect("not fenced").verdicts.len()), BATCH);
    }
}

/// An entry of the log, read by a recovery pass.
fn log_entry(times: usize) {
    let orders: Vec<u8> = (0..BATCH * 33).map(|byte| byte as u8).collect();
    for _ in 0..times {
        let meta = black_box(&b"1 1795000000000 1"[..]);
        let batch = AcceptedBatch::decode(SaleId::from_i64(1), "1-1", meta, black_box(&orders));
        assert_eq!(black_box(batch).map(|batch| batch.orders.len()), Ok(BATCH));
    }
}
