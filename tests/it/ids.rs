//! The id generator on a real Redis: many instances, lost counters, other days.

use crate::support::Servers;
use flash_sale::{
    domain::OrderId,
    fail_point::FailPoints,
    redis::{Redis, keys::IdLane},
    sale::ids::{IdGenerator, decode},
};
use std::{collections::HashSet, sync::Arc};
use time::OffsetDateTime;

struct Bench {
    redis: Arc<Redis>,
    postgres: flash_sale::postgres::Pool,
    database: crate::support::Database,
}

impl Bench {
    async fn new(prefix: &str) -> Self {
        let servers = Servers::shared().await;
        let database = servers.database().await;
        let postgres = flash_sale::postgres::pool(database.options(), 4);
        let redis = Arc::new(Redis::new(&servers.redis.url(), prefix).expect("url"));
        Self {
            redis,
            postgres,
            database,
        }
    }

    fn generator(&self) -> IdGenerator {
        IdGenerator::new(
            self.redis.clone(),
            self.postgres.clone(),
            FailPoints::default(),
        )
    }

    async fn take(&self, generator: &IdGenerator, count: usize) -> Vec<OrderId> {
        let mut connection = self.redis.pooled().await.expect("redis");
        let mut ids = Vec::new();
        generator
            .take(&mut connection, count, &mut ids)
            .await
            .expect("ids");
        assert_eq!(ids.len(), count);
        ids
    }

    async fn command(&self, command: &mut redis::Cmd) {
        let mut connection = self.redis.pooled().await.expect("redis");
        command.exec_async(&mut connection).await.expect("a reply");
    }

    async fn finish(self) {
        self.postgres.close().await;
        self.database.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_instances_never_make_the_same_id() {
    let bench = Arc::new(Bench::new("ids-many:").await);
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let bench = bench.clone();
            tokio::spawn(async move {
                let generator = bench.generator();
                let mut ids = Vec::new();
                for batch in 1..60 {
                    ids.extend(bench.take(&generator, batch * 7).await);
                }
                ids
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.expect("no panic"));
    }
    let distinct: HashSet<OrderId> = all.iter().copied().collect();
    assert_eq!(distinct.len(), all.len());
    let now = OffsetDateTime::now_utc().unix_timestamp();
    assert!(
        all.iter().all(|id| (now - decode(*id).0).abs() < 60),
        "ids carry the time they were made"
    );

    // The counter tells how many numbers the day has leased: at least as many as were used.
    let day = OffsetDateTime::now_utc().date();
    let mut connection = bench.redis.pooled().await.expect("redis");
    let leased: usize = redis::cmd("GET")
        .arg(bench.redis.keys.id_counter(IdLane::Whole, day))
        .query_async(&mut connection)
        .await
        .expect("GET");
    assert!(leased >= all.len(), "{leased} leased, {} used", all.len());
    drop(connection);
    Arc::into_inner(bench).expect("the only one").finish().await;
}

#[tokio::test]
async fn a_lost_counter_or_a_lost_clock_never_repeats_an_id() {
    let bench = Bench::new("ids-lost:").await;
    let mut seen = HashSet::new();
    for round in 0..20 {
        let (first, second) = (bench.generator(), bench.generator());
        for generator in [&first, &second] {
            for id in bench.take(generator, 100).await {
                assert!(seen.insert(id), "round {round}: {id} was made twice");
            }
        }
        // Lose the counter, the clock, or both, several times within one second.
        let day = OffsetDateTime::now_utc().date();
        let (counter, clock) = (
            bench.redis.keys.id_counter(IdLane::Whole, day),
            bench.redis.keys.id_clock(IdLane::Whole),
        );
        match round % 3 {
            0 => bench.command(redis::cmd("DEL").arg(counter)).await,
            1 => bench.command(redis::cmd("DEL").arg(clock)).await,
            _ => {
                bench
                    .command(redis::cmd("DEL").arg(counter).arg(clock))
                    .await
            }
        }
    }
    bench.finish().await;
}

#[tokio::test]
async fn a_clock_that_was_ahead_and_then_lost_does_not_repeat_either() {
    let bench = Bench::new("ids-ahead:").await;
    // Redis' clock once stood two days ahead, as the floor shows; ids carry that day.
    let ahead = OffsetDateTime::now_utc().unix_timestamp() + 2 * 86_400;
    bench
        .command(
            redis::cmd("HSET")
                .arg(bench.redis.keys.id_clock(IdLane::Whole))
                .arg("floor")
                .arg(ahead)
                .arg("day")
                .arg(ahead - ahead % 86_400 - 86_400),
        )
        .await;
    let early = bench.take(&bench.generator(), 50).await;
    assert!(
        early.iter().all(|id| decode(*id).0 == ahead),
        "ids never carry less than the floor"
    );
    // One of them became an order; then Redis lost everything, and its clock is right again.
    sqlx::query(
        "INSERT INTO orders (id, sale_id, user_id, slot, status, price_cents, created_at, closed_at)
         VALUES ($1, 1, gen_random_uuid(), NULL, 'rejected', 1, now(), now())",
    )
    .bind(early[49])
    .execute(&bench.postgres)
    .await
    .expect("an order");
    bench
        .command(redis::cmd("DEL").arg(bench.redis.keys.id_clock(IdLane::Whole)))
        .await;
    let late = bench.take(&bench.generator(), 50).await;
    assert!(
        late.iter()
            .all(|id| early.iter().all(|old| decode(*id).0 > decode(*old).0)),
        "all later than any stored"
    );
    bench.finish().await;
}

#[tokio::test]
async fn a_lease_of_yesterday_is_not_used_today() {
    let bench = Bench::new("ids-day:").await;
    let generator = bench.generator();
    let today = bench.take(&generator, 10).await;
    // The clock's floor moves to tomorrow: as if midnight had passed.
    let now = OffsetDateTime::now_utc().unix_timestamp();
    let tomorrow = now - now % 86_400 + 86_400 + 5;
    bench
        .command(
            redis::cmd("HSET")
                .arg(bench.redis.keys.id_clock(IdLane::Whole))
                .arg("floor")
                .arg(tomorrow),
        )
        .await;
    generator.discard_leases().await; // what a second does: a lease lives no longer
    let next = bench.take(&generator, 10).await;
    assert!(next.iter().all(|id| decode(*id).0 == tomorrow));
    assert_eq!(decode(next[0]).1, 1, "a new day counts from the start");
    let all: HashSet<_> = today.iter().chain(&next).collect();
    assert_eq!(all.len(), 20);
    bench.finish().await;
}
