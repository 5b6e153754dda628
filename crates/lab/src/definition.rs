//! The definition of an arena, and the request for one.

use crate::{options::Options, strategy::Strategy};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};
use time::OffsetDateTime;
use utoipa::ToSchema;

/// A fresh stock that only one strategy sells.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateArena)]
pub struct Wanted {
    #[schema(example = "naive")]
    pub strategy: String,
    #[schema(minimum = 1, maximum = 10_000)]
    pub stock: i64,
    /// How many servers sell it; 1 if absent.
    #[schema(minimum = 1, maximum = 8)]
    pub nodes: Option<i64>,
    /// 1 if absent.
    #[schema(minimum = 1, maximum = 100)]
    pub per_user_limit: Option<i64>,
    /// Short for `options.work_ms`.
    #[schema(minimum = 0, maximum = 2_000)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_ms: Option<i64>,
    /// Those of the strategy and those of every strategy; see GET /api/v1/lab/strategies.
    #[serde(default)]
    pub options: Map<String, Value>,
}

/// An arena.
#[derive(Clone, Serialize, ToSchema)]
#[schema(as = Arena)]
pub struct Definition {
    #[serde(rename = "arena_id")]
    pub id: String,
    #[serde(serialize_with = "by_id")]
    #[schema(value_type = String)]
    pub strategy: &'static Strategy,
    pub stock: i32,
    pub nodes: u32,
    pub per_user_limit: i32,
    /// Every option with its value.
    #[schema(value_type = Map<String, Value>)]
    pub options: Options,
    #[serde(with = "time::serde::rfc3339")]
    pub expires_at: OffsetDateTime,
}

fn by_id<S: Serializer>(strategy: &&'static Strategy, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(strategy.id)
}
