//! Whether a storm is going on in an arena.

use parking_lot::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use tokio::task::JoinHandle;

/// The storms of an arena, one after the other.
#[derive(Default)]
pub struct StormState {
    last: Mutex<Option<JoinHandle<()>>>,
    of: AtomicU64,
}

impl StormState {
    pub fn is_running(&self) -> bool {
        self.last.lock().as_ref().is_some_and(|storm| !storm.is_finished())
    }

    /// Whether a storm was here and is over.
    pub fn has_ended(&self) -> bool {
        self.of() > 0 && !self.is_running()
    }

    /// How many attempts the storms of this arena make in all.
    pub fn of(&self) -> u64 {
        self.of.load(Acquire)
    }

    pub fn cancel(&self) {
        if let Some(storm) = &*self.last.lock() {
            storm.abort();
        }
    }

    /// Begins a storm of so many attempts; false if there is one already.
    pub fn begin(&self, attempts: usize, storm: impl Future<Output = ()> + Send + 'static) -> bool {
        let mut last = self.last.lock();
        if last.as_ref().is_some_and(|storm| !storm.is_finished()) {
            return false;
        }
        self.of.fetch_add(attempts as u64, Release);
        *last = Some(tokio::spawn(storm));
        true
    }
}
