//! Whether a storm is going on in an arena.

use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{AcqRel, Acquire, Release},
};
use tokio_util::sync::CancellationToken;

/// The storms of an arena, one after the other.
#[derive(Default)]
pub struct StormState {
    running: AtomicBool,
    of: AtomicU64,
    stop: CancellationToken,
}

impl StormState {
    pub fn is_running(&self) -> bool {
        self.running.load(Acquire)
    }

    /// Whether a storm was here and is over.
    pub fn has_ended(&self) -> bool {
        self.of() > 0 && !self.is_running()
    }

    /// How many attempts the storms of this arena make in all.
    pub fn of(&self) -> u64 {
        self.of.load(Acquire)
    }

    /// Ends the storm and every later one.
    pub fn cancel(&self) {
        self.stop.cancel();
    }

    /// Notes that a storm of so many attempts begins. `None`: there is one already.
    pub fn begin(&self, attempts: usize) -> Option<CancellationToken> {
        if self.running.swap(true, AcqRel) {
            return None;
        }
        self.of.fetch_add(attempts as u64, Release);
        Some(self.stop.clone())
    }

    pub fn end(&self) {
        self.running.store(false, Release);
    }
}
