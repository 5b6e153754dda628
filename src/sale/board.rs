//! What this process knows of every sale without asking: the operator's row, what is left, and who
//! has bought.
//!
//! The board is a cache and never decides that somebody may buy. It only refuses, and only when
//! being out of date is safe:
//! - *not open*: when even the latest that Redis' clock can read is before `opens_at`;
//! - *ended*: when even the earliest that it can read is past `closes_at`;
//! - *sold out* and *paused*: as last heard. A returned unit or a resume is heard at once by the
//!   instance that does it, by a published message elsewhere, and by the next poll at the latest (0.2 s
//!   for units, 1 s for what an operator does, which goes for a later end as well).
//!
//! And only to people of whom it believes that they have not bought: a second attempt should be told
//! `already_ordered`. [`KnownBuyers`] therefore counts which admissions it has seen; while some are
//! missing, everybody is sent to Redis. What another instance sold a moment ago it cannot know, so a
//! request with an `Idempotency-Key`, which must get its first answer, always asks Redis (but before
//! the opening, when there can be no first answer).
//!
//! On a crash nothing is lost: a new process starts empty and asks.

use super::gate::Waiting;
use crate::{
    domain::{Admission, IdempotencyKey, Sale, SaleId, SaleState, SaleView, UserId},
    redis::functions::Snapshot,
};
use arc_swap::ArcSwap;
use dashmap::{DashMap, DashSet};
use std::{
    hash::{BuildHasherDefault, Hasher},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicI64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use time::OffsetDateTime;
use tokio::sync::{mpsc, watch};

/// A sale that was used this recently is polled often.
const WARM: Duration = Duration::from_secs(5);

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing under these locks can leave the value half-changed, so a poisoned one is still good.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Redis' clock, estimated from its last reading and this machine's monotonic clock. A step of this
/// machine's wall clock does not touch it.
pub struct RedisClock {
    reading: ArcSwap<Reading>,
}

struct Reading {
    ms: i64,
    /// The reading was taken somewhere between these two.
    asked: Instant,
    answered: Instant,
}

impl Reading {
    fn latest_ms(&self) -> i64 {
        self.ms
            .saturating_add(elapsed_ms(self.asked))
            .saturating_add(1)
    }
}

impl RedisClock {
    fn new() -> Self {
        // Until Redis is asked, this machine's clock is the best guess.
        let now = Instant::now();
        let ms = i64::try_from(OffsetDateTime::now_utc().unix_timestamp_nanos() / 1_000_000)
            .unwrap_or(0);
        Self {
            reading: ArcSwap::from_pointee(Reading {
                ms,
                asked: now,
                answered: now,
            }),
        }
    }

    /// Takes in that Redis' clock read `ms` between `asked` and now.
    ///
    /// Of two readings that agree the later estimate is kept, so that an answer that lay around does
    /// not turn time back; one that disagrees means that Redis' clock was set, and counts.
    pub fn read(&self, ms: i64, asked: Instant) {
        let new = Reading {
            ms,
            asked,
            answered: Instant::now(),
        };
        let known = self.earliest_ms();
        let was_set_back = new.latest_ms() < known;
        if ms >= known || was_set_back {
            self.reading.store(Arc::new(new));
        }
    }

    /// The latest that Redis' clock can show now, Unix ms.
    fn latest_ms(&self) -> i64 {
        self.reading.load().latest_ms()
    }

    /// The earliest that Redis' clock can show now, Unix ms.
    fn earliest_ms(&self) -> i64 {
        let reading = self.reading.load();
        reading.ms.saturating_add(elapsed_ms(reading.answered))
    }

    pub fn now(&self) -> OffsetDateTime {
        from_ms(self.earliest_ms())
    }
}

fn elapsed_ms(since: Instant) -> i64 {
    i64::try_from(since.elapsed().as_millis()).unwrap_or(i64::MAX / 2)
}

/// A time from Redis, Unix ms.
pub fn from_ms(ms: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000)
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// The part of a sale that changes while it sells, as its event stream carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SalePulse {
    pub remaining: i64,
    pub state: SaleState,
    pub server_time: OffsetDateTime,
}

/// Which users have bought, as far as this process has seen.
///
/// Holds 8 bytes of each user id (the random half of a v4 UUID). A stranger who collides, and a user
/// whose order was cancelled since, are sent to Redis: slower, never wrong. [`KnownBuyers::forget`] frees
/// them once the sale has long been over, and then everybody is.
pub struct KnownBuyers {
    users: DashSet<u64, BuildHasherDefault<Mixed>>,
    /// How many admissions of `epoch` the set covers, counted from the first without a gap.
    covered: Mutex<Covered>,
    loading: AtomicBool,
}

