//! The lab: strategies, arenas, purchases, storms, verdicts. Without a lab (`LAB=off`) every handler
//! here answers 404 before it looks at anything.
//!
//! Nobody has to say who they are: an arena sells nothing. It is bounded in number, size and age, and
//! whoever knows its id may use it.

use super::{
    App,
    body::{self, Json},
    error::{ARENA_NOT_FOUND, Kind, Problem},
    events,
    extract::{Caller, Id, Named, Params, TheLab},
    openapi::refusals,
};
use crate::lab::{
    MOST_ARENAS, MOST_NODES, MOST_PER_USER, MOST_STOCK, STRATEGIES, Strategy, Wanted,
    arena::Arena,
    is_arena_id,
    locks::LocksBody,
    options::GENERAL,
    report as page_of,
    storm::{MOST_AT_ONCE, MOST_BUYERS, Storm},
    strategy::{Buyer, Family, Harms, Language, OptionKind, OptionSpec, Outcome, Words},
    verdict::{Percentiles, Verdict},
};
use axum::{
    extract::{FromRequestParts, State},
    http::{
        HeaderMap, StatusCode,
        header::{ACCEPT_LANGUAGE, CONTENT_SECURITY_POLICY},
        request::Parts,
    },
    response::{Html, IntoResponse, Response},
};
use futures_util::{Stream, stream};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::{convert::Infallible, str::FromStr, sync::Arc, time::Duration};
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};

/// How often a stream of events tells how a storm goes.
const PACE: Duration = Duration::from_millis(200);
/// A stream without a storm ends with a verdict when nobody has bought for so long.
const QUIET: Duration = Duration::from_secs(3);
const LONGEST_NAME: usize = 100;

// ---- language ---------------------------------------------------------------------------------

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LanguageParams {
    /// The language of all texts; otherwise Accept-Language says, otherwise it is English.
    #[param(inline)]
    lang: Option<Language>,
}

/// The language that the texts of the answer are to have.
pub struct Spoken(pub Language);

impl<S: Send + Sync> FromRequestParts<S> for Spoken {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Params(asked) = Params::<LanguageParams>::from_request_parts(parts, state).await?;
        Ok(Self(asked.lang.unwrap_or_else(|| accepted(&parts.headers))))
    }
}

/// The language that Accept-Language likes best, of those that there are.
fn accepted(headers: &HeaderMap) -> Language {
    let header = headers.get(ACCEPT_LANGUAGE);
    let text = header.and_then(|value| value.to_str().ok()).unwrap_or("");
    let mut best = (0.0, Language::En);
    for range in text.split(',') {
        let (tag, weight) = range.split_once(';').unwrap_or((range, ""));
        let weight = weight
            .trim()
            .strip_prefix("q=")
            .map_or(Some(1.0), |q| q.parse().ok());
        let tag = tag.trim().to_ascii_lowercase();
        let language = match tag.split('-').next() {
            Some("zh") => Language::Zh,
            Some("en") => Language::En,
            _ => continue,
        };
        if let Some(weight) = weight
            && weight > best.0
        {
            best = (weight, language);
        }
    }
    best.1
}

// ---- strategies -------------------------------------------------------------------------------

#[derive(Serialize, ToSchema)]
pub struct Strategies {
    /// In the order in which they are taught.
    strategies: Vec<StrategyBody>,
    /// The knobs that every strategy has.
    options: Vec<OptionBody>,
}

/// One way to sell a scarce thing. Texts are in the language that was asked for.
#[derive(Serialize, ToSchema)]
#[schema(as = Strategy)]
pub struct StrategyBody {
    id: &'static str,
    number: u8,
    title: &'static str,
    family: Family,
    idea: &'static str,
    /// Where it comes from, and what that gets right or misses.
    source: &'static str,
    fails: &'static str,
    break_it: &'static str,
    instead: &'static str,
    promise: PromiseBody,
    /// What has to be there besides Postgres and one Redis.
    needs: Vec<String>,
    available: Availability,
    /// Its own knobs.
    options: Vec<OptionBody>,
    /// Where a node can be made to crash (`crash_at`).
    crash_points: &'static [&'static str],
    demonstrations: Vec<DemonstrationBody>,
    /// The source of the purchase.
    code: &'static str,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Promise)]
