//! The texts of locks, for pages that quote the lines which decide.

/// One file of a lock.
#[derive(Debug, Clone, Copy)]
pub struct Source {
    /// The lock, named as its strategy.
    pub id: &'static str,
    pub file: &'static str,
    pub text: &'static str,
}

macro_rules! sources {
    ($($id:literal: $($file:literal),*;)*) => {
        /// The files of each lock; one with its deciding lines comes first.
        pub const SOURCES: &[Source] = &[$($(Source {
            id: $id,
            file: concat!("crates/locks/src/", $file),
            text: include_str!($file),
        }),*),*];
    };
}

sources! {
    "setnx-expire": "setnx_expire.rs";
    "setnx-getset": "setnx_getset.rs";
    "set-px-no-owner": "set_px_no_owner.rs";
    "token-lock": "token.rs", "scripts/token_release.lua";
    "fenced-lock": "fencing.rs";
    "reentrant-lock": "reentrant.rs", "watchdog.rs", "waiting.rs", "scripts/reentrant_acquire.lua",
        "scripts/reentrant_release.lua";
    "multi-lock": "multi.rs", "nodes.rs";
    "redlock": "redlock.rs", "nodes.rs";
    "db-lock-table": "table.rs";
    "zookeeper-lock": "zookeeper.rs", "queue.rs";
}
