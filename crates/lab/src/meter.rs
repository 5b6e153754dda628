//! What an arena has sent to the servers, and from which lines.

use locks::wire;
use std::{
    panic::Location,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// Counts what was sent and waited for: the stand's own statements, and whatever goes over the
/// wires of the locks.
#[derive(Debug, Default)]
pub struct Meter {
    statements: AtomicU64,
    /// Of the production path, which counts for itself.
    scripts: AtomicU64,
    pub wires: wire::Meter,
}

impl Meter {
    /// A statement is about to be sent from this line.
    pub fn statement(&self, from: &'static Location<'static>) {
        self.statements.fetch_add(1, Relaxed);
        self.wires.passed(from);
    }

    /// Adds what the shop has counted: round trips to Redis, and to Postgres.
    pub fn add(&self, (redis, postgres): (u64, u64)) {
        self.scripts.fetch_add(redis, Relaxed);
        self.statements.fetch_add(postgres, Relaxed);
    }

    pub fn round_trips(&self) -> wire::RoundTrips {
        let mut sent = self.wires.round_trips();
        sent.postgres += self.statements.load(Relaxed);
        sent.redis += self.scripts.load(Relaxed);
        sent
    }
}