pub struct PromiseBody {
    /// On one node.
    #[serde(flatten)]
    one_node: Harms,
    across_nodes: Harms,
}

#[derive(Serialize, ToSchema)]
pub struct Availability {
    ok: bool,
    /// What is missing and how to start it.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'static str>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = ArenaOption)]
pub struct OptionBody {
    name: &'static str,
    teaches: &'static str,
    /// A number, or one of `values`.
    default: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    min: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    values: Option<Vec<&'static str>>,
}

/// An arena and a storm that show something every time.
#[derive(Serialize, ToSchema)]
#[schema(as = Demonstration)]
pub struct DemonstrationBody {
    teaches: &'static str,
    stock: u32,
    nodes: u32,
    per_user_limit: u32,
    buyers: u32,
    concurrency: u32,
    duplicate_share: f64,
    options: Map<String, Value>,
}

impl OptionBody {
    fn of(option: &OptionSpec, language: Language) -> Self {
        let (default, min, max, values) = match option.kind {
            OptionKind::Whole { default, min, max } => (default.into(), Some(min), Some(max), None),
            OptionKind::Choice(values) => (
                values.first().copied().into(),
                None,
                None,
                Some(values.to_vec()),
            ),
        };
        Self {
            name: option.name,
            teaches: option.teaches.say(language),
            default,
            min,
            max,
            values,
        }
    }
}

impl StrategyBody {
    fn of(strategy: &'static Strategy, lacking: Option<Words>, language: Language) -> Self {
        let options = strategy.options.iter();
        let demonstrations = strategy.demonstrations.iter().map(|demonstration| {
            let scenario = demonstration.scenario;
            let options = scenario.options.iter();
            DemonstrationBody {
                teaches: demonstration.teaches.say(language),
                stock: scenario.stock,
                nodes: scenario.nodes,
                per_user_limit: scenario.per_user_limit,
                buyers: scenario.buyers,
                concurrency: scenario.concurrency,
                duplicate_share: f64::from(scenario.duplicates_percent) / 100.0,
                options: options
                    .map(|(name, value)| ((*name).to_owned(), Value::from(*value)))
                    .collect(),
            }
        });
        Self {
            id: strategy.id,
            number: strategy.number,
            title: strategy.title.say(language),
            family: strategy.family,
            idea: strategy.idea.say(language),
            source: strategy.source.say(language),
            fails: strategy.fails.say(language),
            break_it: strategy.break_it.say(language),
            instead: strategy.instead.say(language),
            promise: PromiseBody {
                one_node: strategy.promise.one_node,
                across_nodes: strategy.promise.across_nodes,
            },
            needs: strategy.needs.iter().map(|need| need.name()).collect(),
            available: Availability {
                ok: lacking.is_none(),
                why: lacking.map(|why| why.say(language)),
            },
            options: options
                .map(|option| OptionBody::of(option, language))
                .collect(),
            crash_points: strategy.crash_points,
            demonstrations: demonstrations.collect(),
            code: strategy.purchase_code(),
        }
    }
}

refusals!(ListRefusals: NOT_FOUND, INVALID, RATE_LIMITED, UNAVAILABLE);
refusals!(CreateRefusals:
    CROSS_ORIGIN, NOT_FOUND, REQUEST_TIMEOUT, TOO_MANY_ARENAS, STRATEGY_UNAVAILABLE, TOO_LARGE, UNSUPPORTED_MEDIA_TYPE, INVALID, RATE_LIMITED,
    UNAVAILABLE
);
refusals!(BuyRefusals:
    CROSS_ORIGIN, NOT_FOUND, ARENA_NOT_FOUND, REQUEST_TIMEOUT, STRATEGY_UNAVAILABLE, TOO_LARGE, UNSUPPORTED_MEDIA_TYPE, INVALID, RATE_LIMITED,
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

/// Every strategy: what it is, what it promises, how it fails, its code.
#[utoipa::path(
    get, path = "/api/v1/lab/strategies", tag = "lab", operation_id = "list_strategies",
    params(LanguageParams),
    responses((status = 200, description = "In the order in which they are taught", body = Strategies), ListRefusals),
)]
pub async fn strategies(
    TheLab(lab): TheLab,
    Spoken(language): Spoken,
) -> Result<Response, Problem> {
    let bodies = STRATEGIES
        .iter()
        .map(|strategy| StrategyBody::of(strategy, lab.lacks(strategy), language));
    body::json(
        StatusCode::OK,
        &Strategies {
            strategies: bodies.collect(),
            options: GENERAL
                .iter()
                .map(|option| OptionBody::of(option, language))
                .collect(),
        },
    )
}

