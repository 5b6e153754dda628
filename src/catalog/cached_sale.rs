//! A cached sale: the operator's row, a snapshot of its Redis state, its known buyers.

use super::clock::elapsed_ms;
use super::known_buyers::{KnownBuyers, lock};
use crate::domain::{Sale, SaleId, SaleState, SaleView, UserId};
use crate::redis::functions::Snapshot;
use arc_swap::ArcSwap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use time::OffsetDateTime;
use tokio::sync::watch;

/// A sale that a client used this recently is polled often.
const WARM: Duration = Duration::from_secs(5);

/// How long an ended sale stays in Redis, for the last payments, returns and retries.
pub const EVICT_AFTER: time::Duration = time::Duration::hours(24);

/// The part of a sale that changes while it sells, for event streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaleUpdate {
    pub remaining: i64,
    pub state: SaleState,
    pub server_time: OffsetDateTime,
}

/// A cached sale.
pub struct CachedSale {
    pub id: SaleId,
    sale: ArcSwap<Sale>,
    snapshot: Mutex<Option<Snapshot>>,
    /// Copies of the snapshot: the purchase path must not wait for a lock.
    remaining: AtomicI64,
    epoch: AtomicI64,
    admitted: AtomicI64,
    present: AtomicBool,
    pub buyers: KnownBuyers,
    /// The epoch whose Redis state is damaged; 0 for none.
    suspect_epoch: AtomicI64,
    /// Whether the last read of Redis got an answer.
    was_read: AtomicBool,
    /// Milliseconds since `born` when a client last asked for it.
    used: AtomicI64,
    born: Instant,
    updates: watch::Sender<SaleUpdate>,
}

impl CachedSale {
    pub fn new(sale: Sale) -> Self {
        let updates = SaleUpdate {
            remaining: i64::from(sale.stock),
            state: SaleState::Scheduled,
            server_time: OffsetDateTime::UNIX_EPOCH,
        };
        Self {
            id: sale.id,
            snapshot: Mutex::default(),
            remaining: AtomicI64::new(i64::from(sale.stock)),
            epoch: AtomicI64::new(0),
            admitted: AtomicI64::new(0),
            present: AtomicBool::new(false),
            buyers: KnownBuyers::default(),
            sale: ArcSwap::from_pointee(sale),
            suspect_epoch: AtomicI64::new(0),
            was_read: AtomicBool::new(false),
            used: AtomicI64::new(i64::MIN),
            born: Instant::now(),
            updates: watch::channel(updates).0,
        }
    }

    pub fn sale(&self) -> Arc<Sale> {
        self.sale.load_full()
    }

    /// Whether a purchase needs credentials besides a user token.
    pub fn has_access_policy(&self) -> bool {
        self.sale.load().access_policy.is_restricted()
    }

    /// Caches the operator's row, unless a newer one is known.
    pub fn learn(&self, sale: Sale) {
        self.sale.rcu(|known| {
            let newer = (sale.epoch, sale.version) >= (known.epoch, known.version);
            if newer { Arc::new(sale.clone()) } else { known.clone() }
        });
    }

    /// Caches a snapshot of the Redis state; `None`: there is none. Older snapshots are ignored,
    /// except those of another process, which may have lost changes.
    pub fn tell(&self, new: Option<Snapshot>) {
        let mut known = lock(&self.snapshot);
        if let (Some(new), Some(known)) = (&new, &*known)
            && new.process == known.process
            && (new.epoch, new.revision) < (known.epoch, known.revision)
        {
            return;
        }
        self.store(&mut known, new);
    }

    /// Caches the result of an admission or a release, which is less than a full snapshot.
    pub fn tell_remaining(&self, epoch: i64, revision: i64, remaining: i64, admitted: Option<i64>) {
        let mut known = lock(&self.snapshot);
        let Some(before) =
            known.take_if(|known| known.epoch == epoch && known.revision <= revision)
        else {
            return;
        };
        let new = Snapshot {
            revision,
            remaining,
            admitted: admitted.unwrap_or(before.admitted),
            ..before
        };
        self.store(&mut known, Some(new));
    }

