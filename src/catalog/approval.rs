//! Whether Redis may sell, as the rebuild task last saw it, and the call for that task.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tokio::sync::Notify;

/// The approval of Redis. One per process.
#[derive(Default)]
pub struct Approval {
    is_approved: AtomicBool,
    is_doubtful: AtomicBool,
    evicts: AtomicBool,
    rebuild_wakeup: Notify,
}

impl Approval {
    /// Whether Redis answered at the last check, as a process that Postgres has approved.
    pub fn is_approved(&self) -> bool {
        self.is_approved.load(Relaxed) && !self.evicts()
    }

    /// Whether a server evicts, or one that answered at the last check is not approved.
    pub fn is_doubtful(&self) -> bool {
        self.is_doubtful.load(Relaxed) || self.evicts()
    }

    pub fn set(&self, is_approved: bool, is_doubtful: bool) {
        self.is_approved.store(is_approved, Relaxed);
        self.is_doubtful.store(is_doubtful, Relaxed);
    }

    /// Whether a server of Redis may evict buyers, who could buy twice: then nothing is sold.
    pub fn evicts(&self) -> bool {
        self.evicts.load(Relaxed)
    }

    pub fn set_evicts(&self, evicts: bool) {
        self.evicts.store(evicts, Relaxed);
    }

    /// Wakes the rebuild task: a rebuild may be needed.
    pub fn call_for_rebuild(&self) {
        self.rebuild_wakeup.notify_one();
    }

    pub fn rebuild_wakeup(&self) -> &Notify {
        &self.rebuild_wakeup
    }
}
