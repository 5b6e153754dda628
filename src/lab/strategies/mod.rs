//! The strategies, one file each, in the order in which they are taught. All have one shape: what the
//! strategy says of itself, then the purchase.

mod s01_naive;
mod s02_process_mutex;
mod s03_mutex_unlock_before_commit;
mod s04_per_user_mutex;
mod s05_row_lock;
mod s06_version_column;
mod s07_cas_stock;
mod s08_conditional_update;
mod s09_unique_order;
mod s10_serializable;
mod s11_advisory_lock;
mod s12_db_lock_table;
mod s26_lua_stream;
mod s29_session_advisory_lock;

use super::strategy::Strategy;

/// Every strategy, by number.
pub static STRATEGIES: &[Strategy] = &[
    s01_naive::STRATEGY,
    s02_process_mutex::STRATEGY,
    s03_mutex_unlock_before_commit::STRATEGY,
    s04_per_user_mutex::STRATEGY,
    s05_row_lock::STRATEGY,
    s06_version_column::STRATEGY,
    s07_cas_stock::STRATEGY,
    s08_conditional_update::STRATEGY,
    s09_unique_order::STRATEGY,
    s10_serializable::STRATEGY,
    s11_advisory_lock::STRATEGY,
    s12_db_lock_table::STRATEGY,
    s26_lua_stream::STRATEGY,
    s29_session_advisory_lock::STRATEGY,
];

pub fn find(id: &str) -> Option<&'static Strategy> {
    STRATEGIES.iter().find(|strategy| strategy.id == id)
}
