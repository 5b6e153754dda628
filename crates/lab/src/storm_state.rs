//! Whether a storm is going on in an arena.

use std::sync::{
    Mutex, PoisonError,
    atomic::{
        AtomicBool, AtomicU64,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
};
use tokio_util::sync::CancellationToken;

/// The storm of an arena, if there was one.
#[derive(Default)]
pub struct StormState {
    running: AtomicBool,
    ended: AtomicBool,
    of: AtomicU64,
    stop: Mutex<Option<CancellationToken>>,
}

impl StormState {
    pub fn is_running(&self) -> bool {
        self.running.load(Acquire)
    }

    /// Whether a storm was here and is over.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Acquire) && !self.is_running()
    }

    /// How many attempts the storms of this arena make in all.
    pub fn of(&self) -> u64 {
        self.of.load(Relaxed)
    }

    pub fn cancel(&self) {
        let stop = self.stop.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stop) = &*stop {
            stop.cancel();
        }
    }

    /// Notes that a storm of so many attempts begins. `None`: there is one already.
    pub fn begin(&self, attempts: usize) -> Option<CancellationToken> {
        if self.running.swap(true, AcqRel) {
            return None;
        }
        self.of.fetch_add(attempts as u64, Relaxed);
        let stop = CancellationToken::new();
        let mut known = self.stop.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Some(stop.clone());
        Some(stop)
    }

    pub fn end(&self) {
        self.ended.store(true, Relaxed);
        self.running.store(false, Release);
    }
}
