//! Arenas: made, bought from, stormed, judged, removed.

use super::error::{HttpResult, Problem};
use super::extract::Visitor;
use super::progress::{PACE, Progress};
use crate::definition::{Definition, Wanted};
use crate::selling::{Buyer, Outcome};
use crate::verdict::{self, Verdict};
use crate::{
    LabError, MOST_ARENAS, arena::Arena, report as page_of, storm::Storm, strategy::Language,
    tally::millis,
};
use axum::http::{HeaderMap, StatusCode, header::CONTENT_SECURITY_POLICY};
use axum::response::{Html, IntoResponse, sse::Event};
use futures_util::Stream;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;
use utoipa::{IntoParams, ToSchema};
use web::body::{self, Json};
use web::events::{event, told};
use web::extract::{Id, Params};
use web::language::{LanguageParams, Spoken, accepted};
use web::refusals;

/// A stream without a storm ends with a verdict when nobody has bought for so long.
const QUIET: Duration = Duration::from_secs(3);
const LONGEST_NAME: usize = 100;

refusals!(CreateRefusals:
    CROSS_ORIGIN, NOT_FOUND, REQUEST_TIMEOUT, TOO_MANY_ARENAS, STRATEGY_UNAVAILABLE, TOO_LARGE,
    UNSUPPORTED_MEDIA_TYPE, INVALID, RATE_LIMITED, UNAVAILABLE
);
refusals!(BuyRefusals:
    CROSS_ORIGIN, NOT_FOUND, ARENA_NOT_FOUND, REQUEST_TIMEOUT, STRATEGY_UNAVAILABLE, TOO_LARGE,
    UNSUPPORTED_MEDIA_TYPE, INVALID, RATE_LIMITED, UNAVAILABLE
);
refusals!(StormRefusals:
    CROSS_ORIGIN, NOT_FOUND, ARENA_NOT_FOUND, REQUEST_TIMEOUT, STORM_RUNNING, TOO_MANY_STORMS,
    STRATEGY_UNAVAILABLE, TOO_LARGE, UNSUPPORTED_MEDIA_TYPE, INVALID, RATE_LIMITED, UNAVAILABLE
);
refusals!(LookRefusals:
    NOT_FOUND, ARENA_NOT_FOUND, STRATEGY_UNAVAILABLE, INVALID, RATE_LIMITED, UNAVAILABLE
);
refusals!(DeleteRefusals: CROSS_ORIGIN, NOT_FOUND, ARENA_NOT_FOUND, RATE_LIMITED, UNAVAILABLE);

/// Make an arena.
#[utoipa::path(
    post, path = "/api/v1/lab/arenas", tag = "lab", operation_id = "create_arena",
    request_body = Wanted,
    responses((status = 201, description = "The arena", body = Definition), CreateRefusals),
)]
pub async fn create(visitor: Visitor, Json(wanted): Json<Wanted>) -> HttpResult {
    let arena = visitor.lab.create_for(visitor.limited(), wanted).await?;
    body::json(StatusCode::CREATED, arena.definition())
}

/// Remove an arena and all that belongs to it.
#[utoipa::path(
    delete, path = "/api/v1/lab/arenas/{id}", tag = "lab", operation_id = "delete_arena",
    params(("id" = String, Path, description = "The arena")),
    responses((status = 204, description = "It is gone"), DeleteRefusals),
)]
pub async fn delete(Visitor { lab, .. }: Visitor, Id(id): Id<String>) -> HttpResult {
    lab.delete(&id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

// ---- buying -----------------------------------------------------------------------------------

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Purchase {
    /// The buyer: any text of up to 100 characters.
    #[schema(min_length = 1, max_length = 100, example = "ann")]
    user: String,
    /// Which of the arena's servers the request reaches, from 0; one after the other if absent. A
    /// strategy that needs its buyers at certain nodes sends them there regardless.
    #[schema(minimum = 0, maximum = 7)]
    node: Option<i64>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum OutcomeName {
    Sold,
    SoldOut,
    Duplicate,
    Contended,
    Failed,
}

#[derive(Serialize, ToSchema)]
pub struct PurchaseAnswer {
    outcome: OutcomeName,
    /// With `sold`.
    #[serde(skip_serializing_if = "Option::is_none")]
    order_id: Option<String>,
    waited_ms: f64,
    /// With `failed`: what went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

/// One purchase in an arena.
#[utoipa::path(
    post, path = "/api/v1/lab/arenas/{id}/orders", tag = "lab", operation_id = "buy_in_arena",
    params(("id" = String, Path, description = "The arena")), request_body = Purchase,
    responses((status = 200, description = "How it ended", body = PurchaseAnswer), BuyRefusals),
)]
pub async fn purchase(
    Visitor { lab, .. }: Visitor,
    Id(id): Id<String>,
    Json(wanted): Json<Purchase>,
) -> HttpResult {
    let length = wanted.user.chars().count();
    if !(1..=LONGEST_NAME).contains(&length) || wanted.user.contains('\0') {
        return Err(Problem::invalid(format!(
            "user: must have 1 to {LONGEST_NAME} characters, none of them NUL"
        )));
    }
    let arena = lab.arena(&id).await?;
    let nodes = arena.definition().nodes;
    let node = wanted.node.map(u32::try_from).transpose();
    let Some(node) = node.ok().filter(|node| node.is_none_or(|node| node < nodes)) else {
        let most = nodes.saturating_sub(1);
        return Err(Problem::invalid(format!("node: must be from 0 to {most}")));
    };
    let buyer = Buyer { name: wanted.user };
    let answer = arena.purchase(&buyer, node).await;
    let (outcome, order_id, why) = match answer.outcome {
        Ok(Outcome::Sold { order_id }) => (OutcomeName::Sold, Some(order_id), None),
        Ok(Outcome::SoldOut) => (OutcomeName::SoldOut, None, None),
        Ok(Outcome::Duplicate) => (OutcomeName::Duplicate, None, None),
        Ok(Outcome::Contended) => (OutcomeName::Contended, None, None),
        Err(why) => (OutcomeName::Failed, None, Some(why)),
    };
    let body = PurchaseAnswer { outcome, order_id, waited_ms: millis(answer.waited), why };
    body::json(StatusCode::OK, &body)
}

#[derive(Serialize, ToSchema)]
pub struct StormStarted<'a> {
    arena_id: &'a str,
    /// How many purchases all storms of this arena try.
    attempts: u64,
}

/// Storm an arena: the server sends the buyers itself. Follow it by its events.
#[utoipa::path(
    post, path = "/api/v1/lab/arenas/{id}/storm", tag = "lab", operation_id = "storm_arena",
    params(("id" = String, Path, description = "The arena")), request_body = Storm,
    responses((status = 202, description = "It has begun", body = StormStarted), StormRefusals),
)]
pub async fn storm(visitor: Visitor, Id(id): Id<String>, Json(storm): Json<Storm>) -> HttpResult {
    storm.check()?;
    let arena = visitor.lab.arena(&id).await?;
    visitor.lab.storm(visitor.limited(), &arena, storm)?;
    let body = StormStarted { arena_id: &id, attempts: arena.storm.of() };
    body::json(StatusCode::ACCEPTED, &body)
}

