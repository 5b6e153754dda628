//! Which two purchases of a race met at the dangerous point: what "Why?" shows of it.

use crate::tally::millis;
use serde::Serialize;
use std::{
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};
use utoipa::ToSchema;

/// How many meetings are remembered. The first ones are the clearest.
const MOST_MEETINGS: usize = 64;

tokio::task_local! {
    /// The purchase that this task makes.
    pub static PURCHASE: Purchase;
}

/// Two purchases that stood at one place at the same moment. Both were sold a unit.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Collision {
    place: &'static str,
    /// Milliseconds since the first purchase of the arena, as all times here.
    at_ms: f64,
    buyers: [String; 2],
    a: Purchase,
    b: Purchase,
}

/// A purchase, under way until it has an order.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = CollisionSide)]
pub struct Purchase {
    #[serde(skip)]
    number: u64,
    buyer: String,
    node: u32,
    began_ms: f64,
    /// When the buyer was told.
    sold_ms: f64,
    order_id: String,
}

/// The meetings of an arena in this process.
#[derive(Default)]
pub struct Collisions {
    since: OnceLock<Instant>,
    purchases: AtomicU64,
    meetings: Mutex<Vec<Collision>>,
}

impl Collisions {
    fn meetings(&self) -> MutexGuard<'_, Vec<Collision>> {
        self.meetings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> f64 {
        millis(self.since.get_or_init(Instant::now).elapsed())
    }

    /// A purchase begins.
    pub fn begin(&self, buyer: &str, node: u32) -> Purchase {
        Purchase {
            number: self.purchases.fetch_add(1, Relaxed),
            buyer: buyer.to_owned(),
            node,
            began_ms: self.now_ms(),
            sold_ms: 0.0,
            order_id: String::new(),
        }
    }

    /// These two stand here together.
    pub fn met(&self, place: &'static str, a: Purchase, b: Purchase) {
        let mut meetings = self.meetings();
        if meetings.len() < MOST_MEETINGS {
            let buyers = [a.buyer.clone(), b.buyer.clone()];
            meetings.push(Collision { place, at_ms: self.now_ms(), buyers, a, b });
        }
    }

    /// This purchase came to an order.
    pub fn sold(&self, purchase: &Purchase, order_id: &str) {
        let mut meetings = self.meetings();
        let sides = meetings.iter_mut().flat_map(|meeting| [&mut meeting.a, &mut meeting.b]);
        for side in sides.filter(|side| side.number == purchase.number) {
            (side.sold_ms, side.order_id) = (self.now_ms(), order_id.to_owned());
        }
    }

    /// The first meeting of which both came to an order: of one buyer, or of two. Nobody had
    /// written anything before the very first: both had read the same.
    pub fn first(&self, of_one_buyer: bool) -> Option<Collision> {
        let has_sold = |side: &Purchase| !side.order_id.is_empty();
        let is_wanted = |Collision { a, b, .. }: &&Collision| {
            has_sold(a) && has_sold(b) && (a.buyer == b.buyer) == of_one_buyer
        };
        self.meetings().iter().find(is_wanted).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_who_met_and_were_both_sold_a_unit_collided() {
        let collisions = Collisions::default();
        let [ann, bob, cem] = ["ann", "bob", "cem"].map(|name| collisions.begin(name, 1));
        collisions.met("here", ann.clone(), bob.clone());
        collisions.met("there", ann.clone(), cem.clone());
        collisions.sold(&ann, "1");
        assert!(collisions.first(false).is_none(), "the other has no order");
        collisions.sold(&cem, "3");
        let found = collisions.first(false).expect("ann and cem");
        assert_eq!((found.place, &*found.a.buyer, &*found.b.order_id), ("there", "ann", "3"));
        assert!(found.at_ms <= found.b.sold_ms && found.buyers == ["ann", "cem"], "{found:?}");
        assert!(collisions.first(true).is_none(), "nobody met themselves");
    }
}
