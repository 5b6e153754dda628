//! Damage in Redis that no purchase meets: the scrubber finds it, and the sale is rebuilt.

use super::{epoch, until_rebuilt};
use crate::support::{
    app::{Options, TestApp, eventually},
    load::crowd,
};
use flash_sale::{domain::SaleId, redis::Keys};
use redis::Cmd;
use serde_json::json;

struct Sale {
    keys: Keys,
    id: SaleId,
    epoch: i64,
}

/// A sale of 40, of which 20 are sold; and what somebody does to it in Redis. Nobody buys meanwhile.
async fn damaged(options: Options, damage: impl FnOnce(&Sale) -> Cmd) -> (TestApp, String) {
    let app = TestApp::start_with(options).await;
    let sale = app.sale(40, json!({})).await;
    let winners = crowd(&app, &sale, 20).await;
    assert_eq!(winners.len(), 20);
    let before = epoch(&app, &sale).await;
    let damaged = damage(&Sale {
        keys: Keys::new(&app.prefix),
        id: sale.parse().expect("an id"),
        epoch: before,
    });
    damaged
        .exec_async(&mut app.redis().await)
        .await
        .expect("the damage is done");
    until_rebuilt(&app, &sale, before).await;
    (app, sale)
}

/// All that is left sells, once.
async fn sells_out((app, sale): (TestApp, String)) {
    eventually("the rest is sold", async || {
        crowd(&app, &sale, 30).await;
        (app.quiet_audit(&sale).await.remaining == 0).then_some(())
    })
    .await;
    assert_eq!(app.assert_sound(&sale).await.live, 40);
    app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buyers_that_are_gone_come_back() {
    let damage = |sale: &Sale| {
        let mut unlink = redis::cmd("UNLINK");
        unlink.arg(sale.keys.buyers(sale.id, sale.epoch));
        unlink
    };
    sells_out(damaged(Options::default(), damage).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_from_nowhere_are_taken_away() {
    let damage = |sale: &Sale| {
        let mut set = redis::cmd("HSET");
        set.arg(sale.keys.state(sale.id))
            .arg("remaining")
            .arg(999_999);
        set
    };
    sells_out(damaged(Options::default(), damage).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_that_went_astray_come_back() {
    let damage = |sale: &Sale| {
        let mut set = redis::cmd("HINCRBY");
        set.arg(sale.keys.state(sale.id)).arg("remaining").arg(-5);
        set
    };
    sells_out(damaged(Options::default(), damage).await).await;
}

/// One buyer of twenty, whose place somebody who never bought has taken: the counts agree.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_buyer_that_was_replaced_is_missed() {
    let app = TestApp::start().await;
    let sale = app.sale(40, json!({})).await;
    let winners = crowd(&app, &sale, 20).await;
    let before = epoch(&app, &sale).await;
    let buyers = Keys::new(&app.prefix).buyers(sale.parse().expect("an id"), before);
    let mut redis = app.redis().await;
    app.assert_sound(&sale).await;
    let user = winners[7].0.user;
    redis::pipe()
        .atomic()
        .hdel(&buyers, user.as_bytes())
        .hset(&buyers, &[9u8; 16][..], &[0u8; 17][..])
        .exec_async(&mut redis)
        .await
        .expect("the damage is done");
    until_rebuilt(&app, &sale, before).await;
    let again = app.as_shopper(&winners[7].0).buy(&sale).await;
    again.assert_problem(409, "already_ordered");
    sells_out((app, sale)).await;
}

/// The instance has no writer: the orders are in the log only, and the log is emptied. Their users hold
/// a 202 that nothing can honour any more, but the units are not lost as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_of_a_log_that_was_trimmed_come_back() {
    let damage = |sale: &Sale| {
        let mut trim = redis::cmd("XTRIM");
        trim.arg(sale.keys.log(sale.id)).arg("MAXLEN").arg(0);
        trim
    };
    let app = TestApp::start_with(Options::without_writer()).await;
    let sale = app.sale(40, json!({})).await;
    assert_eq!(crowd(&app, &sale, 20).await.len(), 20);
    damage(&Sale {
        keys: Keys::new(&app.prefix),
        id: sale.parse().expect("an id"),
        epoch: 1,
    })
    .exec_async(&mut app.redis().await)
    .await
    .expect("the damage is done");
    let worker = app.another(Options::default()).await;
    until_rebuilt(&app, &sale, 1).await;
    worker.stop().await;
    app.finish().await;
}
