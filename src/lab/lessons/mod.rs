//! The lock theatre: every way a distributed lock fails, on stage, step by step, and then its cure.
//!
//! | file | what |
//! |---|---|
//! | [`stage`] | clients that do nothing until they are told to; what is recorded |
//! | [`timeline`] | the record, and its shape for the page |
//! | [`shop`] | what the lock protects |
//! | [`nodes`] | Redis servers of one play alone |
//! | `proxy` | a wire between a client and a server that can be cut |
//! | [`options`] | the knobs of a lesson |
//! | [`terminal`] | the same timeline as text |
//! | [`ids`] | the lesson on order numbers, which needs no stage |
//! | `b01` … `b12` | the lessons, one file each, in one shape |
//!
//! A lesson drives the locks of [`crate::lock`] as they are. Where the failure is of a kind that no sane
//! library has, the failing variant stands in the lesson's own file. Its verdicts come from what was
//! recorded and from the resource's rows: with an option that takes the cause away, the failure does not
//! happen, and the verdict says so.

pub mod ids;
pub mod nodes;
pub mod options;
mod proxy;
pub mod shop;
pub mod stage;
pub mod terminal;
pub mod timeline;

mod b01_crash_between;
mod b02_expired_stamp;
mod b03_foreign_delete;
mod b04_lease_over;
mod b05_counted_twice;
mod b06_watchdog;
mod b07_lost_wakeup;
mod b08_foreign_unlock;
mod b09_failover;
mod b10_redlock;
mod b11_zookeeper;
mod b12_before_commit;
mod code;
mod prelude;

use super::{
    options::BadOption,
    servers::{IDLE_LIMIT, Servers},
    strategy::{Language, Need, OptionKind, OptionSpec, Words},
};
use crate::{
    embedded::{ZooKeeperServer, ZooKeeperSettings},
    lock::LockError,
};
use futures_util::future::BoxFuture;
use nodes::Nodes;
use options::Settings;
use serde::Serialize;
use serde_json::{Map, Value};
use stage::Stage;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use timeline::{Act, Actor, Moment, Part, Timeline};
use tokio::sync::{Semaphore, mpsc, oneshot};
use utoipa::ToSchema;

/// All lessons, by number.
pub static LESSONS: &[Lesson] = &[
    b01_crash_between::LESSON,
    b02_expired_stamp::LESSON,
    b03_foreign_delete::LESSON,
    b04_lease_over::LESSON,
    b05_counted_twice::LESSON,
    b06_watchdog::LESSON,
    b07_lost_wakeup::LESSON,
    b08_foreign_unlock::LESSON,
    b09_failover::LESSON,
    b10_redlock::LESSON,
    b11_zookeeper::LESSON,
    b12_before_commit::LESSON,
];

pub fn find(id: &str) -> Option<&'static Lesson> {
    LESSONS.iter().find(|lesson| lesson.id == id)
}

/// How many plays a process runs at once.
pub const MOST_PLAYS: usize = 4;
/// How long a play may take: the longest pauses that options allow, a few times.
const LONGEST_PLAY: Duration = Duration::from_secs(30);
/// A play begins again if the machine was slower than a lease, but not after so long: somebody waits.
const PLAY_AGAIN_WITHIN: Duration = Duration::from_secs(15);

/// One lesson: a failure, how it is forced, its cure.
pub struct Lesson {
    pub number: u8,
    pub id: &'static str,
    pub title: Words,
    pub failure: Words,
    pub forced_how: Words,
    pub cure: Words,
    /// Where the idea comes from, what that gets right and what it misses.
    pub source: Words,
    pub needs: &'static [Need],
    pub options: &'static [OptionSpec],
    pub cast: &'static [Actor],
    pub acts: &'static [Act],
    pub play: fn(Stage) -> Playing,
}

pub type Playing = BoxFuture<'static, Result<(), Trouble>>;

impl std::fmt::Debug for Lesson {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.id)
    }
}

impl Lesson {
    fn actor(&self, id: &str) -> Option<&'static str> {
        self.cast
            .iter()
            .find(|actor| actor.id == id)
            .map(|actor| actor.id)
    }
}

