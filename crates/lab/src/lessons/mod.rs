//! The lock theatre: twelve ways a distributed lock fails, and a payment, step by step, each with
//! its cure.
//!
//! | file | what |
//! |---|---|
//! | [`lesson`], `words` | what a lesson is, and what it says, from `texts/` |
//! | [`error`] | why a play ends early |
//! | [`nodes`] | servers of one play alone |
//! | [`stage`] | clients that do nothing until they are told to; what is recorded |
//! | [`timeline`] | the record, and its shape for the page |
//! | [`waiting`] | how long anything may take that should happen at once |
//! | [`pauses`] | whether this machine stood still: the only excuse for playing again |
//! | [`recorded`] | a play from a file, where a server is missing |
//! | [`shop`] | what the lock protects, and what an order is paid with |
//! | `proxy` | a wire between a client and a server that can be cut |
//! | [`terminal`] | the same timeline as text |
//! | `b01` … `b13` | the lessons, one file each, in one shape |
//!
//! A lesson drives the locks of [`locks`] as they are. Where the failure is of a kind that no sane
//! library has, the failing variant stands in the lesson's own file. Its verdicts come from what
//! was recorded and from the resource's rows: with an option that takes the cause away, the failure
//! does not happen, and the verdict says so.

pub mod code;
pub mod error;
pub mod lesson;
pub mod nodes;
pub mod pauses;
pub mod proxy;
pub mod recorded;
pub mod shop;
pub mod stage;
pub mod terminal;
pub mod timeline;
pub mod waiting;

pub(crate) mod b01_crash_between;
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
mod b13_paid_and_expired;
mod prelude;
mod words;
mod zoo;

use super::strategy::{Language, Words};
use super::{
    catalogue::ArenaOption, error::LabError, limits::MOST_PLAYS, options::Options,
    order_numbers::IdsBody, servers::Servers,
};
use error::{LessonError, Result};
use lesson::{Act, Kind, Lesson};
use serde::Serialize;
use serde_json::{Map, Value};
use stage::Stage;
use std::{sync::Arc, time::Duration};
use timeline::{Moment, Timeline};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use utoipa::ToSchema;

macro_rules! lessons {
    ($($file:ident),* $(,)?) => {
        /// All lessons, by number.
        pub static LESSONS: &[Lesson] = &[$($file::LESSON),*];

        async fn perform(lesson: &Lesson, stage: Stage) -> Result {
            $(if lesson.id == $file::LESSON.id {
                return $file::play(stage).await;
            })*
            Err(LessonError::NotAsWritten(format!("no lesson is called {}", lesson.id)))
        }
    };
}

lessons! {
    b01_crash_between, b02_expired_stamp, b03_foreign_delete, b04_lease_over, b05_counted_twice,
    b06_watchdog, b07_lost_wakeup, b08_foreign_unlock, b09_failover, b10_redlock, b11_zookeeper,
    b12_before_commit, b13_paid_and_expired
}

pub fn find(id: &str) -> Option<&'static Lesson> {
    LESSONS.iter().find(|lesson| lesson.id == id)
}

/// How long a play may take: the longest pauses that options allow, a few times.
const LONGEST_PLAY: Duration = Duration::from_secs(30);
/// How often a play begins again because this machine stood still. Then its verdict stands.
pub const MOST_REPEATS: u32 = 3;

/// Plays lessons; a few at a time.
pub struct Theatre {
    servers: Arc<Servers>,
    places: Arc<Semaphore>,
}

impl Theatre {
    pub fn new(servers: Arc<Servers>) -> Self {
        Self { servers, places: Arc::new(Semaphore::new(MOST_PLAYS)) }
    }

    /// For tests, which play many at once.
    pub fn with_places(self, places: usize) -> Self {
        Self { places: Arc::new(Semaphore::new(places)), ..self }
    }

    /// Why this lesson cannot be played here; `None` if it can.
    pub fn lacks(&self, lesson: &Lesson) -> Option<Words> {
        lesson.needs.iter().find_map(|need| self.servers.lacks(*need))
    }

    /// The lesson on order numbers, run for real.
    pub async fn ids(&self, language: Language) -> Result<IdsBody> {
        let servers = &self.servers;
        let (postgres, url) = (servers.postgres.clone(), servers.redis_url.clone());
        let run = uuid::Uuid::new_v4().simple();
        let prefix = format!("{}lab:ids:{run}:", servers.key_prefix);
        let played = servers.shop.order_numbers(postgres, url, prefix, language);
        Ok(played.await?)
    }