// ---- visitors ---------------------------------------------------------------------------------

/// Who asks, as far as the lab limits what one address may have: not with `RATE_LIMIT=off`.
pub struct Visitor(Option<String>);

impl Visitor {
    fn address(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl FromRequestParts<App> for Visitor {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Infallible> {
        let Caller(address) = Caller::from_request_parts(parts, app).await?;
        Ok(Self(app.limits.is_some().then(|| address.to_string())))
    }
}

// ---- arenas -----------------------------------------------------------------------------------

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
    let arena = lab.create_for(visitor.address(), wanted).await?;
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
    /// Whoever it is: any text of up to 100 characters.
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
    let body = AnswerBody {
        outcome,
        order_id,
        waited_ms: in_ms(answer.waited),
        why,
    };
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
    lab.storm(visitor.address(), &arena, storm)?;
    let body = StormStarted {
        arena_id: &id,
        attempts: arena.storm.of(),
    };
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

/// Follow an arena: event `progress` five times a second, then `verdict` (or `unavailable`, with a `detail`), and the stream ends.
#[utoipa::path(
    get, path = "/api/v1/lab/arenas/{id}/events", tag = "lab", operation_id = "follow_arena",
    params(("id" = String, Path, description = "The arena"), LanguageParams),
    responses((status = 200, description = "Server-sent events", body = Progress, content_type = "text/event-stream"), LookRefusals),
)]
pub async fn events(
    State(app): State<App>,
    TheLab(lab): TheLab,
    Caller(address): Caller,
    Id(ArenaId(id)): Id<ArenaId>,
    Spoken(language): Spoken,
) -> Result<Response, Problem> {
    let gauge = metrics::gauge!("flash_sale_sse_subscribers", "stream" => "arena");
    let place = app.streams.take_place(address, gauge)?;
    let arena = lab.arena(&id).await?;
    Ok(events::respond(&app, follow(arena, language), place))
}

/// Where a stream of events stands.
enum Following {
    Progress {
        attempts: u64,
        since: tokio::time::Instant,
    },
    Verdict,
    Over,
}