#[derive(Clone, Copy)]
struct Covered {
    epoch: i64,
    admissions: i64,
    loaded_at: Option<Instant>,
    /// How often the users were forgotten: who began to add some before that has added to a set that
    /// is gone, and covers nothing.
    forgotten: u64,
}

fn head(user: UserId) -> u64 {
    let [.., a, b, c, d, e, f, g, h] = *user.as_bytes();
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// A hash of what [`head`] leaves: those bits are random already, and the ids were made here and signed, so that
/// nobody can choose them to collide. (The usual hasher defends against that, at twenty times the cost.)
#[derive(Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn write_u64(&mut self, head: u64) {
        // Ids that are not random, if an operator issues such tokens, should still spread.
        let product = u128::from(head) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0.rotate_left(8) ^ u64::from(byte));
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl KnownBuyers {
    fn new() -> Self {
        Self {
            users: DashSet::default(),
            covered: Mutex::new(Covered {
                epoch: 0,
                admissions: 0,
                loaded_at: None,
                forgotten: 0,
            }),
            loading: AtomicBool::new(false),
        }
    }

    /// Takes in a batch of `new` users that brought the epoch's admissions to `admitted`.
    pub fn saw(&self, epoch: i64, admitted: i64, new: impl ExactSizeIterator<Item = UserId>) {
        let count = i64::try_from(new.len()).unwrap_or(i64::MAX);
        let forgotten = lock(&self.covered).forgotten;
        for user in new {
            self.users.insert(head(user));
        }
        let mut covered = lock(&self.covered);
        if covered.forgotten != forgotten {
            return;
        }
        // The first epoch begins with nobody; a later one with whom the rebuild found.
        if covered.epoch == 0 && epoch == 1 {
            covered.epoch = epoch;
            covered.admissions = 0;
        }
        if covered.epoch == epoch && covered.admissions + count == admitted {
            covered.admissions = admitted;
        }
    }

    /// Takes in a complete list, read after `admitted` had been seen in `epoch`.
    pub fn loaded(&self, epoch: i64, admitted: i64, users: impl Iterator<Item = UserId>) {
        let forgotten = lock(&self.covered).forgotten;
        for user in users {
            self.users.insert(head(user));
        }
        let mut covered = lock(&self.covered);
        if covered.forgotten != forgotten {
            return;
        }
        if covered.epoch != epoch || covered.admissions < admitted {
            covered.epoch = epoch;
            covered.admissions = admitted;
        }
        covered.loaded_at = Some(Instant::now());
    }

    /// Frees what is known: from now on everybody is sent to Redis, until a list is loaded.
    pub fn forget(&self) {
        if self.users.is_empty() {
            return;
        }
        let mut covered = lock(&self.covered);
        covered.epoch = 0;
        covered.admissions = 0;
        covered.loaded_at = None;
        covered.forgotten += 1;
        self.users.clear();
        self.users.shrink_to_fit();
    }

    /// How many users it remembers.
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

    /// Whether this user was not among the first `admitted` buyers of the epoch, for certain.
    pub fn had_bought_nothing(&self, user: UserId, epoch: i64, admitted: i64) -> bool {
        self.cover(epoch, admitted) && !self.contains(user)
    }

    fn contains(&self, user: UserId) -> bool {
        self.users.contains(&head(user))
    }

    /// Claims the right to load the list, at most once a second. Give it back with
    /// [`KnownBuyers::end_loading`].
    pub fn begin_loading(&self, epoch: i64, admitted: i64) -> bool {
        let recently = lock(&self.covered)
            .loaded_at
            .is_some_and(|at| at.elapsed() < Duration::from_secs(1));
        !recently && !self.cover(epoch, admitted) && !self.loading.swap(true, Relaxed)
    }

    pub fn end_loading(&self) {
        self.loading.store(false, Relaxed);
    }
}

/// One sale as this process knows it.
pub struct Listing {
    pub id: SaleId,
    sale: ArcSwap<Sale>,
    snapshot: Mutex<Option<Snapshot>>,
    /// Copies of the snapshot for the purchase path, which must not wait for a lock.
    remaining: AtomicI64,
    epoch: AtomicI64,
    admitted: AtomicI64,
    present: AtomicBool,
    pub buyers: KnownBuyers,
    /// Where its buyers wait.
    pub(super) queue: OnceLock<mpsc::Sender<Waiting>>,
    /// The epoch whose Redis state was found to be damaged; 0 for none.
    suspect_epoch: AtomicI64,
    /// Whether Redis answered when last asked.
    was_read: AtomicBool,
    /// Milliseconds since `born` when a client last asked for it.
    used: AtomicI64,
    born: Instant,
    pulse: watch::Sender<SalePulse>,
}

