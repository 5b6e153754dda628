//! Interleaving points: how an interleaving is forced without a hook in the code around them.
//!
//! A client at a place waits until another one is there too; then both go on, having
//! seen the same thing. A lock keeps the second one out, so the first waits in vain and goes on
//! alone. The first waits are long, so that a busy machine does not turn a broken strategy into a
//! sound one; each wait in vain makes the next one shorter, and after a few nobody waits any more,
//! so a sound strategy keeps its speed.

use crate::tally::millis;
use parking_lot::Mutex;
use serde::Serialize;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::{cell::RefCell, collections::HashMap, iter};
use tokio::sync::oneshot;
use utoipa::ToSchema;

/// How long the first wait at each place may be in vain. A sound strategy pays it once; on a loaded
/// machine it leaves the second buyer of a broken one time to arrive.
pub const FIRST_WAIT: Duration = Duration::from_secs(1);
/// How long the next few waits may be in vain; then nobody waits any more.
const NEXT_WAITS_MS: [u64; 4] = [50, 20, 20, 20];

/// After so many pairs at a point nobody waits there any more.
const MOST_PAIRS: usize = 200;

pub struct InterleavingPoints {
    forced: bool,
    first_wait: Duration,
    pub collisions: Collisions,
    points: Mutex<HashMap<&'static str, Point>>,
}

#[derive(Default)]
struct Point {
    waiting: Option<(oneshot::Sender<()>, Option<Purchase>)>,
    met: usize,
    in_vain: usize,
}

impl InterleavingPoints {
    pub fn new(forced: bool, first_wait: Duration) -> Self {
        let (collisions, points) = (Collisions::default(), Mutex::default());
        Self { forced, first_wait, collisions, points }
    }

    /// Whether anybody came to a place, and was made to wait for another one.
    pub fn were_tried(&self) -> bool {
        !self.points.lock().is_empty()
    }

    /// Releases the client that waits at `place`, and waits for nobody.
    pub fn resume_waiting(&self, place: &'static str) {
        let waiting = self.points.lock().get_mut(place).and_then(|here| here.waiting.take());
        if let Some((other, _)) = waiting {
            let _ = other.send(());
        }
    }

    /// Waits for another one at `place`, a bounded time.
    pub async fn meet(&self, place: &'static str) {
        if !self.forced {
            return;
        }
        let purchase = PURCHASE.try_with(|purchase| purchase.borrow().clone()).ok();
        let (met, wait) = {
            let mut points = self.points.lock();
            let here = points.entry(place).or_default();
            // Fails if the other has stopped waiting, or its node has crashed.
            if let Some((other, first)) = here.waiting.take()
                && other.send(()).is_ok()
            {
                here.met += 1;
                if let (Some(first), Some(second)) = (first, purchase) {
                    self.collisions.met(place, first, second);
                }
                return;
            }
            let next_waits = NEXT_WAITS_MS.map(Duration::from_millis);
            let wait = iter::once(self.first_wait).chain(next_waits).nth(here.in_vain);
            let Some(wait) = wait.filter(|_| here.met < MOST_PAIRS) else { return };
            let (waiting, met) = oneshot::channel();
            here.waiting = Some((waiting, purchase));
            (met, wait)
        };
        if tokio::time::timeout(wait, met).await.is_err()
            && let Some(here) = self.points.lock().get_mut(place)
        {
            here.in_vain += 1;
        }
    }
}

// ---- collisions -------------------------------------------------------------------------------

/// How many pairs are remembered. The first ones are the clearest.
const MOST_REMEMBERED: usize = 64;

tokio::task_local! {
    /// The purchase that this task makes.
    static PURCHASE: RefCell<Purchase>;
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
    /// The last number that it had read from a row when they met: the stock, where one is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    read: Option<i32>,
    began_ms: f64,
    /// When the buyer was told.
    sold_ms: f64,
    order_id: String,
}

impl Purchase {
    /// Runs its code, which may meet another purchase's.
    pub async fn run<T>(&self, code: impl Future<Output = T>) -> T {
        PURCHASE.scope(RefCell::new(self.clone()), code).await
    }

    /// The purchase under way has read this number, if there is one.
    pub fn has_read(number: i32) {
        let _ = PURCHASE.try_with(|purchase| purchase.borrow_mut().read = Some(number));
    }
}

/// The pairs that met in an arena, in this process.
#[derive(Default)]
pub struct Collisions {
    since: OnceLock<Instant>,
    purchases: AtomicU64,
    remembered: Mutex<Vec<Collision>>,
}

impl Collisions {
    fn now_ms(&self) -> f64 {
        millis(self.since.get_or_init(Instant::now).elapsed())
    }

    /// A purchase begins.
    pub fn begin(&self, buyer: &str, node: u32) -> Purchase {
        Purchase {
            number: self.purchases.fetch_add(1, Relaxed),
            buyer: buyer.to_owned(),
            node,
            read: None,
            began_ms: self.now_ms(),
            sold_ms: 0.0,
            order_id: String::new(),
        }
    }

    /// Two purchases are here at the same moment.
    pub fn met(&self, place: &'static str, a: Purchase, b: Purchase) {
        let mut remembered = self.remembered.lock();
        if remembered.len() < MOST_REMEMBERED {
            let buyers = [a.buyer.clone(), b.buyer.clone()];
            remembered.push(Collision { place, at_ms: self.now_ms(), buyers, a, b });
        }
    }

    /// This purchase came to an order.
    pub fn sold(&self, purchase: &Purchase, order_id: &str) {
        let mut remembered = self.remembered.lock();
        let sides = remembered.iter_mut().flat_map(|both| [&mut both.a, &mut both.b]);
        for side in sides.filter(|side| side.number == purchase.number) {
            (side.sold_ms, side.order_id) = (self.now_ms(), order_id.to_owned());
        }
    }

    /// The first pair of which both came to an order, of one buyer or of two; sooner one that had
    /// read the same.
    pub fn first(&self, of_one_buyer: bool) -> Option<Collision> {
        let has_sold = |side: &Purchase| !side.order_id.is_empty();
        let is_wanted = |Collision { a, b, .. }: &&Collision| {
            has_sold(a) && has_sold(b) && (a.buyer == b.buyer) == of_one_buyer
        };
        let remembered = self.remembered.lock();
        let found = remembered.iter().filter(is_wanted);
        found.min_by_key(|both| both.a.read != both.b.read).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn two_who_meet_go_on_at_once() {
        let points = InterleavingPoints::new(true, FIRST_WAIT);
        for _ in 0..50 {
            tokio::join!(points.meet("here"), points.meet("here"));
        }
        let at = points.points.lock();
        assert_eq!((at["here"].met, at["here"].in_vain), (50, 0));
    }

    #[tokio::test]
    async fn one_who_is_alone_waits_a_few_times_and_then_no_more() {
        let points = InterleavingPoints::new(true, FIRST_WAIT);
        for _ in 0..1_000 {
            points.meet("here").await;
        }
        let at = points.points.lock();
        assert_eq!((at["here"].met, at["here"].in_vain), (0, 1 + NEXT_WAITS_MS.len()));
        // At another place everybody is new.
        assert!(!at.contains_key("there"));
    }

    #[tokio::test]
    async fn one_who_died_waiting_is_not_met() {
        let points = InterleavingPoints::new(true, FIRST_WAIT);
        let died = tokio::time::timeout(Duration::from_millis(1), points.meet("here"));
        assert!(died.await.is_err());
        tokio::join!(points.meet("here"), points.meet("here"));
        assert_eq!(points.points.lock()["here"].met, 1);
    }

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
