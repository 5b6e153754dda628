//! What there is: strategies, and all locks side by side.

use super::{
    error::Problem,
    extract::{LanguageParams, Spoken, TheLab},
};
use crate::{
    STRATEGIES, Strategy,
    lock_comparison::LocksBody,
    marks::Excerpt,
    options::GENERAL,
    strategy::{Family, Harms, Language, OptionKind, OptionSpec, Words},
};
use axum::{http::StatusCode, response::Response};
use serde::Serialize;
use serde_json::{Map, Value};
use std::time::Duration;
use utoipa::ToSchema;
use web::{body, refusals};

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
    /// The idea in one sentence for a beginner.
    lead: &'static str,
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
    code: String,
    /// The lines that sell wrong, and those that prevent it.
    marks: Vec<Excerpt>,
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
    id: &'static str,
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
    fn of(option: &OptionSpec, id: &str, language: Language) -> Self {
        let (default, min, max, values) = match option.kind {
            OptionKind::Whole { default, min, max } => (default.into(), Some(min), Some(max), None),
            OptionKind::Choice(values) => {
                (values.first().copied().into(), None, None, Some(values.to_vec()))
            }
        };
        Self { name: option.name, teaches: option.teaches(id, language), default, min, max, values }
    }
}

impl StrategyBody {
    fn of(strategy: &'static Strategy, lacking: Option<Words>, language: Language) -> Self {
        let options = strategy.options.iter();
        let demonstrations = strategy.demonstrations.iter().map(|demonstration| {
            let scenario = demonstration.scenario;
            let options = scenario.options.iter();
            DemonstrationBody {
                id: demonstration.id,
                teaches: strategy.teaches(demonstration, language),
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
            title: strategy.title(language),
            lead: strategy.lead(language),
            family: strategy.family,
            idea: strategy.says("Idea", language),
            source: strategy.says("Source", language),
            fails: strategy.says("How it fails", language),
            break_it: strategy.says("Break it", language),
            instead: strategy.says("Instead", language),
            promise: PromiseBody {
                one_node: strategy.promise.one_node,
                across_nodes: strategy.promise.across_nodes,
            },
            needs: strategy.needs.iter().map(|need| need.name()).collect(),
            available: Availability {
                ok: lacking.is_none(),
                why: lacking.map(|why| why.say(language)),
            },
            options: options.map(|option| OptionBody::of(option, strategy.id, language)).collect(),
            crash_points: strategy.crash_points,
            demonstrations: demonstrations.collect(),
            code: strategy.purchase_code(),
            marks: strategy.marks(language),
        }
    }
}

refusals!(ListRefusals: NOT_FOUND, INVALID, RATE_LIMITED, UNAVAILABLE);

/// Every strategy: what it is, what it promises, how it fails, its code.
#[utoipa::path(
    get, path = "/api/v1/lab/strategies", tag = "lab", operation_id = "list_strategies",
    params(LanguageParams),
    responses((status = 200, description = "In the order in which they are taught", body =
        Strategies), ListRefusals),
)]
pub async fn list(TheLab(lab): TheLab, Spoken(language): Spoken) -> Result<Response, Problem> {
    let bodies =
        STRATEGIES.iter().map(|strategy| StrategyBody::of(strategy, lab.lacks(strategy), language));
    body::json(
        StatusCode::OK,
        &Strategies {
            strategies: bodies.collect(),
            options: GENERAL
                .iter()
                .map(|option| OptionBody::of(option, "options", language))
                .collect(),
        },
    )
}

refusals!(LocksRefusals: NOT_FOUND, INVALID, RATE_LIMITED, UNAVAILABLE);

/// All locks side by side: four properties, each claim with the test that backs it, and what they
/// cost.
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
        Problem::unavailable("The locks could not be measured now.", Duration::from_secs(5))
    })?;
    body::json(StatusCode::OK, &compared)
}
