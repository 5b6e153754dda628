//! Arenas: made, bought from, stormed, judged, removed.

use super::{
    error::{ARENA_NOT_FOUND, Problem},
    extract::{LanguageParams, Spoken, TheLab, Visitor, accepted},
    state::LabState,
};
use crate::{
    LabError, MOST_ARENAS, MOST_NODES, MOST_PER_USER, MOST_STOCK, Wanted,
    arena::Arena,
    is_arena_id, report as page_of,
    selling::{Buyer, Outcome},
    storm::{MOST_AT_ONCE, MOST_BUYERS, Storm},
    strategy::Language,
    verdict::{self, Percentiles, Verdict},
};
use axum::{
    extract::State,
    http::{HeaderMap, StatusCode, header::CONTENT_SECURITY_POLICY},
    response::{Html, IntoResponse, Response, sse::Event},
};
use futures_util::{Stream, stream};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::{str::FromStr, sync::Arc, time::Duration};
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};
use web::{
    body::{self, Json},
    events::event,
    extract::{Id, Named, Params},
    problem::Kind,
    refusals,
};

/// How often a stream of events tells how a storm goes.
const PACE: Duration = Duration::from_millis(200);
/// A stream without a storm ends with a verdict when nobody has bought for so long.
const QUIET: Duration = Duration::from_secs(3);
const LONGEST_NAME: usize = 100;

refusals!(CreateRefusals:
    CROSS_ORIGIN, NOT_FOUND, REQUEST_TIMEOUT, TOO_MANY_ARENAS, STRATEGY_UNAVAILABLE, TOO_LARGE,
        UNSUPPORTED_MEDIA_TYPE, INVALID, RATE_LIMITED,
    UNAVAILABLE
);
refusals!(BuyRefusals:
    CROSS_ORIGIN, NOT_FOUND, ARENA_NOT_FOUND, REQUEST_TIMEOUT, STRATEGY_UNAVAILABLE, TOO_LARGE,
        UNSUPPORTED_MEDIA_TYPE, INVALID, RATE_LIMITED,
    UNAVAILABLE
);
refusals!(StormRefusals:
    CROSS_ORIGIN, NOT_FOUND, ARENA_NOT_FOUND, REQUEST_TIMEOUT, STORM_RUNNING, TOO_MANY_STORMS,
    STRATEGY_UNAVAILABLE, TOO_LARGE, UNSUPPORTED_MEDIA_TYPE, INVALID, RATE_LIMITED, UNAVAILABLE
);
refusals!(LookRefusals:
    NOT_FOUND, ARENA_NOT_FOUND, STRATEGY_UNAVAILABLE, INVALID, RATE_LIMITED, UNAVAILABLE
);
refusals!(DeleteRefusals: CROSS_ORIGIN, NOT_FOUND, ARENA_NOT_FOUND, RATE_LIMITED, UNAVAILABLE);

/// The id of an arena: 32 hexadecimal digits.
pub struct ArenaId(String);

impl FromStr for ArenaId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        is_arena_id(text).then(|| Self(text.to_owned())).ok_or(())
    }
}

impl Named for ArenaId {
    const MISSING: &'static Kind = &ARENA_NOT_FOUND;
}

/// A fresh stock that only one strategy sells.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateArena {
    #[schema(example = "naive")]
    strategy: String,
    #[schema(minimum = 1, maximum = 10_000)]
    stock: i64,
    /// How many servers sell it; 1 if absent.
    #[schema(minimum = 1, maximum = 8)]
    nodes: Option<i64>,
    /// 1 if absent.
    #[schema(minimum = 1, maximum = 100)]
    per_user_limit: Option<i64>,
    /// The same as `options.work_ms`.
    #[schema(minimum = 0, maximum = 2_000)]
    work_ms: Option<i64>,
    /// Those of the strategy and those of every strategy; see GET /api/v1/lab/strategies.
    #[serde(default)]
    options: Map<String, Value>,
}

const _: () = assert!(MOST_STOCK == 10_000 && MOST_NODES == 8 && MOST_PER_USER == 100);

#[derive(Serialize, ToSchema)]
#[schema(as = Arena)]
pub struct ArenaBody<'a> {
    arena_id: &'a str,
    strategy: &'a str,
    stock: i32,
    nodes: u32,
    per_user_limit: i32,
    /// Every option with its value.
    options: Map<String, Value>,
    #[serde(with = "time::serde::rfc3339")]
    expires_at: OffsetDateTime,
}

