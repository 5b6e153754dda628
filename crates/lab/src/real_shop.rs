//! The lab's interface to the shop, which the program hands in.

use crate::selling::{Buyer, Outcome, Result};
use crate::{order_numbers::IdsBody, strategy::Language};
use futures_util::future::BoxFuture;
use locks::wire::RoundTrips;
use sha2::{Digest, Sha256};
use sqlx::{AssertSqlSafe, Executor, PgPool};
use uuid::Uuid;

/// The shop's own way to sell, and its order numbers.
pub trait RealShop: Send + Sync + 'static {
    /// Starts one server of the shop, all its loops included, that sells one thing.
    fn open(&self, premises: Premises) -> BoxFuture<'static, Result<Box<dyn RealServer>>>;

    /// The lesson on order numbers. Its keys begin with `key_prefix`, and are gone afterwards.
    fn order_numbers(
        &self,
        postgres: PgPool,
        redis_url: String,
        key_prefix: String,
        language: Language,
    ) -> BoxFuture<'static, Result<IdsBody>>;
}

/// One server of the shop. Dropped without [`RealServer::close`], it has crashed.
pub trait RealServer: Send + Sync + 'static {
    fn buy(&self, user: Uuid) -> BoxFuture<'_, Result<Outcome>>;

    /// Waits until Postgres and Redis agree.
    fn settle(&self) -> BoxFuture<'_, ()>;

    /// Ends it in order.
    fn close(&self) -> BoxFuture<'_, ()>;

    /// Its round trips since the last call.
    fn round_trips(&self) -> RoundTrips;
}

/// Where a server of the shop keeps its data, and what it sells.
#[derive(Debug, Clone)]
pub struct Premises {
    pub postgres: PgPool,
    /// Made by the first server that needs it; goes with the arena.
    pub schema: String,
    pub redis_url: String,
    pub key_prefix: String,
    pub stock: i32,
    pub per_user_limit: i32,
}

/// The strategy that is the real shop.
pub const STRATEGY: &str = "lua-stream";

/// [`user_of`] in SQL, of a row of `lab.buyers heard`.
pub const USER_OF_BUYER: &str =
    "substr(encode(sha256(convert_to(heard.buyer, 'UTF8')), 'hex'), 1, 32)::uuid::text";

/// Every name is a user of the shop.
pub fn user_of(buyer: &Buyer) -> Uuid {
    let digest = Sha256::digest(buyer.name.as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    Uuid::from_bytes(bytes)
}

/// The schema of an arena's shop. Ids of arenas are hexadecimal digits.
pub fn schema_of(arena: &str) -> String {
    format!("lab_{arena}")
}

/// Removes the schema of this arena's shop.
pub async fn drop_schema(postgres: &PgPool, arena: &str) -> Result<(), sqlx::Error> {
    let statement = format!("DROP SCHEMA IF EXISTS {} CASCADE", schema_of(arena));
    postgres.execute(AssertSqlSafe(statement)).await.map(|_| ())
}

/// The names that [`schema_of`] gives: other schemas called `lab_…` are not ours.
pub const SCHEMAS: &str = "^lab_[0-9a-f]{32}$";
