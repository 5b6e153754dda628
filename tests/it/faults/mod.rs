//! Faults: what is taken away, corrupted, stopped or filled up, and what is still true afterwards.
//!
//! Each file breaks one thing on real servers of its own. The judges are the same everywhere: what
//! people were told ([`crate::support::load`]), what they got, and the audit.
//!
//! Read from the environment, all optional:
//!
//! | variable | does |
//! |---|---|
//! | `SEED` | repeats the random choices of a run that printed it |
//! | `CUTS` | how many cuts `cuts.rs` makes; the recorded run makes 1,000 |
//! | `SCALE=full` | the catalogue in `rebuild.rs` has 1,000 sales and 1,000,000 buyers |
//! | `ROWS=apart` | and each sale's rows lie together, as if one had sold after the other |
//! | `FAIL_POINT` | only the points in `fail_points.rs` whose names begin like this |
//! | `FLASH_SALE_ALLOW_UNEXERCISED` | goes on where a fault cannot be made here (a full disk needs `mount`) |

mod clocks;
mod cuts;
mod fail_points;
mod failover;
mod late;
mod poison;
mod postgres;
mod postgres_disk;
mod rebuild;
mod redis_corrupt;
mod redis_loss;
mod refusals;
mod scrub;

use crate::support::{
    Servers,
    app::{Options, TestApp, eventually},
    random::Random,
};
use flash_sale::embedded::{RedisServer, RedisSettings};
use futures_util::StreamExt;
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Once,
};

/// A Redis that a test takes away, changes on disk and gives back at the same address.
struct OwnRedis {
    dir: PathBuf,
    settings: RedisSettings,
    /// `None` while it is away.
    server: Option<RedisServer>,
}

impl OwnRedis {
    async fn start(dir: PathBuf, settings: RedisSettings) -> Self {
        let mut redis = Self {
            dir,
            settings,
            server: None,
        };
        redis.start_again().await;
        redis
    }

    /// `kill -9`, and nobody starts it again: that would take a supervisor 100 ms, and it goes too.
    fn kill(&mut self) {
        if let Some(server) = self.server.take() {
            server.kill();
        }
    }

    async fn start_again(&mut self) {
        let server = RedisServer::start(&self.dir, self.settings.clone()).await;
        self.server = Some(server.expect("redis starts"));
    }

    fn server(&self) -> &RedisServer {
        self.server.as_ref().expect("it runs")
    }

    /// The folder of its append-only files.
    fn files(&self) -> PathBuf {
        self.dir.join("redis").join("appendonlydir")
    }

    /// The file that commands are appended to, and its length.
    fn last_incr(&self) -> (PathBuf, u64) {
        let files = fs::read_dir(self.files()).expect("the append-only files");
        let mut incr: Vec<PathBuf> = files
            .map(|file| file.expect("a file").path())
            .filter(|path| path.to_string_lossy().ends_with(".incr.aof"))
            .collect();
        incr.sort();
        let last = incr.pop().expect("one is open");
        let length = fs::metadata(&last).expect("its length").len();
        (last, length)
    }
}

/// Shortens a file to this length, as a power cut shortens what was not on disk yet.
fn cut(file: &Path, length: u64) {
    let open = fs::OpenOptions::new().write(true).open(file);
    open.and_then(|file| file.set_len(length))
        .expect("the file is cut");
}

fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for file in fs::read_dir(from)? {
        let file = file?;
        fs::copy(file.path(), to.join(file.file_name()))?;
    }
    Ok(())
}

/// Two instances on one Postgres, and on a Redis that the test may do anything to.
struct Pair {
    redis: OwnRedis,
    first: TestApp,
    second: TestApp,
    servers: Servers,
}

impl Pair {
    async fn start() -> Self {
        let servers = Servers::own().await;
        let redis = OwnRedis::start(servers.folder("other"), RedisSettings::default()).await;
        let database = servers.database().await;
        let options = Options::default();
        let first = TestApp::launch(
            database,
            redis.server().url(),
            "pair:".to_owned(),
            options.clone(),
        )
        .await;
        let second = first.another(options).await;
        Self {
            redis,
            first,
            second,
            servers,
        }
    }

    fn apps(&self) -> [&TestApp; 2] {
        [&self.first, &self.second]
    }

    /// Ends the instances; the servers end with the value.
    async fn finish(self) {
        self.second.stop().await;
        self.first.stop().await;
        drop(self.servers);
    }
}

/// The epoch that Postgres has for this sale.
async fn epoch(app: &TestApp, sale: &str) -> i64 {
    app.number(&format!("SELECT epoch FROM sales WHERE id = {sale}"))
        .await
}

/// Waits until this sale was rebuilt after the epoch `before`, and Redis has the new state.
async fn until_rebuilt(app: &TestApp, sale: &str, before: i64) {
    eventually("the sale is rebuilt", async || {
        let now = epoch(app, sale).await;
        let audit = app.shop.audit(sale.parse().expect("an id")).await.ok()?;
        (now > before && audit.redis.epoch == Some(now) && audit.redis.run_id_approved)
            .then_some(())
    })
    .await;
}

/// From a seed that is printed, `SEED` or the clock: what happened can be made to happen again.
fn dice(what: &str) -> Random {
    let seed = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let now = time::OffsetDateTime::now_utc().unix_timestamp_nanos();
    let seed = seed.unwrap_or_else(|| u64::try_from(now).unwrap_or_default());
    println!("{what}: SEED={seed}");
    Random::new(seed)
}

/// FLUSHALL: everything in this application's Redis is gone, at once.
async fn flush(app: &TestApp) {
    app.in_redis::<()>(&mut redis::cmd("FLUSHALL")).await;
}

/// Runs all of these, a few at a time: they wait more than they work.
async fn in_turns(at_once: usize, cells: impl Iterator<Item = impl Future<Output = ()>>) {
    futures_util::stream::iter(cells)
        .for_each_concurrent(at_once, |cell| cell)
        .await;
}

/// Panics that a test has asked for are no news, and to print where one came from takes the debug
/// information of the whole binary.
fn keep_quiet_about_injected_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // As `panic!` with arguments leaves it.
            let text = panic.payload().downcast_ref::<String>();
            let injected = text.is_some_and(|text| text.starts_with("injected at "));
            if !injected {
                usual(panic);
            }
        }));
    });
}
