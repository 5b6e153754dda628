//! Which two purchases of a race met at the dangerous point: what "Why?" shows of it.

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

/// A purchase under way.
#[derive(Debug, Clone)]
pub struct Purchase {
    number: u64,
    buyer: String,
    node: u32,
    began: Instant,
}

/// Two purchases that stood at one place at the same moment. Both were sold a unit.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Collision {
    place: &'static str,
    /// Milliseconds since the first purchase of the arena, as all times here.
    at_ms: f64,
    buyers: [String; 2],
    a: Side,
    b: Side,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = CollisionSide)]
pub struct Side {
    buyer: String,
    node: u32,
    began_ms: f64,
    /// When the buyer was told.
    sold_ms: f64,
    order_id: String,
}

struct Meeting {
    place: &'static str,
    at: Instant,
    /// Each with its order, once it has one.
    sides: [(Purchase, Option<(Instant, String)>); 2],
}

/// The meetings of an arena in this process.
#[derive(Default)]
pub struct Collisions {
    since: OnceLock<Instant>,
    purchases: AtomicU64,
    meetings: Mutex<Vec<Meeting>>,
}

impl Collisions {
    fn meetings(&self) -> MutexGuard<'_, Vec<Meeting>> {
        self.meetings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A purchase begins.
    pub fn begin(&self, buyer: &str, node: u32) -> Purchase {
        let began = Instant::now();
        self.since.get_or_init(|| began);
        let number = self.purchases.fetch_add(1, Relaxed);
        Purchase { number, buyer: buyer.to_owned(), node, began }
    }

    /// These two stand here together.
    pub fn met(&self, place: &'static str, first: Purchase, second: Purchase) {
        let mut meetings = self.meetings();
        if meetings.len() < MOST_MEETINGS {
            let sides = [(first, None), (second, None)];
            meetings.push(Meeting { place, at: Instant::now(), sides });
        }
    }

    /// This purchase came to an order.
    pub fn sold(&self, purchase: &Purchase, order_id: &str) {
        let mut meetings = self.meetings();
        let sides = meetings.iter_mut().flat_map(|meeting| &mut meeting.sides);
        for (_, sold) in sides.filter(|(other, _)| other.number == purchase.number) {
            *sold = Some((Instant::now(), order_id.to_owned()));
        }
    }

    /// The first meeting of which both came to an order: of one buyer, or of two. Nobody had
    /// written anything before the very first: both had read the same.
    pub fn first(&self, of_one_buyer: bool) -> Option<Collision> {
        let since = *self.since.get()?;
        self.meetings().iter().find_map(|Meeting { place, at, sides }| {
            let [(a, Some(sold_a)), (b, Some(sold_b))] = sides else { return None };
            if (a.buyer == b.buyer) != of_one_buyer {
                return None;
            }
            let ms = |at: Instant| ((at - since).as_secs_f64() * 100_000.0).round() / 100.0;
            let buyers = [a.buyer.clone(), b.buyer.clone()];
            let side = |purchase: &Purchase, (sold, order_id): &(Instant, String)| Side {
                buyer: purchase.buyer.clone(),
                node: purchase.node,
                began_ms: ms(purchase.began),
                sold_ms: ms(*sold),
                order_id: order_id.clone(),
            };
            Some(Collision {
                place,
                at_ms: ms(*at),
                buyers,
                a: side(a, sold_a),
                b: side(b, sold_b),
            })
        })
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
