//! The source files that a timeline can point into, as the page shows them.

macro_rules! sources {
    ($($file:literal),* $(,)?) => {
        &[$(($file, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/", $file)))),*]
    };
}

pub static SOURCES: &[(&str, &str)] = sources![
    "src/lock/setnx_expire.rs",
    "src/lock/setnx_getset.rs",
    "src/lock/set_px_no_owner.rs",
    "src/lock/token.rs",
    "src/lock/reentrant.rs",
    "src/lock/watchdog.rs",
    "src/lock/multi.rs",
    "src/lock/redlock.rs",
    "src/lock/zookeeper.rs",
    "src/lock/fencing.rs",
    "src/lab/lessons/shop.rs",
    "src/lab/lessons/b05_counted_twice.rs",
    "src/lab/lessons/b06_watchdog.rs",
    "src/lab/lessons/b07_lost_wakeup.rs",
    "src/lab/lessons/b08_foreign_unlock.rs",
    "src/lab/lessons/b10_redlock.rs",
    "src/lab/lessons/b11_zookeeper.rs",
    "src/lab/lessons/b12_before_commit.rs",
];
