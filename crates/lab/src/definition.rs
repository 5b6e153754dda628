//! What an arena is.

use super::{options::Options, strategy::Strategy};
use time::OffsetDateTime;

/// What an arena is.
#[derive(Clone)]
pub struct Definition {
    pub id: String,
    pub strategy: &'static Strategy,
    pub stock: i32,
    pub nodes: u32,
    pub per_user_limit: i32,
    pub options: Options,
    pub expires_at: OffsetDateTime,
}
