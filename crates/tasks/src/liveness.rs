//! The tasks of this process that are dead at the moment.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Default)]
pub struct Liveness(Mutex<BTreeSet<&'static str>>);

impl Liveness {
    fn dead(&self) -> MutexGuard<'_, BTreeSet<&'static str>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn died(&self, name: &'static str) {
        self.dead().insert(name);
    }

    pub fn lives(&self, name: &'static str) {
        self.dead().remove(name);
    }

    /// `Err` names the dead tasks.
    pub fn check(&self) -> Result<(), String> {
        let dead = self.dead();
        if dead.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = dead.iter().copied().collect();
        Err(format!("not running: {}", names.join(", ")))
    }
}
