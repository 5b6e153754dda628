//! Refusals without a round trip.
//!
//! The cache only refuses, and only where stale data are safe:
//! - *not open*: the latest possible time of Redis' clock is before `opens_at`;
//! - *ended*: its earliest possible time is past `closes_at`;
//! - *sold out* and *paused*: as last read. The instance that returns a unit or resumes a sale
//!   knows at once, the others by a published message, or by the next poll (0.2 s for units, 1 s
//!   for an operator's changes, a later end included).
//!
//! Only users who have certainly not bought are refused, because a second attempt must get
//! `already_ordered`. `KnownBuyers` counts the admissions that it has seen; while some are missing,
//! Redis decides. So it does for requests with an `Idempotency-Key`, which must get their first
//! answer (except before the opening, when there can be none).

use crate::catalog::cached_sale::CachedSale;
use crate::catalog::clock::RedisClock;
use crate::domain::{IdempotencyKey, PurchaseResult, UserId, unix_ms};

/// A refusal by the cache alone, if one is certain.
pub fn from_cache(
    cached: &CachedSale,
    clock: &RedisClock,
    user: UserId,
    key: Option<IdempotencyKey>,
) -> Option<PurchaseResult> {
    let sale = cached.sale();
    if !sale.closed && !sale.paused && clock.latest_ms() < unix_ms(sale.opens_at) {
        // Nobody can have bought yet.
        return Some(PurchaseResult::NotOpen { opens_at: sale.opens_at });
    }
    if key.is_some() && !cached.is_evictable(clock.now()) {
        return None;
    }
    let refusal = if sale.closed || clock.earliest_ms() >= unix_ms(sale.closes_at) {
        PurchaseResult::Ended
    } else if sale.paused {
        PurchaseResult::Paused
    } else if cached.seems_sold_out() {
        PurchaseResult::SoldOut
    } else {
        return None;
    };
    cached.touch();
    if !cached.is_present() {
        // Evicted, or Redis is being rebuilt: then only an ended sale is certain.
        return (refusal == PurchaseResult::Ended && cached.is_evictable(clock.now()))
            .then_some(refusal);
    }
    cached.has_not_bought(user).then_some(refusal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Sale, SaleId};
    use crate::redis::functions::Snapshot;
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
            access_policy: crate::domain::AccessPolicy::default(),
        }
    }

    fn snapshot(remaining: i64, admitted: i64, revision: i64) -> Option<Snapshot> {
        Some(Snapshot {
            epoch: 1,
            version: 1,
            stock: 10,
            remaining,
            admitted,
            pending: 0,
            revision,
            approved: "process".into(),
            process: "process".into(),
        })
    }

    fn refusal(cached: &CachedSale, clock: &RedisClock, user: UserId) -> Option<PurchaseResult> {
        from_cache(cached, clock, user, None)
    }

    #[test]
    fn an_open_sale_is_never_refused_locally() {
        let (cached, clock) = (CachedSale::new(sale()), RedisClock::default());
        cached.tell(snapshot(1, 9, 9));
        assert_eq!(refusal(&cached, &clock, UserId::random()), None);
    }

    #[test]
    fn sold_out_is_only_said_once_every_buyer_is_known() {
        let (cached, clock) = (CachedSale::new(sale()), RedisClock::default());
        let winners: Vec<UserId> = (0..10).map(|_| UserId::random()).collect();
        cached.tell(snapshot(0, 10, 10));
        assert_eq!(refusal(&cached, &clock, UserId::random()), None, "ten buyers are unknown");
        cached.buyers.saw(1, 10, winners.iter().copied());
        assert_eq!(refusal(&cached, &clock, UserId::random()), Some(PurchaseResult::SoldOut));
        assert_eq!(refusal(&cached, &clock, winners[3]), None, "a winner must hear of their order");
        let key = Some(IdempotencyKey::from_i64(1));
        assert_eq!(
            from_cache(&cached, &clock, UserId::random(), key),
            None,
            "another instance may have sold to this key a moment ago"
        );
    }

    #[test]
    fn a_gap_in_the_admissions_seen_is_not_covered_until_the_list_is_loaded() {
        let (cached, clock) = (CachedSale::new(sale()), RedisClock::default());
        let (theirs, ours) = (UserId::random(), UserId::random());
        cached.tell(snapshot(0, 2, 2));
        cached.buyers.saw(1, 2, [ours].into_iter());
        assert_eq!(refusal(&cached, &clock, theirs), None);
        cached.buyers.loaded(1, 2, [ours, theirs].into_iter());
        assert_eq!(refusal(&cached, &clock, theirs), None);
        assert_eq!(refusal(&cached, &clock, UserId::random()), Some(PurchaseResult::SoldOut));
    }

    #[test]
    fn nobody_is_refused_by_forgotten_buyers() {
        let (cached, clock) = (CachedSale::new(sale()), RedisClock::default());
        let (one, other) = (UserId::random(), UserId::random());
        cached.tell(snapshot(0, 2, 2));
        cached.buyers.saw(1, 1, [one].into_iter());
        cached.buyers.saw(1, 2, [other].into_iter());
        assert!(refusal(&cached, &clock, UserId::random()).is_some());
        cached.buyers.forget();
        assert!(cached.buyers.is_empty());
        for user in [one, other, UserId::random()] {
            assert_eq!(refusal(&cached, &clock, user), None, "Redis knows");
        }
        // What is seen later does not make up for what is forgotten.
        cached.tell(snapshot(0, 3, 3));
        cached.buyers.saw(1, 3, [UserId::random()].into_iter());
        assert_eq!(refusal(&cached, &clock, one), None);
    }

    #[test]
    fn users_added_while_they_are_forgotten_cover_nothing() {
        let (cached, clock) = (CachedSale::new(sale()), RedisClock::default());
        let (ours, theirs) = (UserId::random(), UserId::random());
        cached.tell(snapshot(0, 2, 2));
        let users = [ours, theirs].into_iter().inspect(|user| {
            if *user == theirs {
                cached.buyers.forget(); // the first one is in the set by now
            }
        });
        cached.buyers.loaded(1, 2, users);
        assert_eq!(refusal(&cached, &clock, ours), None);
    }

    #[test]
    fn an_older_snapshot_does_not_undo_a_newer_one() {
        let cached = CachedSale::new(sale());
        cached.tell(snapshot(0, 10, 10));
        let told = |revision, remaining| cached.tell_remaining(1, revision, remaining, None);
        told(11, 1); // a unit came back
        told(10, 0); // the answer of the batch before, arriving late
        assert_eq!(cached.snapshot().map(|known| known.remaining), Some(1));
    }
}
