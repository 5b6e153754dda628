//! The lesson on order numbers, as it is told; the shop plays it, with its own generator.

use serde::Serialize;
use serde_json::Value as Json;
use utoipa::ToSchema;

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = IdLesson)]
pub struct IdsBody {
    pub sections: Vec<SectionBody>,
}

/// Words, and a table or code if there is something to show.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = IdSection)]
pub struct SectionBody {
    pub title: &'static str,
    pub text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub columns: Option<Vec<&'static str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<Vec<Vec<Json>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
}
