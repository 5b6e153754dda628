//! Counting requests.

use std::collections::HashSet;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts round trips. Clones count together.
///
/// A request with its reply is one, a script too. Connecting is not counted, nor preparing a
/// statement, once a connection.
#[derive(Debug, Clone, Default)]
pub struct Meter(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    trips: RoundTrips,
    /// The lines of source that have sent something; a script stands here without a line.
    lines: HashSet<(&'static str, u32)>,
}

/// The counts of a [`Meter`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoundTrips {
    pub redis: u64,
    pub postgres: u64,
    pub zookeeper: u64,
}

/// Whose round trips.
pub type Server = fn(&mut RoundTrips) -> &mut u64;

impl RoundTrips {
    pub fn total(self) -> u64 {
        self.redis + self.postgres + self.zookeeper
    }
}

impl Meter {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn round_trips(&self) -> RoundTrips {
        self.counts().trips
    }

    /// Begins to count anew; answers what was counted so far.
    pub fn take(&self) -> RoundTrips {
        std::mem::take(&mut self.counts().trips)
    }

    /// Notes that this line was executed.
    pub fn passed(&self, at: &'static Location<'static>) {
        self.counts().lines.insert((at.file(), at.line()));
    }

    /// Notes that this script was run.
    pub(crate) fn ran(&self, script: &'static str) {
        self.counts().lines.insert((script, 0));
    }

    /// File and line of every call that has sent something.
    pub fn lines(&self) -> HashSet<(&'static str, u32)> {
        self.counts().lines.clone()
    }

    /// Notes a round trip to this server, from this line.
    pub fn count(&self, server: Server, at: &'static Location<'static>) {
        self.passed(at);
        *server(&mut self.counts().trips) += 1;
    }

    /// Adds what something has counted for itself.
    pub fn add(&self, more: RoundTrips) {
        let trips = &mut self.counts().trips;
        trips.redis += more.redis;
        trips.postgres += more.postgres;
        trips.zookeeper += more.zookeeper;
    }
}
