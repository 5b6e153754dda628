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
mod s13_setnx_expire;
mod s14_setnx_getset;
mod s15_set_px_no_owner;
mod s16_token_lock;
mod s17_reentrant_lock;
mod s18_multi_lock;
mod s18_redlock;
mod s19_zookeeper_lock;
mod s20_fenced_lock;
mod s21_hincrby;
mod s22_lock_and_hincrby;
mod s23_lua_sync;
mod s24_task_queue;
mod s25_in_process_queue;
mod s26_lua_stream;
mod s27_sharded_local;
mod s28_bucketed;
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
    s13_setnx_expire::STRATEGY,
    s14_setnx_getset::STRATEGY,
    s15_set_px_no_owner::STRATEGY,
    s16_token_lock::STRATEGY,
    s17_reentrant_lock::STRATEGY,
    s18_multi_lock::STRATEGY,
    s18_redlock::STRATEGY,
    s19_zookeeper_lock::STRATEGY,
    s20_fenced_lock::STRATEGY,
    s21_hincrby::STRATEGY,
    s22_lock_and_hincrby::STRATEGY,
    s23_lua_sync::STRATEGY,
    s24_task_queue::STRATEGY,
    s25_in_process_queue::STRATEGY,
    s26_lua_stream::STRATEGY,
    s27_sharded_local::STRATEGY,
    s28_bucketed::STRATEGY,
    s29_session_advisory_lock::STRATEGY,
];

pub fn find(id: &str) -> Option<&'static Strategy> {
    STRATEGIES.iter().find(|strategy| strategy.id == id)
}
