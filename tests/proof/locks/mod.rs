//! The locks under faults, compared, on several nodes, in Postgres and ZooKeeper.

/// The ZooKeeper that tests share (without one a test ends here, and says so), and a lock's name.
macro_rules! zookeeper {
    () => {
        match $crate::support::locks::zookeeper().await {
            Some(server) => server,
            None => return,
        }
    };
    ($lock:literal) => {
        (zookeeper!(), name($lock))
    };
}

mod checker;
mod compare;
mod nodes;
mod postgres;
mod zookeeper;
