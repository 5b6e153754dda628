//! The id generator on a real Redis: many instances, lost counters, other days.

use crate::support::prelude::*;
use flash_sale::admission::ids::{IdGenerator, decode};
use flash_sale::redis::{Redis, keys::IdLane};
use flash_sale::{databases::Databases, fail_point::FailPoints};

/// The generator of another instance; that of the application itself has nothing to do here.
fn generator(app: &TestApp) -> IdGenerator {
    let Databases { postgres, redis } = app.services.databases.clone();
    IdGenerator::new(redis, postgres, FailPoints::default())
}

async fn take(redis: &Redis, generator: &IdGenerator, count: usize) -> Vec<OrderId> {
    let mut redis = redis.pooled().await.expect("redis");
    let mut ids = Vec::new();
    generator.take(&mut redis, count, &mut ids).await.expect("ids");
    assert_eq!(ids.len(), count);
    ids
}

fn keys(app: &TestApp) -> [String; 2] {
    let (keys, day) = (&app.services.databases.redis.keys, OffsetDateTime::now_utc().date());
    [keys.id_counter(IdLane::Whole, day), keys.id_clock(IdLane::Whole)]
}

async fn set_clock(app: &TestApp, fields: &[(&str, i64)]) {
    let [_, clock] = keys(app);
    let () = app.redis().await.hset_multiple(clock, fields).await.expect("HSET");
}

fn now() -> i64 {
    OffsetDateTime::now_utc().unix_timestamp()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_counter_or_a_lost_clock_never_repeats_an_id() {
    let app = TestApp::start().await;
    let mut seen = HashSet::new();
    for round in 0..20 {
        for generator in [generator(&app), generator(&app)] {
            for id in take(&app.services.databases.redis, &generator, 100).await {
                assert!(seen.insert(id), "round {round}: {id} was made twice");
            }
        }
        let keys = keys(&app);
        let lost = [&keys[..1], &keys[1..], &keys];
        let () = app.redis().await.del(lost[round % 3]).await.expect("DEL");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_was_ahead_and_then_lost_does_not_repeat_either() {
    let app = TestApp::start().await;
    // Redis' clock once stood two days ahead, as the floor shows; ids carry that day.
    let ahead = now() + 2 * 86_400;
    let day = ahead - ahead % 86_400 - 86_400;
    set_clock(&app, &[("floor", ahead), ("day", day)]).await;
    let early = take(&app.services.databases.redis, &generator(&app), 50).await;
    assert!(early.iter().all(|id| decode(*id).0 == ahead), "never less than the floor");
    // One of them became an order; then Redis lost everything, and its clock is right again.
    let row = format!("({}, 1, gen_random_uuid(), 'rejected', 1, now(), now())", early[49]);
    let columns = "(id, sale_id, user_id, status, price_cents, created_at, closed_at)";
    app.execute(&format!("INSERT INTO orders {columns} VALUES {row}")).await;
    let () = app.redis().await.del(&keys(&app)[1]).await.expect("DEL");
    let late = take(&app.services.databases.redis, &generator(&app), 50).await;
    assert!(late.iter().all(|id| decode(*id).0 > ahead), "later than any stored");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_of_yesterday_is_not_used_today() {
    let app = TestApp::start().await;
    let generator = generator(&app);
    let today = take(&app.services.databases.redis, &generator, 10).await;
    // The clock's floor moves to tomorrow: as if midnight had passed.
    let tomorrow = now() - now() % 86_400 + 86_400 + 5;
    set_clock(&app, &[("floor", tomorrow)]).await;
    generator.discard_leases().await; // what a second does: a lease lives no longer
    let next = take(&app.services.databases.redis, &generator, 10).await;
    assert!(next.iter().all(|id| decode(*id).0 == tomorrow));
    assert_eq!(decode(next[0]).1, 1, "a new day counts from the start");
    assert_eq!(today.iter().chain(&next).collect::<HashSet<_>>().len(), 20);
}