    fn store(&self, known: &mut Option<Snapshot>, new: Option<Snapshot>) {
        self.present.store(new.is_some(), Relaxed);
        if let Some(new) = &new {
            self.remaining.store(new.remaining, Relaxed);
            self.epoch.store(new.epoch, Relaxed);
            self.admitted.store(new.admitted, Relaxed);
        }
        *known = new;
    }

    /// Marks the Redis state of the live epoch as damaged, for the rebuild task.
    pub fn suspect(&self) {
        self.suspect_epoch.store(self.sale.load().epoch, Relaxed);
    }

    pub fn is_suspect(&self) -> bool {
        self.suspect_epoch.load(Relaxed) == self.sale.load().epoch
    }

    pub fn set_read(&self, reached: bool) {
        self.was_read.store(reached, Relaxed);
    }

    /// Whether the last read of Redis got an answer.
    pub fn was_read(&self) -> bool {
        self.was_read.load(Relaxed)
    }

    /// The last snapshot of Redis.
    pub fn snapshot(&self) -> Option<Snapshot> {
        lock(&self.snapshot).clone()
    }

    /// Whether Redis had the sale at the last read.
    pub fn is_present(&self) -> bool {
        self.present.load(Relaxed)
    }

    /// Whether Redis may sell it, by the last snapshot: approved, and in the epoch of Postgres.
    pub fn is_sellable(&self) -> bool {
        let known = lock(&self.snapshot);
        known.as_ref().is_some_and(|known| {
            known.epoch == self.sale.load().epoch && known.is_approved() && !self.is_suspect()
        })
    }

    /// Whether nothing is left, by the last snapshot.
    pub fn seems_sold_out(&self) -> bool {
        self.remaining.load(Relaxed) <= 0
    }

    /// Whether this user certainly has not bought.
    pub fn has_not_bought(&self, user: UserId) -> bool {
        let (epoch, admitted) = (self.epoch.load(Relaxed), self.admitted.load(Relaxed));
        self.buyers.had_bought_nothing(user, epoch, admitted)
    }

    pub fn view(&self, now: OffsetDateTime) -> SaleView {
        let sale = self.sale();
        let remaining = self.remaining.load(Relaxed).max(0);
        SaleView { state: sale.state(now, remaining), sale, remaining, server_time: now }
    }

    /// Notes a client's interest: the sale is polled often for a while.
    pub fn touch(&self) {
        self.used.store(elapsed_ms(self.born), Relaxed);
    }

    pub fn is_warm(&self) -> bool {
        let idle = elapsed_ms(self.born).saturating_sub(self.used.load(Relaxed));
        idle < i64::try_from(WARM.as_millis()).unwrap_or(i64::MAX)
            || self.updates.receiver_count() > 0
    }

    pub fn subscribe(&self, now: OffsetDateTime) -> watch::Receiver<SaleUpdate> {
        self.notify_subscribers(now);
        let mut receiver = self.updates.subscribe();
        receiver.mark_changed();
        receiver
    }

    pub fn notify_subscribers(&self, now: OffsetDateTime) {
        self.updates.send_if_modified(|updates| {
            // Read in here: of two who tell, the later one must not tell an older row or number.
            let view = self.view(now);
            let changed = (updates.remaining, updates.state) != (view.remaining, view.state);
            let first = updates.server_time == OffsetDateTime::UNIX_EPOCH;
            *updates = SaleUpdate {
                remaining: view.remaining,
                state: view.state,
                server_time: view.server_time,
            };
            changed || first
        });
    }

    /// Whether its end is so long ago that Redis need not hold it.
    pub fn is_evictable(&self, now: OffsetDateTime) -> bool {
        now > self.sale.load().closes_at + EVICT_AFTER
    }
}
