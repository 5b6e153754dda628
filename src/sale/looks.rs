//! Looking at orders: everybody who asks at this moment shares one query.
//!
//! ```text
//! handler ─▶ bounded queue ─▶ up to BATCH looks ─▶ one SELECT for all of them ─▶ handlers
//! ```
//!
//! After a purchase its buyer asks until the order is there, and with ten thousand buyers that is a crowd
//! of its own. One by one, a look costs Postgres 50 µs, nearly all of it for the statement and hardly any
//! for the row. Here a look that comes while others are being answered waits for the next query; alone, it
//! is asked at once. Nothing is remembered: every answer was read from the primary after its question came,
//! so what was once confirmed never reverts (I9). An answer is found by its order *and* its owner (I12).
//!
//! A few queries may be under way at a time, so that one connection that hangs does not hold up everybody,
//! and none for long: a connection that fell silent would keep its place for ever. If a query fails, each
//! of its askers asks for themselves and gets their own error; if there is no answer, that is theirs.
//! On a crash the queue is lost, and so are the connections of those who waited.

use crate::{
    domain::{Order, OrderId, UserId},
    postgres::{Pool, timed_out},
    sale::orders,
};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::sync::{Semaphore, mpsc, oneshot};

/// Beyond this many waiting looks each asks for itself, which the pool bounds.
const QUEUE: usize = 16_384;
/// The most looks of one query.
const BATCH: usize = 256;
/// Queries under way at a time. With one, all would wait for its slowest; with as many as the pool has,
/// none would be shared.
const AT_ONCE: usize = 2;
/// How long a query may take; it is a fraction of this unless Postgres is away.
const LIMIT: Duration = Duration::from_secs(2);

/// Somebody who wants to see an order of theirs.
struct Look {
    user: UserId,
    id: OrderId,
    /// Told nothing if the query failed.
    answer: oneshot::Sender<Result<Option<Order>, sqlx::Error>>,
}

/// The queue of looks. Its task starts with the first of them and ends with the shop.
#[derive(Default)]
pub struct Looks {
    queue: OnceLock<mpsc::Sender<Look>>,
}

impl Looks {
    /// The user's order; somebody else's is as absent as one that does not exist.
    pub async fn order(
        &self,
        postgres: &Pool,
        user: UserId,
        id: OrderId,
    ) -> Result<Option<Order>, sqlx::Error> {
        let queue = self.queue.get_or_init(|| {
            let (sender, receiver) = mpsc::channel(QUEUE);
            tokio::spawn(run(postgres.clone(), receiver));
            sender
        });
        let (answer, found) = oneshot::channel();
        if queue.try_send(Look { user, id, answer }).is_ok()
            && let Ok(found) = found.await
        {
            return found;
        }
        orders::of_user(postgres, user, id).await
    }
}

async fn run(postgres: Pool, mut queue: mpsc::Receiver<Look>) {
    let at_once = Arc::new(Semaphore::new(AT_ONCE));
    let mut looks = Vec::with_capacity(BATCH);
    // Nobody closes the semaphore.
    while let Ok(turn) = at_once.clone().acquire_owned().await {
        // Only now, so that whoever came while all queries were under way is in the next one.
        if queue.recv_many(&mut looks, BATCH).await == 0 {
            return;
        }
        let looks = std::mem::replace(&mut looks, Vec::with_capacity(BATCH));
        let postgres = postgres.clone();
        tokio::spawn(async move {
            answer(&postgres, looks).await;
            drop(turn);
        });
    }
}

async fn answer(postgres: &Pool, mut looks: Vec<Look>) {
    // Who has hung up wants nothing any more.
    looks.retain(|look| !look.answer.is_closed());
    if looks.is_empty() {
        return;
    }
    let wanted: HashSet<(UserId, OrderId)> =
        looks.iter().map(|look| (look.user, look.id)).collect();
    let found = match tokio::time::timeout(LIMIT, orders::of_users(postgres, &wanted)).await {
        Ok(Ok(found)) => found,
        Err(_) => {
            for look in looks {
                let _ = look.answer.send(Err(timed_out()));
            }
            return;
        }
        Ok(Err(error)) => {
            tracing::debug!(%error, looks = looks.len(), "a shared look failed; each asks for itself");
            return;
        }
    };
    let found: HashMap<(UserId, OrderId), Order> = found
        .into_iter()
        .map(|order| ((order.user_id, order.id), order))
        .collect();
    for look in looks {
        let found = found.get(&(look.user, look.id)).cloned();
        let _ = look.answer.send(Ok(found));
    }
}