    /// Plays a lesson to its end. `told` hears of each step as it happens.
    pub async fn play(
        &self,
        id: &str,
        asked: &Map<String, Value>,
        told: Option<mpsc::UnboundedSender<Moment>>,
    ) -> Result<Timeline, LabError> {
        match self.start(id, asked, told).await?.await {
            Ok(played) => Ok(played?),
            Err(_) => Err(LessonError::NotAsWritten("the play broke off".to_owned()).into()),
        }
    }

    /// Starts one; its result comes later. It goes on if nobody waits for that: a caller that
    /// asked may go away, and the stage has to be cleared all the same.
    pub async fn start(
        &self,
        id: &str,
        asked: &Map<String, Value>,
        told: Option<mpsc::UnboundedSender<Moment>>,
    ) -> Result<JoinHandle<Result<Timeline>>, LabError> {
        let lesson = find(id).ok_or(LabError::LessonNotFound)?;
        let options = lesson.read_options(asked)?;
        if let Some(why) = self.lacks(lesson) {
            let is_plain = options == lesson.read_options(&Map::new())?;
            let recorded = recorded::of(lesson, why).filter(|_| is_plain);
            let recorded = recorded.ok_or(LabError::LessonUnavailable(why))?;
            return Ok(tokio::spawn(async { Ok(recorded) }));
        }
        let place = self.places.clone().try_acquire_owned();
        let place = place.map_err(|_| LabError::TooManyPlays)?;
        let servers = self.servers.clone();
        Ok(tokio::spawn(async move {
            let _place = place;
            play(lesson, servers, options, told).await
        }))
    }
}

async fn play(
    lesson: &'static Lesson,
    servers: Arc<Servers>,
    options: Options,
    told: Option<mpsc::UnboundedSender<Moment>>,
) -> Result<Timeline> {
    let mut repeats = 0;
    loop {
        let again = repeats < MOST_REPEATS;
        let stage = Stage::new(lesson, servers.clone(), options.clone(), told.clone(), again)?;
        let played =
            tokio::time::timeout(LONGEST_PLAY, Box::pin(perform(lesson, stage.clone()))).await;
        let played = played.unwrap_or(Err(LessonError::TooSlow("the play takes too long")));
        let timeline = Timeline { repeats, ..stage.timeline() };
        let stood_still = stage.stood_still();
        stage.close().await;
        match played {
            Ok(()) if timeline.endings.len() == lesson.acts.len() => return Ok(timeline),
            Ok(()) => return Err(LessonError::NotAsWritten("an act is missing".to_owned())),
            Err(error) if error.may_be_a_pause() && stood_still && again => {
                tracing::debug!(lesson = lesson.id, %error, "playing again");
                repeats += 1;
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
pub struct Lessons {
    pub lessons: Vec<LessonBody>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Lesson)]
pub struct LessonBody {
    #[schema(example = "b03")]
    pub id: &'static str,
    pub number: u8,
    pub title: &'static str,
    /// One sentence for a beginner.
    pub lead: &'static str,
    pub failure: &'static str,
    pub forced_how: &'static str,
    pub cure: &'static str,
    pub source: &'static str,
    pub options: Vec<ArenaOption>,
    pub acts: Vec<LessonAct>,
    pub available: LessonAvailable,
}

/// An act; the lines that decide it come with a play.
#[derive(Debug, Serialize, ToSchema)]
pub struct LessonAct {
    pub id: &'static str,
    pub title: &'static str,
    pub kind: Kind,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct LessonAvailable {
    pub ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<&'static str>,
    /// Whether there is a recorded play to look at instead.
    pub recorded: bool,
}

/// All lessons; what `theatre` cannot play says why.
pub fn list(theatre: Option<&Theatre>, language: Language) -> Lessons {
    let lacks = |lesson| theatre.and_then(|theatre| theatre.lacks(lesson));
    let lessons = LESSONS.iter().map(|lesson| LessonBody::of(lesson, lacks(lesson), language));
    Lessons { lessons: lessons.collect() }
}

impl LessonBody {
    fn of(lesson: &'static Lesson, lacks: Option<Words>, language: Language) -> Self {
        let act = |act: &Act| LessonAct {
            id: act.id,
            title: act.words(lesson, language).0,
            kind: act.kind,
        };
        let options = lesson.options.iter();
        Self {
            id: lesson.id,
            number: lesson.number,
            title: lesson.title(language),
            lead: lesson.lead(language),
            failure: lesson.section("Failure", language),
            forced_how: lesson.section("How it is forced", language),
            cure: lesson.section("Cure", language),
            source: lesson.section("Source", language),
            options: options.map(|knob| ArenaOption::of(knob, lesson.id, language)).collect(),
            acts: lesson.acts.iter().map(act).collect(),
            available: LessonAvailable {
                ok: lacks.is_none(),
                why: lacks.map(|why| why.say(language)),
                recorded: recorded::has(lesson),
            },
        }
    }
}
