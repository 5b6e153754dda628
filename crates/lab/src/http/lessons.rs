//! Lessons played for real, and the one on order numbers.

use super::error::{HttpResult, LESSON_UNAVAILABLE, Problem, RETRY_PLAY};
use super::extract::Visitor;
use crate::lessons::timeline::{Moment, Play, PlayCast, PlayEvent};
use crate::lessons::{self, error::LessonError, lesson::Lesson};
use crate::{error::LabError, order_numbers::IdsBody, strategy::Language};
use axum::http::{HeaderMap, StatusCode, header::ACCEPT};
use axum::response::sse::Event;
use futures_util::Stream;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use utoipa::ToSchema;
use web::body::{self, OptionalJson};
use web::events::{event, told};
use web::extract::Id;
use web::language::{LanguageParams, Spoken};
use web::refusals;

refusals!(ListRefusals: NOT_FOUND, INVALID, RATE_LIMITED, UNAVAILABLE);
refusals!(PlayRefusals:
    CROSS_ORIGIN, NOT_FOUND, LESSON_NOT_FOUND, REQUEST_TIMEOUT, LESSON_UNAVAILABLE, TOO_LARGE,
    UNSUPPORTED_MEDIA_TYPE, INVALID, RATE_LIMITED, UNAVAILABLE
);

/// Every lesson: the failure, how it is forced, the cure, the knobs.
#[utoipa::path(
    get, path = "/api/v1/lab/lessons", tag = "lab", operation_id = "list_lessons",
    params(LanguageParams),
    responses((status = 200, description = "In the order in which they are taught", body =
        lessons::Lessons), ListRefusals),
)]
pub async fn list(Visitor { lab, .. }: Visitor, Spoken(language): Spoken) -> HttpResult {
    body::json(StatusCode::OK, &lessons::list(Some(&lab.theatre), language))
}

/// The options of a play.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlayRequest {
    /// By name; see GET /api/v1/lab/lessons. Options that are absent have their defaults.
    #[serde(default)]
    options: Map<String, Value>,
}

/// Play a lesson for real; answers when it is over.
///
/// With `Accept: text/event-stream` it is told as it happens: event `cast` (the actors and the
/// acts), `step` for each event, `again` if the machine was slower than a lease and the play begins
/// anew (forget the steps so far), then `verdict` with the whole play, or `failed` with a problem.
/// A few lessons are played at once; more are 429 with Retry-After.
#[utoipa::path(
    post, path = "/api/v1/lab/lessons/{id}/play", tag = "lab", operation_id = "play_lesson",
    params(("id" = String, Path, description = "The lesson", example = "b03"), LanguageParams),
    request_body = Option<PlayRequest>,
    responses((status = 200, description = "The timeline", body = Play), PlayRefusals),
)]
pub async fn play(
    visitor: Visitor,
    Id(id): Id<String>,
    Spoken(language): Spoken,
    headers: HeaderMap,
    OptionalJson(request): OptionalJson<PlayRequest>,
) -> HttpResult {
    let lesson = lessons::find(&id).ok_or(LabError::LessonNotFound)?;
    let mut accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let is_to_be_told = accepted.any(|value| value.contains("text/event-stream"));
    if !is_to_be_told {
        let played = visitor.lab.theatre.play(lesson.id, &request.options, None).await;
        let timeline = played.map_err(|error| refused(error, language))?;
        return body::json(StatusCode::OK, &timeline.body(language));
    }
    let place = visitor.place("lesson")?;
    let (told, moments) = mpsc::unbounded_channel();
    let playing = visitor.lab.theatre.start(lesson.id, &request.options, Some(told)).await;
    let playing = playing.map_err(|error| refused(error, language))?;
    Ok(place.respond(follow(lesson, moments, playing, language)))
}

/// Names a missing server in the language that was asked for.
fn refused(error: LabError, language: Language) -> Problem {
    match error {
        LabError::LessonUnavailable(why) => {
            Problem::with_detail(&LESSON_UNAVAILABLE, why.say(language))
        }
        other => other.into(),
    }
}

/// The cast, the steps and the verdict as events.
fn follow(
    lesson: &'static Lesson,
    mut moments: mpsc::UnboundedReceiver<Moment>,
    playing: JoinHandle<Result<lessons::timeline::Timeline, LessonError>>,
    language: Language,
) -> impl Stream<Item = Event> + Send {
    told(move |tell| async move {
        tell.send(event("cast", &PlayCast::new(lesson, language))).await?;
        while let Some(moment) = moments.recv().await {
            let event = match moment {
                Moment::Step(step) => event("step", &PlayEvent::new(&step, lesson, language)),
                Moment::Again => event("again", &json!({})),
            };
            tell.send(event).await?;
        }
        match playing.await {
            Ok(Ok(timeline)) => tell.send(event("verdict", &timeline.body(language))).await,
            Ok(Err(error)) => tell.send(event("failed", &Problem::from(error))).await,
            Err(_) => Ok(()),
        }
    })
}

/// Order numbers: their parts, and how they survive failures, measured and tried now.
#[utoipa::path(
    get, path = "/api/v1/lab/ids", tag = "lab", operation_id = "id_lesson",
    params(LanguageParams),
    responses((status = 200, description = "Sections of words and tables", body = IdsBody),
        ListRefusals),
)]
pub async fn ids(Visitor { lab, .. }: Visitor, Spoken(language): Spoken) -> HttpResult {
    // Thousands of commands each: one at a time is enough for everybody.
    static ONE_AT_A_TIME: Semaphore = Semaphore::const_new(1);
    let Ok(_permit) = ONE_AT_A_TIME.try_acquire() else {
        return Err(Problem::rate_limited(RETRY_PLAY));
    };
    body::json(StatusCode::OK, &lab.theatre.ids(language).await?)
}