// ---- what came of it --------------------------------------------------------------------------

/// Follow an arena: event `progress` five times a second, then `verdict` (or `unavailable`, with a
/// `detail`), and the stream ends.
#[utoipa::path(
    get, path = "/api/v1/lab/arenas/{id}/events", tag = "lab", operation_id = "follow_arena",
    params(("id" = String, Path, description = "The arena"), LanguageParams),
    responses((status = 200, description = "Server-sent events", body = Progress, content_type =
        "text/event-stream"), LookRefusals),
)]
pub async fn events(visitor: Visitor, Id(id): Id<String>, Spoken(language): Spoken) -> HttpResult {
    let place = visitor.place("arena")?;
    let arena = visitor.lab.arena(&id).await?;
    Ok(place.respond(follow(arena, language)))
}

fn follow(arena: Arc<Arena>, language: Language) -> impl Stream<Item = Event> + Send {
    told(move |tell| async move {
        let (mut attempts, mut since) = (0, Instant::now());
        loop {
            // Looked at before the numbers are: the last progress has them all.
            let storm_is_over = arena.storm.has_ended();
            let progress = Progress::of(&arena);
            if progress.attempts != attempts {
                (attempts, since) = (progress.attempts, Instant::now());
            }
            tell.send(event("progress", &progress)).await?;
            if storm_is_over || (arena.is_quiet() && attempts > 0 && since.elapsed() >= QUIET) {
                break;
            }
            tokio::time::sleep(PACE).await;
            if arena.is_closed() {
                return Ok(());
            }
        }
        let last = match verdict::judge(&arena, language).await {
            Ok(verdict) => event("verdict", &verdict),
            // Deleted in between: there is nothing to follow any more.
            Err(LabError::ArenaNotFound) => return Ok(()),
            Err(error) => {
                tracing::warn!(arena = arena.definition().id, %error, "could not be judged");
                let detail = "the arena could not be judged; ask for its verdict again";
                event("unavailable", &json!({"detail": detail}))
            }
        };
        tell.send(last).await
    })
}

/// The judgement over an arena, from its rows in the database; waits up to 10 s for it to be quiet.
#[utoipa::path(
    get, path = "/api/v1/lab/arenas/{id}/verdict", tag = "lab", operation_id = "judge_arena",
    params(("id" = String, Path, description = "The arena"), LanguageParams),
    responses((status = 200, description = "The verdict", body = Verdict), LookRefusals),
)]
pub async fn verdict(
    Visitor { lab, .. }: Visitor,
    Id(id): Id<String>,
    Spoken(language): Spoken,
) -> HttpResult {
    body::json(StatusCode::OK, &lab.verdict(&id, language).await?)
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ReportParams {
    /// Ids of arenas, with commas in between; the report shows them in this order.
    arenas: String,
    /// Those of them that ran while no other did: speeds are shown of these, unless buyers were
    /// forced to meet.
    alone: Option<String>,
    /// The language of all texts; otherwise Accept-Language says, otherwise it is English.
    #[param(inline)]
    lang: Option<Language>,
}

/// The report of some arenas: a page with charts and lessons that needs nothing else.
#[utoipa::path(
    get, path = "/api/v1/lab/report", tag = "lab", operation_id = "report_arenas",
    params(ReportParams),
    responses((status = 200, description = "The page", body = String, content_type = "text/html"),
        LookRefusals),
)]
pub async fn report(
    Visitor { lab, .. }: Visitor,
    headers: HeaderMap,
    Params(asked): Params<ReportParams>,
) -> HttpResult {
    let language = asked.lang.unwrap_or_else(|| accepted(&headers));
    let split = |ids: &str| ids.split(',').map(|id| id.trim().to_owned()).collect::<Vec<_>>();
    let (ids, alone) = (split(&asked.arenas), split(&asked.alone.unwrap_or_default()));
    if ids.len() as u64 > MOST_ARENAS {
        return Err(Problem::invalid(format!("arenas: must be at most {MOST_ARENAS}")));
    }
    let page = page_of::of_arenas(&lab, &ids, &alone, language).await?;
    Ok(([(CONTENT_SECURITY_POLICY, page_of::POLICY)], Html(page)).into_response())
}
