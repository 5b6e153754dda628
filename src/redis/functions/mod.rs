//! Typed wrappers, one file for each file of the library. Those of the waiting room and of the
//! limits stand in `access/`.
//!
//! Only a wrapper knows KEYS, ARGV and reply of its function.

mod admit;
mod fenced;
mod ids;
mod orders;
pub mod record;
mod sale;

pub use admit::{AdmitOptions, Admitted, Buyer, Verdict, admit};
pub use fenced::{Fenced, unexpected};
pub use ids::{Leased, floor_ids, lease_ids};
pub use orders::{Released, Settled, ack, ask_record, read_record, release};
pub use sale::{
    Activated, Ended, Fencing, Snapshot, VersionApplied, activate, adopt, apply_version, evict,
    fence, snapshot,
};

#[cfg(test)]
mod tests {
    use super::{admit::decode_verdicts, record::Held, *};
    use crate::domain::{IdempotencyKey, OrderId, Sale, SaleId, UserId};
    use crate::redis::stub::{StubConnection, any_reply, any_value};
    use crate::redis::{
        keys::{IdLane, Keys},
        library::LIBRARY,
    };
    use futures_util::FutureExt;
    use proptest::prelude::*;

    use time::OffsetDateTime;

    fn sale() -> Sale {
        Sale {
            id: SaleId::from_i64(1),
            title: String::new(),
            description: String::new(),
            image_url: String::new(),
            currency: "USD".to_owned(),
            price_cents: 1,
            original_price_cents: None,
            stock: 1,
            per_user_limit: 1,
            opens_at: OffsetDateTime::UNIX_EPOCH,
            closes_at: OffsetDateTime::UNIX_EPOCH,
            payment_timeout_secs: 1,
            paused: false,
            closed: false,
            epoch: 1,
            version: 1,
            access_policy: crate::domain::AccessPolicy::default(),
        }
    }

    /// Calls every wrapper on a Redis that answers with this.
    async fn ask_everything(reply: redis::Value) {
        let (keys, sale) = (Keys::new(""), sale());
        let order = (UserId::from_bytes([1; 16]), OrderId::from_i64(1));
        let options = AdmitOptions { high_water: 1, own_writer: true, readmitted: None };
        let buyer = Buyer { user: order.0, order_id: order.1, key: None };
        let redis = &mut StubConnection(reply.clone());
        for buyers in [&[][..], &[buyer], &[buyer; 3]] {
            if let Ok(Ok(admitted)) = admit(redis, &keys, sale.id, 1, options, buyers).await {
                assert_eq!(admitted.verdicts.len(), buyers.len());
            }
        }
        let _ = release(redis, &keys, sale.id, 1, &[order]).await;
        let _ = apply_version(redis, &keys, &sale).await;
        let _ = fence(redis, &keys, sale.id, 2).await;
        let _ = activate(redis, &keys, &sale, 1, 0, 0).await;
        let _ = evict(redis, &keys, sale.id, 1, time::Duration::HOUR).await;
        if let Some(known) = Snapshot::from_reply(reply) {
            let _ = adopt(redis, &keys, sale.id, &known).await;
        }
        let day = OffsetDateTime::UNIX_EPOCH.date();
        let lane = IdLane::all(false)[0];
        let _ = lease_ids(redis, &LIBRARY, &keys, lane, day, 1).await;
        let _ = floor_ids(redis, &keys, lane, day, 1).await;
    }

    proptest! {
        #[test]
        fn any_reply_to_any_function_is_read_or_an_error(reply in prop_oneof![any_value(),
            any_reply()]) {
            prop_assert!(ask_everything(reply).now_or_never().is_some());
        }

        #[test]
        fn any_record_is_read_without_a_panic(record: Vec<u8>) {
            let held: Vec<Held> = record::decode(&record).collect();
            prop_assert_eq!(held.len(), record.len() / 17);
        }
    }

    proptest! {
        #[test]
        fn any_reply_is_read_without_a_panic(letters: Vec<u8>, ids: Vec<u8>, slots: Vec<u8>,
            expected in 0usize..40) {
            if let Ok(verdicts) = decode_verdicts(&letters, &ids, &slots, expected) {
                prop_assert_eq!(verdicts.len(), expected);
            }
        }

        #[test]
        fn a_record_is_read_back_as_it_was_written(slot in 0u8..100, returned: bool,
            id in 1..=i64::MAX, key: i64) {
            let held = Held {
                slot,
                returned,
                order_id: OrderId::from_i64(id),
                key: (key != 0).then(|| IdempotencyKey::from_i64(key)),
            };
            prop_assert_eq!(record::decode(&held.encode()).collect::<Vec<_>>(), vec![held]);
        }
    }
}
