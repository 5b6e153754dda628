//! The id generator on a real Redis: many instances, lost counters, other days.

use crate::support::{Database, Servers};
use flash_sale::{
    admission::ids::{IdGenerator, decode},
    domain::OrderId,
    fail_point::FailPoints,
    postgres::Pool,
    redis::{Redis, keys::IdLane},
};
use redis::AsyncCommands;
use std::{collections::HashSet, sync::Arc};
use time::OffsetDateTime;

struct Bench {
    redis: Arc<Redis>,
    postgres: Pool,
    database: Database,
}

impl Bench {
    async fn new(prefix: &str) -> Self {
        let servers = Servers::shared().await;
        let database = servers.database().await;
        Self {
            redis: Arc::new(Redis::new(&servers.redis.url(), prefix).expect("url")),
            postgres: flash_sale::postgres::pool(database.options(), 4),
            database,
        }
    }

    fn generator(&self) -> IdGenerator {
        let (redis, postgres) = (self.redis.clone(), self.postgres.clone());
        IdGenerator::new(redis, postgres, FailPoints::default())
    }

    async fn take(&self, generator: &IdGenerator, count: usize) -> Vec<OrderId> {
        let mut redis = self.redis.pooled().await.expect("redis");
        let mut ids = Vec::new();
        generator.take(&mut redis, count, &mut ids).await.expect("ids");
        assert_eq!(ids.len(), count);
        ids
    }

    /// The keys of today's counter and of the clock.
    fn keys(&self) -> [String; 2] {
        let day = OffsetDateTime::now_utc().date();
        let keys = &self.redis.keys;
        [keys.id_counter(IdLane::Whole, day), keys.id_clock(IdLane::Whole)]
    }

    async fn delete(&self, keys: &[String]) {
        let mut redis = self.redis.pooled().await.expect("redis");
        let () = redis.del(keys).await.expect("DEL");
    }

    async fn set_clock(&self, fields: &[(&str, i64)]) {
        let mut redis = self.redis.pooled().await.expect("redis");
        let [_, clock] = self.keys();
        let () = redis.hset_multiple(clock, fields).await.expect("HSET");
    }

    async fn finish(self) {
        self.postgres.close().await;
        self.database.drop().await;
    }
}

fn now() -> i64 {
    OffsetDateTime::now_utc().unix_timestamp()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_instances_never_make_the_same_id() {
    let bench = Arc::new(Bench::new("ids-many:").await);
    let take_many = |bench: Arc<Bench>| async move {
        let generator = bench.generator();
        let mut ids = Vec::new();
        for batch in 1..60 {
            ids.extend(bench.take(&generator, batch * 7).await);
        }
        ids
    };
    let tasks: Vec<_> = (0..8).map(|_| tokio::spawn(take_many(bench.clone()))).collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.expect("no panic"));
    }
    let distinct: HashSet<OrderId> = all.iter().copied().collect();
    assert_eq!(distinct.len(), all.len());
    let is_of_now = |id: &OrderId| (now() - decode(*id).0).abs() < 60;
    assert!(all.iter().all(is_of_now), "ids carry their time");

    // The counter tells how many numbers the day has leased: at least as many as were used.
    let mut redis = bench.redis.pooled().await.expect("redis");
    let leased: usize = redis.get(&bench.keys()[0]).await.expect("GET");
    assert!(leased >= all.len(), "{leased} leased, {} used", all.len());
    drop(redis);
    Arc::into_inner(bench).expect("the only one").finish().await;
}

#[tokio::test]
async fn a_lost_counter_or_a_lost_clock_never_repeats_an_id() {
    let bench = Bench::new("ids-lost:").await;
    let mut seen = HashSet::new();
    for round in 0..20 {
        for generator in [bench.generator(), bench.generator()] {
            for id in bench.take(&generator, 100).await {
                assert!(seen.insert(id), "round {round}: {id} was made twice");
            }
        }
        // Lose the counter, the clock, or both, several times within one second.
        let keys = bench.keys();
        let lost = [&keys[..1], &keys[1..], &keys];
        bench.delete(lost[round % 3]).await;
    }
    bench.finish().await;
}

#[tokio::test]
async fn a_clock_that_was_ahead_and_then_lost_does_not_repeat_either() {
    let bench = Bench::new("ids-ahead:").await;
    // Redis' clock once stood two days ahead, as the floor shows; ids carry that day.
    let ahead = now() + 2 * 86_400;
    let day = ahead - ahead % 86_400 - 86_400;
    bench.set_clock(&[("floor", ahead), ("day", day)]).await;
    let early = bench.take(&bench.generator(), 50).await;
    let is_ahead = |id: &OrderId| decode(*id).0 == ahead;
    assert!(early.iter().all(is_ahead), "never less than the floor");
    // One of them became an order; then Redis lost everything, and its clock is right again.
    let order = sqlx::query(
        "INSERT INTO orders (id, sale_id, user_id, slot, status, price_cents, created_at, closed_at)
         VALUES ($1, 1, gen_random_uuid(), NULL, 'rejected', 1, now(), now())",
    );
    order.bind(early[49]).execute(&bench.postgres).await.expect("an order");
    bench.delete(&bench.keys()[1..]).await;
    let late = bench.take(&bench.generator(), 50).await;
    let is_later = |id: &OrderId| decode(*id).0 > ahead;
    assert!(late.iter().all(is_later), "later than any stored");
    bench.finish().await;
}

#[tokio::test]
async fn a_lease_of_yesterday_is_not_used_today() {
    let bench = Bench::new("ids-day:").await;
    let generator = bench.generator();
    let today = bench.take(&generator, 10).await;
    // The clock's floor moves to tomorrow: as if midnight had passed.
    let tomorrow = now() - now() % 86_400 + 86_400 + 5;
    bench.set_clock(&[("floor", tomorrow)]).await;
    generator.discard_leases().await; // what a second does: a lease lives no longer
    let next = bench.take(&generator, 10).await;
    assert!(next.iter().all(|id| decode(*id).0 == tomorrow));
    assert_eq!(decode(next[0]).1, 1, "a new day counts from the start");
    let all: HashSet<_> = today.iter().chain(&next).collect();
    assert_eq!(all.len(), 20);
    bench.finish().await;
}