impl Listing {
    fn new(sale: Sale) -> Self {
        let pulse = SalePulse {
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
            buyers: KnownBuyers::new(),
            queue: OnceLock::new(),
            sale: ArcSwap::from_pointee(sale),
            suspect_epoch: AtomicI64::new(0),
            was_read: AtomicBool::new(false),
            used: AtomicI64::new(i64::MIN),
            born: Instant::now(),
            pulse: watch::channel(pulse).0,
        }
    }

    pub fn sale(&self) -> Arc<Sale> {
        self.sale.load_full()
    }

    /// Whether a purchase has to show more than a token.
    pub fn has_door(&self) -> bool {
        self.sale.load().door.is_shut()
    }

    /// Takes in the operator's row unless a newer one is known.
    pub fn learn(&self, sale: Sale) {
        self.sale.rcu(|known| {
            let newer = (sale.epoch, sale.version) >= (known.epoch, known.version);
            if newer {
                Arc::new(sale.clone())
            } else {
                known.clone()
            }
        });
    }

    /// Takes in a snapshot of its Redis state; `None`: there is none. Older ones are ignored, except
    /// from another process, which may have lost changes.
    pub fn tell(&self, new: Option<Snapshot>) {
        let mut known = lock(&self.snapshot);
        if let (Some(new), Some(known)) = (&new, &*known)
            && new.process == known.process
            && (new.epoch, new.change) < (known.epoch, known.change)
        {
            return;
        }
        self.store(&mut known, new);
    }

