//! One hot sale in several buckets, on one Redis process and on several: what Redis has to do for a purchase.
//!
//! The scripts are driven directly, by a task for each bucket, as its gate would: a batch of new buyers, and the
//! acknowledgement of the batch before, as the writer's. HTTP, Postgres and the hand-over would only hide Redis on a
//! machine as small as this. A fixed number of people wait at any moment, so the batch of a bucket is its share of
//! them: more buckets for the same crowd mean smaller batches, which is what a division costs.

use crate::{
    Error, Options,
    process::Workspace,
    section::{Section, thousands},
};
use flash_sale::{
    domain::{Bucket, OrderId, Sale, SaleId, UserId},
    embedded::{RedisFsync, RedisServer, RedisSettings},
    redis::{
        Keys,
        keys::shards_for,
        scripts::{self, AdmitOptions, Buyer, Installed, Judged, Settled},
    },
};
use redis::aio::MultiplexedConnection;
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use time::OffsetDateTime;

const BUCKETS: [u16; 3] = [1, 4, 64];
const PROCESSES: [usize; 3] = [1, 2, 3];
/// People who wait for an answer at any moment.
const WAITING: usize = 1_024;
/// The most that one call judges, as the program's default.
const BATCH: usize = 512;
/// How long each combination is measured.
const MEASURE: Duration = Duration::from_millis(2_500);
/// More than are sold meanwhile.
const STOCK: i32 = 20_000_000;

/// What one combination came to.
struct Measured {
    purchases: i64,
    seconds: f64,
    /// CPU seconds of all Redis processes, of the busiest one, and of this process.
    redis: f64,
    busiest: f64,
    driver: f64,
}

pub async fn run(options: &Options, workspace: &Workspace) -> Result<Section, Error> {
    let headings = [
        "Redis processes",
        "buckets",
        "buyers in a call",
        "purchases/s",
        "Redis CPU µs each",
        "driver CPU µs each",
        "busiest Redis %",
        "one core of Redis would bear/s",
    ];
    let mut section = Section::new(
        "buckets",
        "One sale in several buckets: the work of Redis",
        &headings,
    );
    let measure = if options.quick { MEASURE / 4 } else { MEASURE };
    let mut servers = Vec::new();
    for number in 0..PROCESSES[PROCESSES.len() - 1] {
        let settings = RedisSettings {
            fsync: RedisFsync::EverySec,
            ..RedisSettings::default()
        };
        let dir = workspace.path.join(format!("redis-{number}"));
        std::fs::create_dir_all(&dir)?;
        servers.push(RedisServer::start(&dir, settings).await?);
    }
    let mut figures = Vec::new();
    let mut failures = Vec::new();
    for processes in PROCESSES {
        for buckets in BUCKETS {
            if usize::from(buckets) < processes {
                continue; // a bucket is on one process
            }
            let mut connections = Vec::new();
            for server in &servers[..processes] {
                let client = redis::Client::open(server.url())?;
                connections.push(client.get_multiplexed_async_connection().await?);
            }
            let measured = sell(&connections, buckets, measure).await?;
            let (sold, seconds) = (measured.purchases as f64, measured.seconds);
            if sold < 1.0 {
                failures.push(format!("buckets: nothing was sold in {buckets} buckets"));
                continue;
            }
            let each = |cpu: f64| cpu / sold * 1e6;
            let batch = (WAITING / usize::from(buckets)).clamp(1, BATCH);
            section.row([
                processes.to_string(),
                buckets.to_string(),
                batch.to_string(),
                thousands(sold / seconds),
                format!("{:.2}", each(measured.redis)),
                format!("{:.2}", each(measured.driver)),
                format!("{:.0}", measured.busiest / seconds * 100.0),
                thousands(sold / measured.redis),
            ]);
            figures.push(json!({
                "processes": processes,
                "buckets": buckets,
                "batch": batch,
                "purchases": measured.purchases,
                "seconds": seconds,
                "per_second": sold / seconds,
                "redis_cpu_us": each(measured.redis),
                "driver_cpu_us": each(measured.driver),
                "busiest_redis_share": measured.busiest / seconds,
            }));
        }
    }
    for server in servers {
        server.stop().await;
    }
    section.note(format!(
        "{WAITING} people wait at any moment, in equal shares for each bucket, up to {BATCH} in a call. Each batch is \
         acknowledged, as the writer does after its commit. appendfsync everysec. The driver shares the processors with \
         the Redis processes: what they would bear with a core each is in the last column, computed from their CPU time.",
    ));
    section.figures = json!(figures);
    section.failures = failures;
    Ok(section)
}

