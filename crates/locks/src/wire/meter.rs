//! Counting requests.

use std::{
    collections::HashSet,
    ops::Sub,
    panic::Location,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// Counts round trips. Clones count together.
///
/// A request with its reply is one, a script too. Connecting is not counted, nor preparing a
/// statement, once a connection.
#[derive(Debug, Clone, Default)]
pub struct Meter(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    trips: [AtomicU64; 3],
    /// The lines of source that have sent something.
    lines: Mutex<HashSet<(&'static str, u32)>>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Server {
    Redis,
    Postgres,
    ZooKeeper,
}

/// The counts of a [`Meter`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoundTrips {
    pub redis: u64,
    pub postgres: u64,
    pub zookeeper: u64,
}

impl RoundTrips {
    pub fn total(self) -> u64 {
        self.redis + self.postgres + self.zookeeper
    }
}

impl Sub for RoundTrips {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            redis: self.redis.saturating_sub(before.redis),
            postgres: self.postgres.saturating_sub(before.postgres),
            zookeeper: self.zookeeper.saturating_sub(before.zookeeper),
        }
    }
}

impl Meter {
    pub fn round_trips(&self) -> RoundTrips {
        let [redis, postgres, zookeeper] =
            [0, 1, 2].map(|server: usize| self.0.trips[server].load(Relaxed));
        RoundTrips { redis, postgres, zookeeper }
    }

    /// Notes that this line was executed.
    pub fn passed(&self, at: &'static Location<'static>) {
        let mut lines = self.0.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.insert((at.file(), at.line()));
    }

    /// Notes that this script was run: its name, without a line.
    pub(crate) fn ran(&self, script: &'static str) {
        let mut lines = self.0.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.insert((script, 0));
    }

    /// File and line of every call that has sent something.
    pub fn lines(&self) -> HashSet<(&'static str, u32)> {
        self.0.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn count(&self, server: Server, at: &'static Location<'static>) {
        self.passed(at);
        self.0.trips[server as usize].fetch_add(1, Relaxed);
    }
}
