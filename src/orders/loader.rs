//! Loading orders: concurrent requests share a query.
//!
//! ```text
//! handler ─▶ bounded queue ─▶ up to BATCH questions ─▶ one SELECT for all of them ─▶ handlers
//! ```
//!
//! After a purchase its buyer polls until the order is there. One by one, a query costs Postgres 50
//! µs, nearly all for the statement and hardly any for the row. Here a request that arrives while
//! others are answered waits for the next query; a single one is sent at once. Nothing is cached:
//! each answer is read from the primary after its request came, so a confirmed state never reverts
//! (I9), and it is found by order *and* owner (I12).
//!
//! A few bounded queries run at a time, so that one hanging connection does not hold up all
//! requests. If a query fails, each request is sent by itself and gets its own error. A crash loses
//! the queue together with its clients' connections.

use crate::domain::{Order, OrderId, UserId};
use crate::orders::queries;
use crate::postgres::{Pool, timed_out};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, oneshot};

/// Requests beyond this many are sent one by one, bounded by the pool.
const QUEUE: usize = 16_384;
/// The most requests of one query.
const BATCH: usize = 256;
/// Concurrent queries: one would hold up all behind a slow query, as many as connections would
/// share nothing.
const AT_ONCE: usize = 2;
/// A query takes a fraction of this unless Postgres is away.
const LIMIT: Duration = Duration::from_secs(2);

/// A request for an order by its owner.
struct Question {
    user: UserId,
    id: OrderId,
    /// Dropped if the shared query failed.
    answer: oneshot::Sender<sqlx::Result<Option<Order>>>,
}

/// The queue of requests. Its task starts with the first one and ends with the service.
#[derive(Default)]
pub struct OrderLoader {
    queue: OnceLock<mpsc::Sender<Question>>,
}

impl OrderLoader {
    /// The user's order; somebody else's is as absent as one that does not exist.
    pub async fn order(
        &self,
        postgres: &Pool,
        user: UserId,
        id: OrderId,
    ) -> sqlx::Result<Option<Order>> {
        let queue = self.queue.get_or_init(|| {
            let (sender, receiver) = mpsc::channel(QUEUE);
            tokio::spawn(run(postgres.clone(), receiver));
            sender
        });
        let (answer, found) = oneshot::channel();
        if queue.try_send(Question { user, id, answer }).is_ok()
            && let Ok(found) = found.await
        {
            return found;
        }
        queries::of_user(postgres, user, id).await
    }
}

async fn run(postgres: Pool, mut queue: mpsc::Receiver<Question>) {
    let at_once = Arc::new(Semaphore::new(AT_ONCE));
    let mut questions = Vec::with_capacity(BATCH);
    // The semaphore is never closed.
    while let Ok(turn) = at_once.clone().acquire_owned().await {
        // Received only now: all requests that arrived meanwhile share the next query.
        if queue.recv_many(&mut questions, BATCH).await == 0 {
            return;
        }
        let questions = std::mem::replace(&mut questions, Vec::with_capacity(BATCH));
        let postgres = postgres.clone();
        tokio::spawn(async move {
            answer(&postgres, questions).await;
            drop(turn);
        });
    }
}

async fn answer(postgres: &Pool, mut questions: Vec<Question>) {
    // Drop requests of clients that hung up.
    questions.retain(|question| !question.answer.is_closed());
    if questions.is_empty() {
        return;
    }
    let wanted: HashSet<(UserId, OrderId)> =
        questions.iter().map(|question| (question.user, question.id)).collect();
    let found = match tokio::time::timeout(LIMIT, queries::of_users(postgres, &wanted)).await {
        Ok(Ok(found)) => found,
        Err(_) => {
            for question in questions {
                let _ = question.answer.send(Err(timed_out()));
            }
            return;
        }
        Ok(Err(error)) => {
            tracing::debug!(%error, questions = questions.len(),
                "a shared query failed; each asks for itself");
            return;
        }
    };
    let found = found.into_iter().map(|order| ((order.user_id, order.id), order));
    let found: HashMap<(UserId, OrderId), Order> = found.collect();
    for question in questions {
        let found = found.get(&(question.user, question.id)).cloned();
        let _ = question.answer.send(Ok(found));
    }
}
