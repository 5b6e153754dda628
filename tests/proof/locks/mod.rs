//! The locks under faults, compared, on several nodes, in Postgres and ZooKeeper.

/// The ZooKeeper that tests share; where there is none the test ends here, and says so.
macro_rules! zookeeper {
    ($test:expr) => {
        match $crate::support::locks::zookeeper($test).await {
            Some(server) => server,
            None => return,
        }
    };
}

mod checker;
mod compare;
mod nodes;
mod postgres;
mod zookeeper;
