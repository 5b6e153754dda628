//! Imports and constants for the files of `strategies`.

pub use crate::bench::{Bench, new_order_id};
pub use crate::options::{
    LEASE_MS, WAIT_MS, choice, redis_node_loss, redis_nodes_down, retries, whole,
};
pub use crate::purchase::{naive_sale, read_check_write};
pub use crate::selling::{Buyer, Outcome, PurchaseError, Result, hash_of};
pub use crate::strategy::{
    Demonstration, Expected, Family, Harm::*, Harms, Need, Never, Possible, Promise, Scenario,
    Strategy, show,
};
pub use crate::{marks::Source, seller::Sell, sql::Sql};
pub use locks::{lua, wire::LuaScript};

pub const SMALL: Scenario = Scenario::SMALL;
pub const ONE_UNIT: Scenario = Scenario::ONE_UNIT;
pub const IMPATIENT: Scenario = Scenario::IMPATIENT;
/// Later buyers find a unit missing that an earlier one has lost.
pub const ONE_BY_ONE: Scenario = SMALL.concurrency(1);
pub const DOUBLE_CLICK: Scenario = Scenario::DOUBLE_CLICK;

/// The first holder of a lock pauses until its lease is over.
pub const PAUSED: &[(&str, &str)] = &[("lease_ms", "100"), ("pause_ms", "500")];

/// The node crashes with a unit in hand, and is back at once.
pub const UNIT_LOST: &[(&str, &str)] = &[("crash_at", "the unit is taken"), ("restart_ms", "0")];

/// Options of locks on several servers: how many forget, how many are down.
pub const LOST: &str = "redis_node_loss";
pub const DOWN: &str = "redis_nodes_down";
/// No lease ends while a busy machine restarts servers.
pub const LONG: (&str, &str) = ("lease_ms", "20000");

/// The defaults of strategies that leave it to Postgres.
pub const DATABASE_STRATEGY: Strategy = Strategy {
    family: Family::Database,
    crash_points: &["the stock is written"],
    ..Strategy::PLAIN
};

/// The defaults of strategies that count in Redis: first the unit, then the order.
pub const COUNTER_STRATEGY: Strategy = Strategy {
    family: Family::RedisCounter,
    promise: Promise::everywhere(Harms::UNSOLD),
    crash_points: &["the unit is taken"],
    ..Strategy::PLAIN
};

/// The defaults of strategies under a lock that all nodes share.
pub const LOCK_STRATEGY: Strategy = Strategy {
    family: Family::DistributedLock,
    promise: Promise::everywhere(Harms::POSSIBLE),
    options: &[LEASE_MS, WAIT_MS],
    crash_points: &["the stock is written", "committed"],
    ..Strategy::PLAIN
};
