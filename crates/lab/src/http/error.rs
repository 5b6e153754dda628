//! The lab's refusals, as problems (see `web/problem.rs`).

use crate::{error::LabError, lessons::error::LessonError, selling::PurchaseError};
use std::time::Duration;
use stores::{postgres, redis};
use web::kinds;
use web::problem::{away, internal};

pub use web::problem::{
    CROSS_ORIGIN, INVALID, NOT_FOUND, Problem, RATE_LIMITED, REQUEST_TIMEOUT, TOO_LARGE,
    UNAVAILABLE, UNSUPPORTED_MEDIA_TYPE,
};

pub type HttpResult = Result<axum::response::Response, Problem>;

/// How long a client should wait while others' storms go on.
const RETRY_STORM: Duration = Duration::from_secs(5);
/// And while as many plays run as may: a play takes a second or a few.
pub const RETRY_PLAY: Duration = Duration::from_secs(2);

kinds! {
    ARENA_NOT_FOUND = NOT_FOUND "arena_not_found", "No such arena",
        "There is no arena with this id (any more).";
    LOCAL_ONLY = FORBIDDEN "local_only", "Only on this machine",
        "A server is judged only for a visitor on the machine that this program runs on, without a \
         proxy in between; elsewhere run `flash-sale judge URL`.";
    JUDGEMENT_NOT_FOUND = NOT_FOUND "judgement_not_found", "No such judgement",
        "There is no judgement with this id (any more).";
    JUDGEMENT_RUNNING = CONFLICT "judgement_running", "A judgement is running",
        "One judgement at a time of each server.";
    LESSON_NOT_FOUND = NOT_FOUND "lesson_not_found", "No such lesson",
        "There is no lesson with this id.";
    TOO_MANY_ARENAS = CONFLICT "too_many_arenas", "Too many arenas",
        "The lab has as many arenas as it may; delete one, or wait until one is too old.";
    TOO_MANY_STORMS = TOO_MANY_REQUESTS "too_many_storms", "Too many storms",
        "As many storms are going on as the lab allows; try again in a moment.";
    STORM_RUNNING = CONFLICT "storm_running", "A storm is running",
        "One storm at a time in each arena.";
    STRATEGY_UNAVAILABLE = CONFLICT "strategy_unavailable", "Strategy unavailable",
        "This strategy needs a server that is not there.";
    LESSON_UNAVAILABLE = CONFLICT "lesson_unavailable", "Lesson unavailable",
        "This lesson needs a server that is not there.";
}

impl From<LabError> for Problem {
    fn from(error: LabError) -> Self {
        match error {
            LabError::ArenaNotFound => Self::new(&ARENA_NOT_FOUND),
            LabError::TooManyArenas => Self::new(&TOO_MANY_ARENAS),
            LabError::TooManyArenasOfAddress => {
                Self::with_detail(&TOO_MANY_ARENAS, error.to_string())
            }
            LabError::TooManyStorms => Self::new(&TOO_MANY_STORMS).after(RETRY_STORM),
            LabError::StormIsRunning => Self::new(&STORM_RUNNING),
            LabError::JudgementIsRunning(ref id) => {
                let id = id.clone();
                Self::with_detail(&JUDGEMENT_RUNNING, error.to_string()).with("judgement_id", id)
            }
            LabError::StrategyUnavailable(why) => Self::with_detail(&STRATEGY_UNAVAILABLE, why.en),
            LabError::Invalid { .. } => Self::invalid(error.to_string()),
            LabError::LessonNotFound => Self::new(&LESSON_NOT_FOUND),
            LabError::LessonUnavailable(why) => Self::with_detail(&LESSON_UNAVAILABLE, why.en),
            LabError::TooManyPlays => Self::rate_limited(RETRY_PLAY),
            LabError::Lesson(error) => error.into(),
            LabError::Postgres(error) if postgres::is_away(&error) => away("postgres", &error),
            LabError::Redis(error) if redis::is_away(&error) => away("redis", &error),
            LabError::Postgres(error) => internal("postgres", &error),
            LabError::Redis(error) => internal("redis", &error),
            LabError::Text(error) => internal("a text", &error),
        }
    }
}

impl From<LessonError> for Problem {
    fn from(error: LessonError) -> Self {
        let away = match &error {
            LessonError::TooSlow(_) | LessonError::StoodStill => true,
            LessonError::Failed(PurchaseError::Lock(error)) => error.is_unreachable(),
            LessonError::Failed(PurchaseError::Redis(error)) => redis::is_away(error),
            LessonError::Failed(PurchaseError::Postgres(error)) => postgres::is_away(error),
            LessonError::NoServer(_) => {
                return Self::with_detail(&LESSON_UNAVAILABLE, error.to_string());
            }
            LessonError::NotAsWritten(_) | LessonError::Failed(_) => false,
        };
        if away {
            tracing::warn!(%error, "a lesson could not be played");
            return Self::unavailable("The lesson could not be played now.", RETRY_PLAY);
        }
        internal("lesson", &error)
    }
}