    /// Takes in what an admission or a release saw, which is less than a full snapshot.
    pub fn tell_remaining(&self, epoch: i64, change: i64, remaining: i64, admitted: Option<i64>) {
        let mut known = lock(&self.snapshot);
        let Some(before) = known.take_if(|known| known.epoch == epoch && known.change <= change)
        else {
            return;
        };
        let new = Snapshot {
            change,
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

    /// Notes that Redis holds something for the live epoch that the program never writes. The rebuild
    /// loop looks at this; a new epoch clears it.
    pub fn suspect(&self) {
        self.suspect_epoch.store(self.sale.load().epoch, Relaxed);
    }

    pub fn is_suspect(&self) -> bool {
        self.suspect_epoch.load(Relaxed) == self.sale.load().epoch
    }

    /// Notes whether the last look at Redis got an answer.
    pub fn set_read(&self, reached: bool) {
        self.was_read.store(reached, Relaxed);
    }

    /// Whether what is known of its Redis state is what the last look found.
    pub fn was_read(&self) -> bool {
        self.was_read.load(Relaxed)
    }

    /// What Redis held of it when last looked.
    pub fn snapshot(&self) -> Option<Snapshot> {
        lock(&self.snapshot).clone()
    }

    /// Whether Redis had this sale when last looked.
    pub fn is_present(&self) -> bool {
        self.present.load(Relaxed)
    }

    /// Whether Redis may sell it, as last heard: in the epoch of Postgres, and in the process that has it.
    pub fn is_sellable(&self) -> bool {
        let known = lock(&self.snapshot);
        known.as_ref().is_some_and(|known| {
            known.epoch == self.sale.load().epoch && known.is_approved() && !self.is_suspect()
        })
    }

    /// Whether nothing is left, as last heard.
    pub fn seems_sold_out(&self) -> bool {
        self.remaining.load(Relaxed) <= 0
    }

    /// Whether this user is known not to have bought.
    pub fn has_not_bought(&self, user: UserId) -> bool {
        let (epoch, admitted) = (self.epoch.load(Relaxed), self.admitted.load(Relaxed));
        self.buyers.had_bought_nothing(user, epoch, admitted)
    }

    pub fn view(&self, now: OffsetDateTime) -> SaleView {
        let sale = self.sale();
        let remaining = self.remaining.load(Relaxed).max(0);
        SaleView {
            state: sale.state(now, remaining),
            sale,
            remaining,
            server_time: now,
        }
    }

    /// Notes that a client is interested, so that it is polled often for a while.
    pub fn touch(&self) {
        self.used.store(elapsed_ms(self.born), Relaxed);
    }

    pub fn is_warm(&self) -> bool {
        let idle = elapsed_ms(self.born).saturating_sub(self.used.load(Relaxed));
        idle < i64::try_from(WARM.as_millis()).unwrap_or(i64::MAX)
            || self.pulse.receiver_count() > 0
    }

    pub fn subscribe(&self, now: OffsetDateTime) -> watch::Receiver<SalePulse> {
        self.pulsate(now);
        let mut receiver = self.pulse.subscribe();
        receiver.mark_changed();
        receiver
    }

    /// Tells subscribers if something changed.
    pub fn pulsate(&self, now: OffsetDateTime) {
        let view = self.view(now);
        self.pulse.send_if_modified(|pulse| {
            let changed = (pulse.remaining, pulse.state) != (view.remaining, view.state);
            let first = pulse.server_time == OffsetDateTime::UNIX_EPOCH;
            *pulse = SalePulse {
                remaining: view.remaining,
                state: view.state,
                server_time: view.server_time,
            };
            changed || first
        });
    }

    /// Whether its window closed so long ago that a rebuild leaves it out.
    pub fn is_retired(&self, now: OffsetDateTime) -> bool {
        now > self.sale.load().closes_at + RETIREMENT
    }

    /// A refusal that needs nobody's word but this process', if one can be given safely. See the
    /// module's text.
    pub fn refuse_locally(
        &self,
        clock: &RedisClock,
        user: UserId,
        key: Option<IdempotencyKey>,
    ) -> Option<Admission> {
        let sale = self.sale.load();
        if !sale.closed && !sale.paused && clock.latest_ms() < unix_ms(sale.opens_at) {
            // Nobody can have bought yet.
            return Some(Admission::NotOpen {
                opens_at: sale.opens_at,
            });
        }
        if key.is_some() && !self.is_retired(clock.now()) {
            return None;
        }
        let refusal = if sale.closed || clock.earliest_ms() >= unix_ms(sale.closes_at) {
            Admission::Ended
        } else if sale.paused {
            Admission::Paused
        } else if self.seems_sold_out() {
            Admission::SoldOut
        } else {
            return None;
        };
        self.touch();
        if !self.is_present() {
            // Long retired, or Redis is being rebuilt, in which case only an ended sale is certain.
            return (refusal == Admission::Ended && self.is_retired(clock.now()))
                .then_some(refusal);
        }
        self.has_not_bought(user).then_some(refusal)
    }
}

/// How long after its end a sale stays in Redis, for the last payments, returns and retries.
pub const RETIREMENT: time::Duration = time::Duration::hours(24);

fn unix_ms(time: OffsetDateTime) -> i64 {
    i64::try_from(time.unix_timestamp_nanos() / 1_000_000).unwrap_or(i64::MAX)
}

/// All sales that this process knows.
pub struct Board {
    pub clock: RedisClock,
    listings: DashMap<SaleId, Arc<Listing>>,
    /// Whether any sale has, or had, a [`Door`](crate::domain::Door) that is shut.
    doors: AtomicBool,
}

impl Board {
    pub fn new() -> Self {
        Self {
            clock: RedisClock::new(),
            listings: DashMap::new(),
            doors: AtomicBool::new(false),
        }
    }

    /// Whether a purchase may have to show more than a token. Without such a sale nobody looks for it.
    pub fn has_doors(&self) -> bool {
        self.doors.load(Relaxed)
    }

    pub fn get(&self, id: SaleId) -> Option<Arc<Listing>> {
        self.listings.get(&id).map(|listing| listing.clone())
    }

    pub fn listings(&self) -> Vec<Arc<Listing>> {
        self.listings
            .iter()
            .map(|entry| entry.value().clone())
            .collect()
    }

    /// Takes in a row from Postgres and returns its listing.
    pub fn learn(&self, sale: Sale) -> Arc<Listing> {
        if sale.door.is_shut() {
            self.doors.store(true, Relaxed);
        }
        let listing = self
            .listings
            .entry(sale.id)
            .or_insert_with(|| Arc::new(Listing::new(sale.clone())))
            .clone();
        listing.learn(sale);
        listing
    }
}

impl Default for Board {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use time::macros::datetime;

    fn sale() -> Sale {
        Sale {
            id: SaleId::from_i64(1),
            title: "phone".into(),
            description: String::new(),
            image_url: String::new(),
            currency: "USD".into(),
            price_cents: 1,
            original_price_cents: None,
            stock: 10,
            per_user_limit: 1,
            opens_at: datetime!(2020-01-01 00:00 UTC),
            closes_at: datetime!(2090-01-01 00:00 UTC),
            payment_timeout_secs: 60,
            paused: false,
            closed: false,
            epoch: 1,
            version: 1,
            door: crate::domain::Door::default(),
        }
    }

    fn snapshot(remaining: i64, admitted: i64, change: i64) -> Option<Snapshot> {
        Some(Snapshot {
            epoch: 1,
            version: 1,
            stock: 10,
            remaining,
            admitted,
            pending: 0,
            change,
            approved: "process".into(),
            process: "process".into(),
        })
    }

    fn refusal(listing: &Listing, clock: &RedisClock, user: UserId) -> Option<Admission> {
        listing.refuse_locally(clock, user, None)
    }

    #[test]
    fn an_open_sale_is_never_refused_locally() {
        let (listing, clock) = (Listing::new(sale()), RedisClock::new());
        listing.tell(snapshot(1, 9, 9));
        assert_eq!(refusal(&listing, &clock, UserId::random()), None);
    }

    #[test]
    fn sold_out_is_only_said_to_strangers_once_every_buyer_is_known() {
        let (listing, clock) = (Listing::new(sale()), RedisClock::new());
        let winners: Vec<UserId> = (0..10).map(|_| UserId::random()).collect();
        listing.tell(snapshot(0, 10, 10));
        assert_eq!(
            refusal(&listing, &clock, UserId::random()),
            None,
            "ten buyers are unknown"
        );
        listing.buyers.saw(1, 10, winners.iter().copied());
        assert_eq!(
            refusal(&listing, &clock, UserId::random()),
            Some(Admission::SoldOut)
        );
        assert_eq!(
            refusal(&listing, &clock, winners[3]),
            None,
            "a winner must hear of their order"
        );
        let key = Some(IdempotencyKey::from_stored(1));
        assert_eq!(
            listing.refuse_locally(&clock, UserId::random(), key),
            None,
            "another instance may have sold to this key a moment ago"
        );
    }

    #[test]
    fn a_gap_in_the_admissions_seen_is_not_covered_until_the_list_is_loaded() {
        let (listing, clock) = (Listing::new(sale()), RedisClock::new());
        let (theirs, ours) = (UserId::random(), UserId::random());
        listing.tell(snapshot(0, 2, 2));
        listing.buyers.saw(1, 2, [ours].into_iter());
        assert_eq!(refusal(&listing, &clock, theirs), None);
        listing.buyers.loaded(1, 2, [ours, theirs].into_iter());
        assert_eq!(refusal(&listing, &clock, theirs), None);
        assert_eq!(
            refusal(&listing, &clock, UserId::random()),
            Some(Admission::SoldOut)
        );
    }

    #[test]
    fn forgotten_buyers_are_strangers_to_nobody() {
        let (listing, clock) = (Listing::new(sale()), RedisClock::new());
        let (one, other) = (UserId::random(), UserId::random());
        listing.tell(snapshot(0, 2, 2));
        listing.buyers.saw(1, 1, [one].into_iter());
        listing.buyers.saw(1, 2, [other].into_iter());
        assert!(refusal(&listing, &clock, UserId::random()).is_some());
        listing.buyers.forget();
        assert!(listing.buyers.is_empty());
        for user in [one, other, UserId::random()] {
            assert_eq!(refusal(&listing, &clock, user), None, "Redis knows");
        }
        // What is seen later does not make up for what is forgotten.
        listing.tell(snapshot(0, 3, 3));
        listing.buyers.saw(1, 3, [UserId::random()].into_iter());
        assert_eq!(refusal(&listing, &clock, one), None);
    }

    #[test]
    fn who_adds_users_while_they_are_forgotten_covers_nothing() {
        let (listing, clock) = (Listing::new(sale()), RedisClock::new());
        let (ours, theirs) = (UserId::random(), UserId::random());
        listing.tell(snapshot(0, 2, 2));
        let users = [ours, theirs].into_iter().inspect(|user| {
            if *user == theirs {
                listing.buyers.forget(); // the first one is in the set by now
            }
        });
        listing.buyers.loaded(1, 2, users);
        assert_eq!(refusal(&listing, &clock, ours), None);
    }

    #[test]
    fn an_older_reading_does_not_undo_a_newer_one() {
        let listing = Listing::new(sale());
        listing.tell(snapshot(0, 10, 10));
        let told = |change, remaining| listing.tell_remaining(1, change, remaining, None);
        told(11, 1); // a unit came back
        told(10, 0); // the answer of the batch before, arriving late
        assert_eq!(listing.snapshot().map(|tally| tally.remaining), Some(1));
    }

    proptest! {
        #[test]
        fn any_clock_can_be_read(readings in prop::collection::vec(any::<i64>(), 1..5)) {
            let clock = RedisClock::new();
            for ms in readings {
                clock.read(ms, Instant::now());
                prop_assert!(clock.earliest_ms() <= clock.latest_ms());
                clock.now();
            }
        }
    }
}
