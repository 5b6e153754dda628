//! The buyers of a sale, as far as this process has seen.

use crate::domain::UserId;
use dashmap::DashSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No panic can leave these values half-changed: a poisoned lock is still good.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The users that have bought, as far as this process has seen.
///
/// Holds the random half of each v4 UUID. A user who collides with a buyer, or whose order was
/// cancelled, is sent to Redis: slower, never wrong.
#[derive(Default)]
pub struct KnownBuyers {
    users: DashSet<u64>,
    /// How many admissions of `epoch` the set covers without a gap.
    covered: Mutex<Covered>,
    loading: AtomicBool,
}

#[derive(Default)]
struct Covered {
    epoch: i64,
    admissions: i64,
    loaded_at: Option<Instant>,
    /// How often the set was cleared: an addition that began before covers nothing.
    forgotten: u64,
}

fn head(user: UserId) -> u64 {
    let [.., a, b, c, d, e, f, g, h] = *user.as_bytes();
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

impl KnownBuyers {
    /// Adds users. `None`: the set was cleared meanwhile, so they cover nothing.
    fn add(&self, users: impl Iterator<Item = UserId>) -> Option<MutexGuard<'_, Covered>> {
        let forgotten = lock(&self.covered).forgotten;
        for user in users {
            self.users.insert(head(user));
        }
        let covered = lock(&self.covered);
        (covered.forgotten == forgotten).then_some(covered)
    }

    /// Adds the users of a batch that brought the epoch's admissions to `admitted`.
    pub fn saw(&self, epoch: i64, admitted: i64, new: impl ExactSizeIterator<Item = UserId>) {
        let count = i64::try_from(new.len()).unwrap_or(i64::MAX);
        let Some(mut covered) = self.add(new) else {
            return;
        };
        // The first epoch begins without buyers; a later one with those that the rebuild found.
        if covered.epoch == 0 && epoch == 1 {
            covered.epoch = epoch;
            covered.admissions = 0;
        }
        if covered.epoch == epoch && covered.admissions + count == admitted {
            covered.admissions = admitted;
        }
    }

    /// Adds a complete list, read after `admitted` was seen in `epoch`.
    pub fn loaded(&self, epoch: i64, admitted: i64, users: impl Iterator<Item = UserId>) {
        let Some(mut covered) = self.add(users) else {
            return;
        };
        if covered.epoch != epoch || covered.admissions < admitted {
            covered.epoch = epoch;
            covered.admissions = admitted;
        }
        covered.loaded_at = Some(Instant::now());
    }

    /// Clears the set: until a list is loaded, everybody is sent to Redis.
    pub fn forget(&self) {
        if self.users.is_empty() {
            return;
        }
        let mut covered = lock(&self.covered);
        *covered = Covered { forgotten: covered.forgotten + 1, ..Covered::default() };
        self.users.clear();
        self.users.shrink_to_fit();
    }

    pub fn len(&self) -> usize {
        self.users.len()
    }

    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    fn cover(&self, epoch: i64, admitted: i64) -> bool {
        let covered = lock(&self.covered);
        (covered.epoch == epoch && covered.admissions >= admitted) || (epoch == 1 && admitted == 0)
    }

    /// Whether this user is certainly not among the first `admitted` buyers of the epoch.
    pub fn had_bought_nothing(&self, user: UserId, epoch: i64, admitted: i64) -> bool {
        self.cover(epoch, admitted) && !self.contains(user)
    }

    fn contains(&self, user: UserId) -> bool {
        self.users.contains(&head(user))
    }

    /// Claims the loading of the list, at most once a second; [`KnownBuyers::end_loading`] ends it.
    pub fn begin_loading(&self, epoch: i64, admitted: i64) -> bool {
        let recently =
            lock(&self.covered).loaded_at.is_some_and(|at| at.elapsed() < Duration::from_secs(1));
        !recently && !self.cover(epoch, admitted) && !self.loading.swap(true, Relaxed)
    }

    pub fn end_loading(&self) {
        self.loading.store(false, Relaxed);
    }
}