/// Sells as fast as it goes for so long.
async fn sell(
    connections: &[MultiplexedConnection],
    buckets: u16,
    measure: Duration,
) -> Result<Measured, Error> {
    let keys = Keys::new("buckets:");
    let sale = Arc::new(sale(buckets));
    for mut connection in connections.iter().cloned() {
        redis::cmd("FLUSHALL").exec_async(&mut connection).await?;
    }
    let on =
        |bucket: Bucket| connections[usize::from(bucket.part.index) % connections.len()].clone();
    for bucket in sale.all_buckets() {
        let (mut connection, share) = (on(bucket), bucket.part.share(i64::from(STOCK)));
        scripts::seal(
            &mut connection,
            &keys,
            bucket,
            sale.epoch,
            sale.buyer_shards,
        )
        .await?;
        let installed =
            scripts::install(&mut connection, &keys, &sale, bucket.part, share, 0).await?;
        if installed != Installed::Open {
            return Err("a bucket could not be installed".into());
        }
    }
    let next = Arc::new(AtomicI64::new(1));
    // People who wait for the same bucket are in one batch; a second one is on its way while the first is judged.
    let batch = (WAITING / usize::from(buckets)).clamp(1, BATCH);
    let before = used(connections).await?;
    let began = Instant::now();
    let gates: Vec<_> = sale
        .all_buckets()
        .map(|bucket| {
            let gate = Gate {
                connection: on(bucket),
                keys: keys.clone(),
                sale: sale.clone(),
                bucket,
                batch,
                next: next.clone(),
            };
            tokio::spawn(gate.run(began + measure))
        })
        .collect();
    let mut purchases = 0;
    for gate in gates {
        purchases += gate.await??;
    }
    let seconds = began.elapsed().as_secs_f64();
    let after = used(connections).await?;
    let spent: Vec<f64> = after.iter().zip(&before).map(|(a, b)| a - b).collect();
    let (driver, redis) = spent.split_last().ok_or("no figures")?;
    Ok(Measured {
        purchases,
        seconds,
        redis: redis.iter().sum(),
        busiest: redis.iter().copied().fold(0.0, f64::max),
        driver: *driver,
    })
}

/// What stands in a bucket's gate.
struct Gate {
    connection: MultiplexedConnection,
    keys: Keys,
    sale: Arc<Sale>,
    bucket: Bucket,
    batch: usize,
    next: Arc<AtomicI64>,
}

impl Gate {
    async fn run(mut self, until: Instant) -> Result<i64, Error> {
        let options = AdmitOptions {
            high_water: 1_000_000,
            own_writer: true,
            late: None,
        };
        let (epoch, shards) = (self.sale.epoch, self.sale.buyer_shards);
        let mut sold = 0;
        while Instant::now() < until {
            let first = self.next.fetch_add(self.batch as i64, Relaxed);
            let buyers: Vec<Buyer> = (0..self.batch as i64)
                .map(|number| Buyer {
                    user: user(first + number),
                    order_id: OrderId::from_i64(first + number),
                    key: None,
                })
                .collect();
            let redis = &mut self.connection;
            let (keys, bucket) = (&self.keys, self.bucket);
            let judged = scripts::admit(redis, keys, bucket, epoch, shards, options, &buyers)
                .await?
                .map_err(|fenced| format!("{fenced:?}"))?;
            let accepted = |verdict: &&Judged| matches!(verdict, Judged::Accepted { .. });
            let count = judged.verdicts.iter().filter(accepted).count();
            sold += count as i64;
            if let Some(entry) = &judged.entry {
                let entries = vec![(entry.as_str(), count)];
                let settled = Settled {
                    bucket,
                    epoch,
                    entries,
                };
                scripts::ack(redis, keys, &[settled]).await?;
            }
        }
        Ok(sold)
    }
}

/// A user whom nobody has seen: their number, spread over the bits that a random id has.
fn user(number: i64) -> UserId {
    let low = number.cast_unsigned().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let high = low.rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    UserId::from_bytes(((u128::from(high) << 64) | u128::from(low)).to_be_bytes())
}

/// CPU seconds of each Redis process, and of this one at the end.
async fn used(connections: &[MultiplexedConnection]) -> Result<Vec<f64>, Error> {
    let mut spent = Vec::with_capacity(connections.len() + 1);
    for mut connection in connections.iter().cloned() {
        let info: String = redis::cmd("INFO")
            .arg("cpu")
            .query_async(&mut connection)
            .await?;
        let of = |name: &str| {
            info.lines()
                .find_map(|line| {
                    line.strip_prefix(name)?
                        .strip_prefix(':')?
                        .trim()
                        .parse()
                        .ok()
                })
                .unwrap_or(0.0)
        };
        let user: f64 = of("used_cpu_user");
        spent.push(user + of("used_cpu_sys"));
    }
    let own = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF)?;
    let seconds =
        |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    spent.push(seconds(own.user_time()) + seconds(own.system_time()));
    Ok(spent)
}

fn sale(buckets: u16) -> Sale {
    let now = OffsetDateTime::now_utc();
    Sale {
        id: SaleId::from_i64(1),
        title: "hot".to_owned(),
        description: String::new(),
        image_url: String::new(),
        currency: "USD".to_owned(),
        price_cents: 1,
        original_price_cents: None,
        stock: STOCK,
        per_user_limit: 1,
        opens_at: now - time::Duration::HOUR,
        closes_at: now + time::Duration::HOUR,
        payment_timeout_secs: 60,
        paused: false,
        closed: false,
        epoch: 1,
        version: 1,
        buyer_shards: shards_for(i64::from(STOCK), i64::from(buckets)),
        buckets: buckets.cast_signed(),
        former_buckets: buckets.cast_signed(),
        door: flash_sale::domain::Door::default(),
    }
}