fn follow(
    arena: Arc<Arena>,
    language: Language,
) -> impl Stream<Item = axum::response::sse::Event> + Send {
    let start = Following::Progress {
        attempts: 0,
        since: tokio::time::Instant::now(),
    };
    stream::unfold(
        (arena, start, true),
        move |(arena, following, first)| async move {
            match following {
                Following::Over => None,
                Following::Verdict => {
                    let last = match crate::lab::verdict::judge(&arena, language).await {
                        Ok(verdict) => events::event("verdict", &verdict),
                        // Deleted in between: there is nothing to follow any more.
                        Err(crate::lab::LabError::ArenaNotFound) => return None,
                        Err(error) => {
                            tracing::warn!(arena = arena.definition().id, %error, "could not be judged");
                            events::event(
                                "unavailable",
                                &json!({"detail": "the arena could not be judged; ask for its verdict again"}),
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
                    let since = if progress.attempts == attempts {
                        since
                    } else {
                        now
                    };
                    let is_quiet =
                        arena.is_quiet() && progress.attempts > 0 && now - since >= QUIET;
                    let next = if storm_is_over || is_quiet {
                        Following::Verdict
                    } else {
                        Following::Progress {
                            attempts: progress.attempts,
                            since,
                        }
                    };
                    Some((events::event("progress", &progress), (arena, next, false)))
                }
            }
        },
    )
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
    #[param(inline)]
    lang: Option<Language>,
}

/// The report of some arenas: a page with charts and lessons that needs nothing else.
#[utoipa::path(
    get, path = "/api/v1/lab/report", tag = "lab", operation_id = "report_arenas",
    params(ReportParams),
    responses((status = 200, description = "The page", body = String, content_type = "text/html"), LookRefusals),
)]
pub async fn report(
    TheLab(lab): TheLab,
    headers: HeaderMap,
    Params(asked): Params<ReportParams>,
) -> Result<Response, Problem> {
    let language = asked.lang.unwrap_or_else(|| accepted(&headers));
    let ids: Vec<String> = asked
        .arenas
        .split(',')
        .map(|id| id.trim().to_owned())
        .collect();
    if i64::try_from(ids.len()).is_ok_and(|count| count > MOST_ARENAS) {
        return Err(Problem::invalid(format!(
            "arenas: must be at most {MOST_ARENAS}"
        )));
    }
    let page = page_of::of_arenas(&lab, &ids, language).await?;
    Ok(([(CONTENT_SECURITY_POLICY, page_of::POLICY)], Html(page)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn the_language_is_the_one_that_is_liked_best() {
        let spoken = |text: &'static str| {
            let headers = HeaderMap::from_iter([(ACCEPT_LANGUAGE, HeaderValue::from_static(text))]);
            accepted(&headers)
        };
        for (text, language) in [
            ("", Language::En),
            ("zh", Language::Zh),
            ("zh-CN,zh;q=0.9,en;q=0.8", Language::Zh),
            ("en-GB,en;q=0.9,zh;q=0.8", Language::En),
            ("de, zh;q=0.5", Language::Zh),
            ("en;q=0.1, zh;q=0.2", Language::Zh),
            ("zh;q=x, en;q=0", Language::En),
        ] {
            assert_eq!(spoken(text), language, "{text}");
        }
        assert_eq!(accepted(&HeaderMap::new()), Language::En);
    }

    #[test]
    fn an_id_is_of_hexadecimal_digits() {
        assert!(
            "0123456789abcdef0123456789abcdef"
                .parse::<ArenaId>()
                .is_ok()
        );
        for bad in [
            "",
            "1",
            "0123456789ABCDEF0123456789ABCDEF",
            "0123456789abcdef0123456789abcde;",
        ] {
            assert!(bad.parse::<ArenaId>().is_err(), "{bad}");
        }
    }
}

// ---- locks ------------------------------------------------------------------------------------

refusals!(LocksRefusals: NOT_FOUND, INVALID, RATE_LIMITED, UNAVAILABLE);

/// All locks side by side: four properties, each claim with the test that backs it, and what they cost.
///
/// The costs are measured on these servers when somebody first asks, which takes some seconds.
#[utoipa::path(
    get, path = "/api/v1/lab/locks", tag = "lab", operation_id = "compare_locks",
    params(LanguageParams),
    responses((status = 200, description = "Every lock", body = LocksBody), LocksRefusals),
)]
pub async fn locks(TheLab(lab): TheLab, Spoken(language): Spoken) -> Result<Response, Problem> {
    let compared = lab.locks(language).await.map_err(|error| {
        tracing::warn!(%error, "the locks could not be measured");
        Problem::unavailable(
            "The locks could not be measured now.",
            Duration::from_secs(5),
        )
    })?;
    body::json(StatusCode::OK, &compared)
}