/// Make an arena.
#[utoipa::path(
    post, path = "/api/v1/lab/arenas", tag = "lab", operation_id = "create_arena",
    request_body = CreateArena,
    responses((status = 201, description = "The arena", body = ArenaBody), CreateRefusals),
)]
pub async fn create(
    TheLab(lab): TheLab,
    visitor: Visitor,
    Json(wanted): Json<CreateArena>,
) -> Result<Response, Problem> {
    let mut options = wanted.options;
    if let Some(work_ms) = wanted.work_ms {
        options.insert("work_ms".to_owned(), work_ms.into());
    }
    let wanted = Wanted {
        strategy: wanted.strategy,
        stock: wanted.stock,
        nodes: wanted.nodes.unwrap_or(1),
        per_user_limit: wanted.per_user_limit.unwrap_or(1),
        options,
    };
    let arena = lab.create_for(visitor.limited().as_deref(), wanted).await?;
    let definition = arena.definition();
    let body = ArenaBody {
        arena_id: &definition.id,
        strategy: definition.strategy.id,
        stock: definition.stock,
        nodes: definition.nodes,
        per_user_limit: definition.per_user_limit,
        options: definition.options.to_json(),
        expires_at: definition.expires_at,
    };
    body::json(StatusCode::CREATED, &body)
}

/// Remove an arena and all that belongs to it.
#[utoipa::path(
    delete, path = "/api/v1/lab/arenas/{id}", tag = "lab", operation_id = "delete_arena",
    params(("id" = String, Path, description = "The arena")),
    responses((status = 204, description = "It is gone"), DeleteRefusals),
)]
pub async fn delete(
    TheLab(lab): TheLab,
    Id(ArenaId(id)): Id<ArenaId>,
) -> Result<Response, Problem> {
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
#[schema(as = PurchaseAnswer)]
pub struct AnswerBody {
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
    responses((status = 200, description = "How it ended", body = AnswerBody), BuyRefusals),
)]
pub async fn purchase(
    TheLab(lab): TheLab,
    Id(ArenaId(id)): Id<ArenaId>,
    Json(wanted): Json<Purchase>,
) -> Result<Response, Problem> {
    let length = wanted.user.chars().count();
    if !(1..=LONGEST_NAME).contains(&length) || wanted.user.contains('\0') {
        return Err(Problem::invalid(format!(
            "user: must have 1 to {LONGEST_NAME} characters, none of them NUL"
        )));
    }
    let arena = lab.arena(&id).await?;
    let nodes = arena.definition().nodes;
    let node = match wanted.node.map(u32::try_from) {
        None => None,
        Some(Ok(node)) if node < nodes => Some(node),
        Some(_) => {
            return Err(Problem::invalid(format!(
                "node: must be from 0 to {}",
                nodes.saturating_sub(1)
            )));
        }
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
    let body = AnswerBody { outcome, order_id, waited_ms: in_ms(answer.waited), why };
    body::json(StatusCode::OK, &body)
}

fn in_ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 100_000.0).round() / 100.0
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartStorm {
    /// How many people.
    #[schema(minimum = 1, maximum = 100_000)]
    buyers: u32,
    /// How many of them at a time.
    #[schema(minimum = 1, maximum = 1_000)]
    concurrency: u32,
    /// Of all buyers, how many click twice; 0 if absent.
    #[schema(minimum = 0, maximum = 1)]
    duplicate_share: Option<f64>,
}

const _: () = assert!(MOST_BUYERS == 100_000 && MOST_AT_ONCE == 1_000);

#[derive(Serialize, ToSchema)]
pub struct StormStarted<'a> {
    arena_id: &'a str,
    /// How many purchases all storms of this arena try.
    attempts: u64,
}

/// Storm an arena: the server sends the buyers itself. Follow it by its events.
#[utoipa::path(
    post, path = "/api/v1/lab/arenas/{id}/storm", tag = "lab", operation_id = "storm_arena",
    params(("id" = String, Path, description = "The arena")), request_body = StartStorm,
    responses((status = 202, description = "It has begun", body = StormStarted), StormRefusals),
)]
pub async fn storm(
    TheLab(lab): TheLab,
    visitor: Visitor,
    Id(ArenaId(id)): Id<ArenaId>,
    Json(wanted): Json<StartStorm>,
) -> Result<Response, Problem> {
    let storm = Storm {
        buyers: wanted.buyers,
        concurrency: wanted.concurrency,
        duplicate_share: wanted.duplicate_share.unwrap_or(0.0),
    };
    storm.check()?;
    let arena = lab.arena(&id).await?;
    lab.storm(visitor.limited().as_deref(), &arena, storm)?;
    let body = StormStarted { arena_id: &id, attempts: arena.storm.of() };
    body::json(StatusCode::ACCEPTED, &body)
}

// ---- what came of it --------------------------------------------------------------------------

/// How a storm goes, as this process sees it.
#[derive(Serialize, ToSchema)]
pub struct Progress {
    attempts: u64,
    /// How many attempts the storm makes; 0 without a storm.
    of: u64,
    /// Buyers who were told so.
    sold: u64,
    oversold: u64,
    /// Orders that were told of beyond what a buyer may have.
    duplicates: u64,
    contended: u64,
    failed: u64,
    throughput_per_s: f64,
    latency_ms: Percentiles,
    elapsed_ms: u64,
}

