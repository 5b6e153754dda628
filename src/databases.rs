//! The two databases of a shop: Postgres holds the truth, Redis sells.

use crate::postgres::Pool;
use crate::redis::Redis;
use std::sync::Arc;

#[derive(Clone)]
pub struct Databases {
    pub postgres: Pool,
    pub redis: Arc<Redis>,
}
