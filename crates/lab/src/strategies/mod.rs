//! The strategies, one file each, in the order in which they are taught. All have one shape: the
//! purchase, then what the strategy promises and how it is shown. Its words are in `texts/`.

/// A script, with its marks.
macro_rules! script {
    ($name:literal) => {
        Source {
            file: concat!("crates/lab/src/strategies/scripts/", $name),
            text: include_str!(concat!("scripts/", $name)),
        }
    };
}

mod advisory_lock;
mod bucketed;
mod cas_stock;
mod conditional_update;
mod db_lock_table;
mod fenced_lock;
mod group_update;
mod hincrby;
mod in_process_queue;
mod lock_and_hincrby;
mod lua_stream;
mod lua_sync;
mod multi_lock;
mod mutex_unlock_before_commit;
mod naive;
mod per_user_mutex;
mod process_mutex;
mod redlock;
mod reentrant_lock;
mod row_lock;
mod serializable;
mod session_advisory_lock;
mod set_px_no_owner;
mod setnx_expire;
mod setnx_getset;
mod sharded_local;
mod skip_locked;
mod task_queue;
mod token_list;
mod token_lock;
mod transactional_message;
mod unique_order;
mod version_column;
mod watch_multi;
mod zookeeper_lock;

use super::selling::{PurchaseError, Result};
use super::{bench::Bench, seller::Seller, strategy::Strategy};
use std::sync::Arc;

macro_rules! path_of {
    ($folder:literal, $file:ident) => {
        concat!("crates/lab/src/strategies/", $folder, stringify!($file), ".rs")
    };
}

/// A registry: the folder, and the files in it. A strategy's number is its place.
macro_rules! strategies {
    ($folder:literal; $($file:ident $(as $id:literal)?),* $(,)?) => {
        /// Every strategy, by number.
        pub static STRATEGIES: &[$crate::strategy::Strategy] = &$crate::strategies::numbered([$(
            $crate::strategy::Strategy {
                $(id: $id,)?
                code: $crate::marks::Source {
                    file: path_of!($folder, $file),
                    text: include_str!(concat!($folder, stringify!($file), ".rs")),
                },
                ..$file::STRATEGY
            }
        ),*]);

        /// `None`: it is not in this registry.
        pub async fn open_listed(
            strategy: &$crate::strategy::Strategy,
            bench: &$crate::bench::Bench,
        ) -> Option<$crate::strategies::Opened> {
            $(if strategy.code.file == path_of!($folder, $file) {
                let opened = $file::open(bench).await;
                return Some(opened.map(|node| std::sync::Arc::new(node) as _));
            })*
            None
        }
    };
}

mod own;
#[cfg(feature = "solutions")]
pub mod solutions;

pub type Opened = Result<Arc<dyn Seller>>;

/// Opens a node: what one process keeps in memory to sell this way.
pub async fn open(strategy: &Strategy, bench: &Bench) -> Opened {
    let opened = open_listed(strategy, bench).await.or(own::open_listed(strategy, bench).await);
    #[cfg(feature = "solutions")]
    let opened = opened.or(solutions::open_listed(strategy, bench).await);
    let unknown = || Err(PurchaseError::Other(format!("no strategy is called {}", strategy.id)));
    opened.unwrap_or_else(unknown)
}

const fn numbered<const N: usize>(mut strategies: [Strategy; N]) -> [Strategy; N] {
    let mut at = 0;
    while at < N {
        strategies[at].number = at as u8 + 1;
        at += 1;
    }
    strategies
}

strategies! {
    "";
    naive, process_mutex, mutex_unlock_before_commit, per_user_mutex, row_lock, version_column,
    cas_stock, conditional_update, unique_order, serializable, advisory_lock, session_advisory_lock,
    db_lock_table, skip_locked, group_update, setnx_expire, setnx_getset, set_px_no_owner,
    token_lock, reentrant_lock, multi_lock, redlock, zookeeper_lock, fenced_lock, hincrby,
    watch_multi, token_list, lock_and_hincrby, lua_sync, task_queue, in_process_queue,
    transactional_message, lua_stream, sharded_local, bucketed
}

/// Those that are taught, and those of one's own.
pub fn all() -> impl Iterator<Item = &'static Strategy> {
    let all = STRATEGIES.iter().chain(own::STRATEGIES);
    #[cfg(feature = "solutions")]
    let all = all.chain(solutions::STRATEGIES);
    all
}

pub fn find(id: &str) -> Option<&'static Strategy> {
    all().find(|strategy| strategy.id == id)
}
