//! The source files that a timeline can point into, as the page shows them.

macro_rules! sources {
    ($($file:literal),* $(,)?) => {
        &[$(($file, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../", $file)))),*]
    };
}

pub static SOURCES: &[(&str, &str)] = sources![
    "crates/locks/src/setnx_expire.rs",
    "crates/locks/src/setnx_getset.rs",
    "crates/locks/src/set_px_no_owner.rs",
    "crates/locks/src/token.rs",
    "crates/locks/src/reentrant.rs",
    "crates/locks/src/watchdog.rs",
    "crates/locks/src/multi.rs",
    "crates/locks/src/redlock.rs",
    "crates/locks/src/zookeeper.rs",
    "crates/locks/src/fencing.rs",
    "crates/lab/src/lessons/stage/shopping.rs",
    "crates/lab/src/lessons/b05_counted_twice.rs",
    "crates/lab/src/lessons/b06_watchdog.rs",
    "crates/lab/src/lessons/b07_lost_wakeup.rs",
    "crates/lab/src/lessons/b08_foreign_unlock.rs",
    "crates/lab/src/lessons/b10_redlock.rs",
    "crates/lab/src/lessons/b11_zookeeper.rs",
    "crates/lab/src/lessons/b12_before_commit.rs",
];
