//! The texts of the locks, for pages that quote the lines which decide.

use crate::marks::Source;

macro_rules! sources {
    ($($id:literal: $($file:literal),*;)*) => {
        /// Each file with its lock, named as its strategy; one with deciding lines comes first.
        pub const SOURCES: &[(&str, Source)] = &[$($(($id, Source {
            file: concat!("crates/locks/src/", $file),
            text: include_str!(concat!("../../locks/src/", $file)),
        })),*),*];
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