impl Progress {
    fn of(arena: &Arena) -> Self {
        let counts = arena.counts();
        let mut all = counts.winners.clone();
        all.add(&counts.losers);
        let definition = arena.definition();
        let stock = u64::from(definition.stock.unsigned_abs());
        let limit = u64::from(definition.per_user_limit.unsigned_abs());
        Self {
            attempts: counts.attempts,
            of: arena.storm.of(),
            sold: counts.sold,
            oversold: counts.sold.saturating_sub(stock),
            duplicates: arena.tally.told_beyond(limit),
            contended: counts.contended,
            failed: counts.failed,
            throughput_per_s: (counts.throughput_per_s() * 10.0).round() / 10.0,
            latency_ms: Percentiles::from(&all),
            elapsed_ms: u64::try_from(counts.elapsed().as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// Follow an arena: event `progress` five times a second, then `verdict` (or `unavailable`, with a
/// `detail`), and the stream ends.
#[utoipa::path(
    get, path = "/api/v1/lab/arenas/{id}/events", tag = "lab", operation_id = "follow_arena",
    params(("id" = String, Path, description = "The arena"), LanguageParams),
    responses((status = 200, description = "Server-sent events", body = Progress, content_type =
        "text/event-stream"), LookRefusals),
)]
pub async fn events(
    State(state): State<LabState>,
    TheLab(lab): TheLab,
    visitor: Visitor,
    Id(ArenaId(id)): Id<ArenaId>,
    Spoken(language): Spoken,
) -> Result<Response, Problem> {
    let gauge = metrics::gauge!("flash_sale_sse_subscribers", "stream" => "arena");
    let place = state.streams.take_place(visitor.address, gauge)?;
    let arena = lab.arena(&id).await?;
    Ok(place.respond(follow(arena, language)))
}

/// Where a stream of events stands.
enum Following {
    Progress { attempts: u64, since: tokio::time::Instant },
    Verdict,
    Over,
}

fn follow(arena: Arc<Arena>, language: Language) -> impl Stream<Item = Event> + Send {
    let start = Following::Progress { attempts: 0, since: tokio::time::Instant::now() };
    stream::unfold((arena, start, true), move |(arena, following, first)| async move {
        match following {
            Following::Over => None,
            Following::Verdict => {
                let last = match verdict::judge(&arena, language).await {
                    Ok(verdict) => event("verdict", &verdict),
                    // Deleted in between: there is nothing to follow any more.
                    Err(LabError::ArenaNotFound) => return None,
                    Err(error) => {
                        tracing::warn!(arena = arena.definition().id, %error,
                                "could not be judged");
                        event(
                            "unavailable",
                            &json!({"detail": "the arena could not be judged; ask for its \
                                    verdict again"}),
                        )
                    }
                };
                Some((last, (arena, Following::Over, false)))
            }
            Following::Progress { attempts, since } => {
                if !first {
                    tokio::time::sleep(PACE).await;
                }
                if arena.is_closed() {
                    return None;
                }
                // Looked at before the numbers are: the last progress has them all.
                let storm_is_over = arena.storm.has_ended();
                let progress = Progress::of(&arena);
                let now = tokio::time::Instant::now();
                let since = if progress.attempts == attempts { since } else { now };
                let is_quiet = arena.is_quiet() && progress.attempts > 0 && now - since >= QUIET;
                let next = if storm_is_over || is_quiet {
                    Following::Verdict
                } else {
                    Following::Progress { attempts: progress.attempts, since }
                };
                Some((event("progress", &progress), (arena, next, false)))
            }
        }
    })
}

/// The judgement over an arena, from its rows in the database; waits up to 10 s for it to be quiet.
#[utoipa::path(
    get, path = "/api/v1/lab/arenas/{id}/verdict", tag = "lab", operation_id = "judge_arena",
    params(("id" = String, Path, description = "The arena"), LanguageParams),
    responses((status = 200, description = "The verdict", body = Verdict), LookRefusals),
)]
pub async fn verdict(
    TheLab(lab): TheLab,
    Id(ArenaId(id)): Id<ArenaId>,
    Spoken(language): Spoken,
) -> Result<Response, Problem> {
    body::json(StatusCode::OK, &lab.verdict(&id, language).await?)
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ReportParams {
    /// Ids of arenas, with commas in between; the report shows them in this order.
    arenas: String,
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
    TheLab(lab): TheLab,
    headers: HeaderMap,
    Params(asked): Params<ReportParams>,
) -> Result<Response, Problem> {
    let language = asked.lang.unwrap_or_else(|| accepted(&headers));
    let ids: Vec<String> = asked.arenas.split(',').map(|id| id.trim().to_owned()).collect();
    if i64::try_from(ids.len()).is_ok_and(|count| count > MOST_ARENAS) {
        return Err(Problem::invalid(format!("arenas: must be at most {MOST_ARENAS}")));
    }
    let page = page_of::of_arenas(&lab, &ids, language).await?;
    Ok(([(CONTENT_SECURITY_POLICY, page_of::POLICY)], Html(page)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_of_hexadecimal_digits() {
        assert!("0123456789abcdef0123456789abcdef".parse::<ArenaId>().is_ok());
        for bad in ["", "1", "0123456789ABCDEF0123456789ABCDEF", "0123456789abcdef0123456789abcde;"]
        {
            assert!(bad.parse::<ArenaId>().is_err(), "{bad}");
        }
    }
}
