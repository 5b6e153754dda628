//! A sale's state in Redis is there, and is nonsense: the sale is shut until it is rebuilt from Postgres
//! by itself, and the others go on undisturbed.

use crate::support::{
    app::{Shopper, TestApp, eventually},
    load::{Rush, Winner, assert_shed, crowd},
};
use flash_sale::{domain::SaleId, redis::Keys};
use redis::{Pipeline, aio::MultiplexedConnection};
use reqwest::StatusCode;
use serde_json::json;

/// What is done to the keys of one sale: its state, its log, and its buyers.
type Corruption = fn(&mut Pipeline, &str, &str, &str);

const STOCK: i64 = 16;

fn set(pipeline: &mut Pipeline, state: &str, field: &str, nonsense: &str) {
    pipeline.hset(state, field, nonsense).ignore();
}

fn another_type(pipeline: &mut Pipeline, key: &str) {
    pipeline.del(key).ignore();
    pipeline.set(key, "something else").ignore();
}

/// An entry as the admission script appends it, counted and all, but with these fields.
fn unreadable(pipeline: &mut Pipeline, state: &str, log: &str, meta: &[u8], orders: &[u8]) {
    pipeline
        .cmd("XADD")
        .arg(log)
        .arg("*")
        .arg("m")
        .arg(meta)
        .arg("o")
        .arg(orders)
        .ignore();
    pipeline.hincr(state, "pending", 3).ignore();
    pipeline.hincr(state, "admitted", 3).ignore();
    pipeline.hincr(state, "remaining", -3).ignore();
}

const CORRUPTIONS: &[(&str, Corruption)] = &[
    ("epoch", |p, state, _, _| set(p, state, "epoch", "?")),
    ("opens", |p, state, _, _| set(p, state, "opens", "soon")),
    ("closes", |p, state, _, _| set(p, state, "closes", "")),
    ("limit", |p, state, _, _| set(p, state, "limit", "one")),
    ("remaining", |p, state, _, _| {
        set(p, state, "remaining", "many")
    }),
    ("pending", |p, state, _, _| set(p, state, "pending", "0x")),
    ("admitted", |p, state, _, _| {
        p.hdel(state, "admitted").ignore();
    }),
    ("change", |p, state, _, _| set(p, state, "change", "-")),
    ("a state of another type", |p, state, _, _| {
        another_type(p, state)
    }),
    ("a log of another type", |p, _, log, _| another_type(p, log)),
    ("buyers of another type", |p, _, _, buyers| {
        another_type(p, buyers)
    }),
    ("an entry with a header of noise", |p, state, log, _| {
        unreadable(p, state, log, b"\xff\xfe", &[1; 99]);
    }),
    ("an entry that is cut off", |p, state, log, _| {
        unreadable(p, state, log, b"1 1767225600000 0", &[1; 98]);
    }),
    ("an entry without orders", |p, state, log, _| {
        unreadable(p, state, log, b"1 1767225600000 0", &[]);
    }),
];

async fn corrupt(app: &TestApp, redis: &mut MultiplexedConnection, sale: &str, how: Corruption) {
    let (keys, id): (_, SaleId) = (Keys::new(&app.prefix), sale.parse().expect("an id"));
    let epoch = super::epoch(app, sale).await;
    let mut pipeline = redis::pipe();
    pipeline.atomic();
    how(
        &mut pipeline,
        &keys.state(id),
        &keys.log(id),
        &keys.buyers(id, epoch),
    );
    pipeline.exec_async(redis).await.expect("corrupted");
}

/// Somebody new buys as soon as the sale takes orders again; until then they hear 503.
async fn buy_when_healed(what: &str, shopper: Shopper, sale: &str) -> Winner {
    let mut unsure = false;
    let id = eventually(&format!("the sale heals: {what}"), async || {
        let reply = shopper.buy(sale).await;
        match reply.status {
            StatusCode::ACCEPTED => Some(reply.text("order_id").to_owned()),
            // An attempt that was told 503 had gone through.
            StatusCode::CONFLICT if unsure => Some(reply.text("order_id").to_owned()),
            _ => {
                assert_shed(&reply);
                unsure = true;
                None
            }
        }
    })
    .await;
    (shopper, id)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_corrupt_sale_heals_by_itself_and_its_neighbours_notice_nothing() {
    let app = TestApp::start().await;
    let neighbour = app.sale(50_000, json!({})).await;
    let mut broken = Vec::new();
    for (what, how) in CORRUPTIONS {
        let sale = app.sale(STOCK, json!({})).await;
        let winners = crowd(&app, &sale, 5).await;
        assert_eq!(winners.len(), 5);
        app.assert_sound(&sale).await;
        broken.push((*what, *how, sale, winners));
    }
    let rush = Rush::start(&[&app], &neighbour, 4, &[]);
    rush.until_accepted(20).await;
    let mut redis = app.redis().await;
    for (_, how, sale, _) in &broken {
        corrupt(&app, &mut redis, sale, *how).await;
    }
    for (what, _, sale, winners) in &mut broken {
        winners.push(buy_when_healed(what, app.shopper(), sale).await);
        eventually(&format!("sold again without a flaw: {what}"), async || {
            // What was put aside is rebuilt a moment later than somebody can buy.
            let audit = app.audit(sale).await;
            (audit.ok && audit.conserved == Some(true)).then_some(())
        })
        .await;
        let kept = app.assert_kept(sale, winners).await;
        assert_eq!(kept["pending_payment"], 6, "{what}: {kept:?}");
        let others = crowd(&app, sale, 20).await;
        let audit = app.assert_sound(sale).await;
        assert_eq!(audit.live, STOCK, "{what}: {} more sold", others.len());
    }
    rush.until_accepted(20).await;
    let told = rush.end().await;
    assert_eq!(told.shed, 0, "the neighbour was shut, too");
    app.assert_kept(&neighbour, &told.winners).await;
    app.assert_sound(&neighbour).await;
    // What could not be read is not thrown away.
    let aside: Vec<String> = redis::cmd("KEYS")
        .arg(format!("{}*:unreadable", app.prefix))
        .query_async(&mut redis)
        .await
        .expect("KEYS");
    assert_eq!(aside.len(), 4, "three entries and a log: {aside:?}");
    app.finish().await;
}
