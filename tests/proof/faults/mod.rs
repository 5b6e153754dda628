//! Faults: what is taken away, corrupted, stopped or filled up, and what is still true afterwards.
//! The judges: what people were told ([`crate::support::load`]), what they got, and the audit.
//!
//! From the environment: `SEED` repeats the random choices of a run that printed it, `CUTS` is how
//! many cuts `cuts.rs` makes, `SCALE=full` is for the catalogue in `rebuild.rs`, and `FAIL_POINT`
//! chooses the points in `fail_points.rs` whose names begin like this.

mod clocks;
mod cuts;
mod fail_points;
mod held_back;
mod poison;
mod postgres;
mod rebuild;
mod redis_corrupt;
mod redis_loss;
mod refusals;

use crate::support::{prelude::*, redis_servers::RedisProcess};
use flash_sale::order_log::{AcceptedBatch, AcceptedOrder};
use flash_sale::{admission::ids, orders::insert::Expect};

const ENOUGH: usize = 80;

pub async fn own_pair() -> (Servers, [TestApp; 2]) {
    let (servers, first) = TestApp::on_own_servers().await;
    let second = first.another(Options::default()).await;
    (servers, [first, second])
}

pub async fn epoch(app: &TestApp, sale: &str) -> i64 {
    app.number(&format!("SELECT epoch FROM sales WHERE id = {sale}")).await
}

pub async fn until_rebuilt(app: &TestApp, sale: &str, before: i64) {
    wait_for!("the sale is rebuilt", {
        let now = epoch(app, sale).await;
        let redis = app.services.auditor.audit(sale.parse().expect("an id")).await.ok()?.redis;
        (now > before && redis.epoch == Some(now) && redis.run_id_approved).then_some(())
    });
}

pub async fn rebuilt_by(app: &TestApp, sale: &str, damage: impl Future<Output = ()>) {
    let before = epoch(app, sale).await;
    damage.await;
    until_rebuilt(app, sale, before).await;
}

async fn sold(app: &TestApp, stock: i64, count: usize) -> (String, Vec<Winner>) {
    let sale = app.sale(stock, json!({})).await;
    let winners = crowd(app, &sale, count).await;
    assert_eq!(winners.len(), count);
    (sale, winners)
}

pub async fn rush_with_regulars(apps: &[&TestApp], count: usize) -> (String, Rush) {
    let sale = apps[0].sale(50_000, json!({})).await;
    let regulars = crowd(apps[0], &sale, count).await;
    all_written(&regulars).await;
    let entrances: Vec<Entrance> = apps.iter().map(|app| app.entrance.clone()).collect();
    let rush = Rush::start(&entrances, &sale, 6, &regulars);
    rush.until_accepted(ENOUGH).await;
    (sale, rush)
}

/// Makes Postgres doubt the live Redis process: everything has to be rebuilt.
const DISOWN: &str = "UPDATE redis_incarnation SET run_id = 'another process'";

pub async fn flush(app: &TestApp) {
    app.in_redis::<()>(&mut redis::cmd("FLUSHALL")).await;
}

/// How often Redis has run this command ("fcall": a function).
pub async fn calls_of(app: &TestApp, command: &str) -> u64 {
    let statistics: String = app.in_redis(redis::cmd("INFO").arg("commandstats")).await;
    let calls = statistics.split(&format!("cmdstat_{command}:calls=")).nth(1);
    let calls = calls.and_then(|rest| rest.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

pub fn arm(app: &TestApp, points: &str) {
    app.services.fail_points.set(points).expect("fail points");
}

fn fired(app: &TestApp, point: &str) -> u64 {
    app.services.fail_points.fired(point)
}

fn keys_of(app: &TestApp, sale: &str) -> (Keys, SaleId) {
    (Keys::new(&app.prefix), sale.parse().expect("an id"))
}

/// Of the epoch that Postgres knows.
struct LiveKeys {
    state: String,
    log: String,
    buyers: String,
}

async fn live_keys(app: &TestApp, sale: &str) -> LiveKeys {
    let ((keys, id), epoch) = (keys_of(app, sale), epoch(app, sale).await);
    LiveKeys { state: keys.state(id), log: keys.log(id), buyers: keys.buyers(id, epoch) }
}

async fn state(app: &TestApp, sale: &str, field: &str) -> i64 {
    let (keys, id) = keys_of(app, sale);
    app.in_redis(redis::cmd("HGET").arg(keys.state(id)).arg(field)).await
}

async fn assert_all_pending(app: &TestApp, sale: &str, winners: &[Winner]) {
    let statuses = app.database.assert_kept(sale, winners).await;
    assert_eq!(statuses, BTreeMap::from([("pending_payment".to_owned(), winners.len())]));
}

pub async fn assert_nothing_lost(app: &TestApp, sale: &str, rush: Rush) -> Told {
    let told = rush.end().await;
    assert_all_pending(app, sale, &told.winners).await;
    let (accepted, live) = (told.winners.len(), app.assert_sound(sale).await.live);
    println!("{accepted} told 202, {} told 503, {live} live", told.unanswered.len());
    // An attempt that was told 503 may have become an order, too.
    assert!(live >= accepted as i64);
    told
}

async fn sells_out(app: &TestApp, sale: &str) {
    wait_for!("the rest is sold", {
        crowd(app, sale, 30).await;
        (app.quiet_audit(sale).await.remaining == 0).then_some(())
    });
    let audit = app.assert_sound(sale).await;
    assert_eq!(audit.live, audit.stock);
}

/// An order of this moment, under an id that the generator, which counts from 1 a day, never makes.
fn new_order(number: u32) -> AcceptedOrder {
    let now = OffsetDateTime::now_utc().unix_timestamp();
    let id = ids::encode(now, 4_000_000_000 + number).expect("an id");
    AcceptedOrder { id, user: UserId::random(), slot: 0, key: None }
}

async fn count(app: &TestApp, order: &AcceptedOrder, status: &str) -> i64 {
    let AcceptedOrder { id, user, .. } = order;
    let theirs = format!("SELECT count(*) FROM orders WHERE id = {id} AND user_id = '{user}'");
    app.number(&format!("{theirs} AND status = '{status}'")).await
}

fn now_ms() -> i64 {
    OffsetDateTime::now_utc().unix_timestamp() * 1_000
}

fn batch_of(sale: SaleId, epoch: i64, order: AcceptedOrder) -> AcceptedBatch {
    AcceptedBatch {
        sale,
        epoch,
        entry: "1-1".to_owned(),
        created_ms: now_ms(),
        own_writer: true,
        orders: vec![order],
        traced: Vec::new(),
    }
}
