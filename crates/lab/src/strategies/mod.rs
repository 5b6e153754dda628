//! The strategies, one file each, in the order in which they are taught. All have one shape: what
//! the strategy says of itself, then the purchase.

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

use super::{
    selling::{Opening, Trouble},
    stand::Stand,
    strategy::Strategy,
};

/// The strategies, and how a node of each is opened.
macro_rules! strategies {
    ($($file:ident),* $(,)?) => {
        /// Every strategy, by number.
        pub static STRATEGIES: &[Strategy] = &[$($file::STRATEGY),*];

        /// Opens a node: what one process keeps in memory to sell this way.
        pub fn open(strategy: &Strategy, stand: Stand) -> Opening {
            $(if strategy.id == $file::STRATEGY.id {
                return $file::open(stand);
            })*
            let id = strategy.id;
            Box::pin(async move { Err(Trouble::Other(format!("no strategy is called {id}"))) })
        }
    };
}

strategies![
    s01_naive,
    s02_process_mutex,
    s03_mutex_unlock_before_commit,
    s04_per_user_mutex,
    s05_row_lock,
    s06_version_column,
    s07_cas_stock,
    s08_conditional_update,
    s09_unique_order,
    s10_serializable,
    s11_advisory_lock,
    s12_db_lock_table,
    s13_setnx_expire,
    s14_setnx_getset,
    s15_set_px_no_owner,
    s16_token_lock,
    s17_reentrant_lock,
    s18_multi_lock,
    s18_redlock,
    s19_zookeeper_lock,
    s20_fenced_lock,
    s21_hincrby,
    s22_lock_and_hincrby,
    s23_lua_sync,
    s24_task_queue,
    s25_in_process_queue,
    s26_lua_stream,
    s27_sharded_local,
    s28_bucketed,
    s29_session_advisory_lock,
];

pub fn find(id: &str) -> Option<&'static Strategy> {
    STRATEGIES.iter().find(|strategy| strategy.id == id)
}