pub const fn client(id: &'static str, name: &'static str) -> Actor {
    Actor {
        id,
        name: Words::new(name, name),
        part: Part::Client,
    }
}

pub const ALICE: Actor = client("alice", "Alice");
pub const BOB: Actor = client("bob", "Bob");
pub const CAROL: Actor = client("carol", "Carol");
pub const REDIS: Actor = Actor {
    id: stage::REDIS,
    name: Words::new("Redis", "Redis"),
    part: Part::Redis,
};
pub const SHOP: Actor = Actor {
    id: "postgres",
    name: Words::new("The phone (Postgres)", "手机库存（Postgres）"),
    part: Part::Resource,
};

/// Why a play did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    #[error("the machine was too slow for this play: {0}")]
    TooSlow(&'static str),
    #[error("a lesson does not go as it is written: {0}")]
    NotAsWritten(String),
    #[error("lock: {0}")]
    Lock(#[from] LockError),
    #[error("redis: {0}")]
    Redis(#[from] redis::RedisError),
    #[error("postgres: {0}")]
    Postgres(#[from] sqlx::Error),
    #[error("a server of this play: {0}")]
    Server(#[from] crate::embedded::EmbeddedError),
}

impl Trouble {
    /// Whether the machine was too slow for the lesson's leases and sessions: another try may go well.
    fn is_of_the_machine(&self) -> bool {
        match self {
            Self::TooSlow(_) => true,
            Self::Lock(error) => error.is_unreachable(),
            Self::Redis(error) => error.is_timeout() || error.is_io_error(),
            _ => false,
        }
    }
}

/// Why there is no play.
#[derive(Debug, thiserror::Error)]
pub enum PlayError {
    #[error("there is no such lesson")]
    NoSuchLesson,
    #[error(transparent)]
    BadOption(#[from] BadOption),
    #[error("{}", .0.en)]
    Unavailable(Words),
    #[error("{MOST_PLAYS} lessons are being played; try again in a moment")]
    TooManyPlays,
    #[error(transparent)]
    Trouble(#[from] Trouble),
}

/// The servers that plays run on.
pub struct Ground {
    servers: Arc<Servers>,
    /// Servers of single plays.
    nodes: Nodes,
    zookeeper: tokio::sync::Mutex<Option<ZooKeeperServer>>,
    /// The stage hand's own session with it.
    zoo: tokio::sync::Mutex<Option<zookeeper_client::Client>>,
}

impl Ground {
    /// Where ZooKeeper is, `host:port`; started when it is first needed.
    pub async fn zookeeper(&self) -> Result<String, Trouble> {
        let starting = async || {
            let folder = self
                .servers
                .data_dir
                .as_ref()
                .map(|folder| folder.join("zookeeper-lessons"));
            let folder =
                folder.ok_or_else(|| Trouble::NotAsWritten("no servers here".to_owned()))?;
            let runtime = tokio::runtime::Handle::current();
            let starting = tokio::task::spawn_blocking(move || {
                runtime.block_on(ZooKeeperServer::start(
                    &folder,
                    ZooKeeperSettings::default(),
                ))
            });
            let started = starting
                .await
                .map_err(|error| Trouble::NotAsWritten(error.to_string()))?;
            Ok::<_, Trouble>(started?)
        };
        let mut running = self.zookeeper.lock().await;
        let server = match running.take() {
            Some(server) => server,
            None => starting().await?,
        };
        Ok(running.insert(server).address().to_string())
    }

    async fn zoo_client(&self) -> Result<zookeeper_client::Client, Trouble> {
        let mut current = self.zoo.lock().await;
        if let Some(client) = current
            .as_ref()
            .filter(|client| !client.state().is_terminated())
        {
            return Ok(client.clone());
        }
        let address = self.zookeeper().await?;
        let connecting = zookeeper_client::Client::connect(&address);
        let client = tokio::time::timeout(Duration::from_secs(5), connecting)
            .await
            .map_err(|_| LockError::from(zookeeper_client::Error::Timeout))?
            .map_err(LockError::from)?;
        *current = Some(client.clone());
        Ok(client)
    }

    async fn lacks(&self, need: Need) -> Option<Words> {
        match need {
            _ if self.servers.data_dir.is_none() => Some(Words::new(
                "This lesson needs servers of its own. Run embedded (without DATABASE_URL and REDIS_URL) to have them started.",
                "这一课需要自己专用的服务器。请以内嵌方式运行（不设置 DATABASE_URL 和 REDIS_URL），程序会自动启动它们。",
            )),
            Need::RedisNodes(_) => None,
            Need::ZooKeeper if ZooKeeperServer::check().await.is_ok() => None,
            Need::ZooKeeper => Some(Words::new(
                "ZooKeeper and Java are needed: scripts/setup.sh test installs them.",
                "需要 ZooKeeper 和 Java：scripts/setup.sh test 可以安装。",
            )),
        }
    }
}

/// Plays lessons; a few at a time.
pub struct Theatre {
    ground: Arc<Ground>,
    seats: Arc<Semaphore>,
    most: usize,
    /// Since when nothing is played, as far as that was noticed.
    idle_since: Mutex<Option<Instant>>,
    patience: Duration,
}

impl Theatre {
    pub fn new(servers: Arc<Servers>) -> Self {
        Self {
            ground: Arc::new(Ground {
                nodes: Nodes::new(servers.data_dir.clone()),
                servers,
                zookeeper: tokio::sync::Mutex::default(),
                zoo: tokio::sync::Mutex::default(),
            }),
            seats: Arc::new(Semaphore::new(MOST_PLAYS)),
            most: MOST_PLAYS,
            idle_since: Mutex::default(),
            patience: PLAY_AGAIN_WITHIN,
        }
    }

    /// For tests, which play many at once.
    pub fn with_seats(mut self, seats: usize) -> Self {
        self.seats = Arc::new(Semaphore::new(seats));
        self.most = seats;
        self
    }

    /// For tests, which nobody waits for, on machines that have much else to do.
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Why this lesson cannot be played here; `None` if it can.
    pub async fn lacks(&self, lesson: &Lesson) -> Option<Words> {
        for need in lesson.needs {
            if let Some(why) = self.ground.lacks(*need).await {
                return Some(why);
            }
        }
        None
    }

    /// The lesson on order numbers, run for real.
    pub async fn ids(&self, language: Language) -> Result<ids::IdsBody, Trouble> {
        let servers = &self.ground.servers;
        let redis = &servers.redis;
        ids::lesson(
            &servers.postgres,
            redis.url(),
            redis.keys.prefix(),
            language,
        )
        .await
    }

    /// Plays a lesson to its end. `told` hears of each step as it happens.
    pub async fn play(
        &self,
        id: &str,
        asked: &Map<String, Value>,
        told: Option<mpsc::UnboundedSender<Moment>>,
    ) -> Result<Timeline, PlayError> {
        match self.start(id, asked, told).await?.await {
            Ok(played) => Ok(played?),
            Err(_) => Err(Trouble::NotAsWritten("the play broke off".to_owned()).into()),
        }
    }

    /// Starts one; what becomes of it comes later. It goes on if nobody waits for that: whoever asked may go
    /// away, and the stage has to be cleared all the same.
    pub async fn start(
        &self,
        id: &str,
        asked: &Map<String, Value>,
        told: Option<mpsc::UnboundedSender<Moment>>,
    ) -> Result<oneshot::Receiver<Result<Timeline, Trouble>>, PlayError> {
        let lesson = find(id).ok_or(PlayError::NoSuchLesson)?;
        let options = Settings::read(lesson.options, asked)?;
        if let Some(why) = self.lacks(lesson).await {
            return Err(PlayError::Unavailable(why));
        }
        let seat = self.seats.clone().try_acquire_owned();
        let seat = seat.map_err(|_| PlayError::TooManyPlays)?;
        let (ended, outcome) = oneshot::channel();
        let (ground, patience) = (self.ground.clone(), self.patience);
        tokio::spawn(async move {
            let played = play(lesson, ground, options, told, patience).await;
            drop(seat);
            let _ = ended.send(played);
        });
        Ok(outcome)
    }

    /// Ends the servers that are kept for later plays if there was none for a while.
    pub async fn stop_idle(&self) {
        let is_due = {
            let mut since = self
                .idle_since
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if self.seats.available_permits() < self.most {
                *since = None;
            } else {
                since.get_or_insert_with(Instant::now);
            }
            since.is_some_and(|since| since.elapsed() >= IDLE_LIMIT)
        };
        let all = u32::try_from(self.most).unwrap_or(u32::MAX);
        // Nobody plays meanwhile: all seats are taken.
        if is_due && let Ok(_all) = self.seats.try_acquire_many(all) {
            self.close().await;
        }
    }

    /// Ends the servers that are kept for later plays.
    pub async fn close(&self) {
        self.ground.nodes.close().await;
        *self.ground.zoo.lock().await = None;
        if let Some(server) = self.ground.zookeeper.lock().await.take() {
            server.stop().await;
        }
    }
}

async fn play(
    lesson: &'static Lesson,
    ground: Arc<Ground>,
    options: Settings,
    told: Option<mpsc::UnboundedSender<Moment>>,
    patience: Duration,
) -> Result<Timeline, Trouble> {
    let began = Instant::now();
    loop {
        let stage = Stage::new(lesson, ground.clone(), options.clone(), told.clone());
        let played = tokio::time::timeout(LONGEST_PLAY, (lesson.play)(stage.clone())).await;
        let played = played.unwrap_or(Err(Trouble::TooSlow("the play takes too long")));
        let timeline = stage.timeline();
        stage.close().await;
        match played {
            Ok(()) if timeline.endings.len() == lesson.acts.len() => return Ok(timeline),
            Ok(()) => return Err(Trouble::NotAsWritten("an act is missing".to_owned())),
            Err(error) if error.is_of_the_machine() && began.elapsed() < patience => {
                tracing::debug!(lesson = lesson.id, %error, "playing again");
                if let Some(told) = &told {
                    let _ = told.send(Moment::Again);
                }
            }
            Err(error) => return Err(error),
        }
    }
}

// --- the list

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Lessons)]
pub struct LessonsBody {
    pub lessons: Vec<LessonBody>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Lesson)]
pub struct LessonBody {
    #[schema(example = "b03")]
    pub id: &'static str,
    pub number: u8,
    pub title: &'static str,
    pub failure: &'static str,
    pub forced_how: &'static str,
    pub cure: &'static str,
    pub source: &'static str,
    pub options: Vec<LessonOptionBody>,
    pub available: LessonAvailableBody,
}

/// A whole number has `min` and `max`, a choice has `values`.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LessonOption)]
pub struct LessonOptionBody {
    pub name: &'static str,
    pub teaches: &'static str,
    pub default: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub values: Option<&'static [&'static str]>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LessonAvailable)]
pub struct LessonAvailableBody {
    pub ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<&'static str>,
}

/// All lessons; what `theatre` cannot play says why.
pub async fn list(theatre: Option<&Theatre>, language: Language) -> LessonsBody {
    let option = |spec: &OptionSpec| {
        let (default, min, max, values) = match spec.kind {
            OptionKind::Whole { default, min, max } => (default.into(), Some(min), Some(max), None),
            OptionKind::Choice(values) => (
                values.first().copied().unwrap_or("").into(),
                None,
                None,
                Some(values),
            ),
        };
        LessonOptionBody {
            name: spec.name,
            teaches: spec.teaches.say(language),
            default,
            min,
            max,
            values,
        }
    };
    let mut lessons = Vec::with_capacity(LESSONS.len());
    for lesson in LESSONS {
        let lacks = match theatre {
            Some(theatre) => theatre.lacks(lesson).await,
            None => None,
        };
        lessons.push(LessonBody {
            id: lesson.id,
            number: lesson.number,
            title: lesson.title.say(language),
            failure: lesson.failure.say(language),
            forced_how: lesson.forced_how.say(language),
            cure: lesson.cure.say(language),
            source: lesson.source.say(language),
            options: lesson.options.iter().map(option).collect(),
            available: LessonAvailableBody {
                ok: lacks.is_none(),
                why: lacks.map(|why| why.say(language)),
            },
        });
    }
    LessonsBody { lessons }
}
