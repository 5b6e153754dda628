//! A queue of requests in Redis, which one consumer among all nodes serves one after the other.
//!
//! ```text
//! queue    list of requests: the asking node's name, the request's id, the buyer
//! in hand  list of the one that is being served; it stays until its order is committed
//! NAME     list of the answers to a node: the request's id, the outcome as JSON
//! ```
//!
//! If the consumer crashes, its session ends; another node becomes the consumer and first serves
//! the request in hand. If the asking node crashes, its requests are served all the same.

use crate::bench::{Bench, new_order_id};
use crate::selling::{Buyer, Outcome, PurchaseError, Result, Trying};
use crate::{servers::OwnPool, sql::Sql};
use dashmap::DashMap;
use futures_util::future::{BoxFuture, FutureExt, TryFutureExt};
use locks::wire::Meter;
use redis::cmd;
use std::{panic::Location, sync::Arc, time::Duration};
use tokio::{sync::oneshot, time::timeout};

/// How long a buyer waits for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// A request of a buyer; it may come again after a crash.
pub struct Request {
    /// Its order has the same id.
    pub id: String,
    pub buyer: Buyer,
}

/// Serves a request, in a transaction of its own.
pub type Serve = for<'a> fn(&'a Bench, &'a mut Sql, &'a Request) -> BoxFuture<'a, Result<Outcome>>;

/// One node's end of the queue.
pub struct TaskQueue {
    queue: String,
    in_hand: String,
    /// The name of this node, new with each start.
    name: String,
    waiting: DashMap<String, oneshot::Sender<Outcome>>,
    serve: Serve,
    /// The consumer's session: it is kept as long as the node lives, so no arena may share it.
    session: OwnPool,
    bench: Bench,
}

impl TaskQueue {
    /// Starts to hear answers, and to be the consumer whenever nobody else is.
    pub fn open(bench: &Bench, serve: Serve) -> Result<Arc<Self>> {
        let queue = Arc::new(Self {
            queue: bench.key("queue"),
            in_hand: bench.key("in hand"),
            name: new_order_id(),
            waiting: DashMap::new(),
            serve,
            session: bench.shared.servers.own_pool(1)?,
            bench: bench.clone(),
        });
        let (hears, serves) = (queue.clone(), queue.clone());
        bench.keep_doing(move |_| hears.clone().hear_answers());
        bench.keep_doing(move |_| serves.clone().be_the_consumer());
        Ok(queue)
    }

    #[track_caller]
    pub fn ask(&self, buyer: &Buyer) -> impl Trying<Outcome> {
        self.bench.passed(Location::caller());
        async move {
            let (id, (answer, answered)) = (new_order_id(), oneshot::channel());
            self.waiting.insert(id.clone(), answer);
            let pushed = self.push(&self.queue, format!("{} {id} {}", self.name, buyer.name));
            let heard = pushed.and_then(|()| timeout(ANSWER_TIMEOUT, answered).map(Ok)).await;
            self.waiting.remove(&id);
            let unanswered = || PurchaseError::from("no answer from the consumer");
            heard?.ok().and_then(Result::ok).ok_or_else(unanswered)
        }
    }

    /// Waits until every request is served, also those whose buyers have hung up.
    pub async fn settle(&self) {
        // The lab's own requests are not counted.
        let redis = &self.bench.line.clone().counted_by(&Meter::default());
        // In this order: a request goes from the queue into the hand and never back.
        for list in [&self.queue, &self.in_hand] {
            let is_empty = || async { Ok(redis.send::<i64>(cmd("LLEN").arg(list)).await? == 0) };
            self.bench.until(is_empty).await;
        }
    }

    async fn hear_answers(self: Arc<Self>) -> Result<bool> {
        // Waiting in Redis blocks a connection.
        let redis = self.bench.line.another_connection();
        let mut next = cmd("BLPOP");
        next.arg(self.bench.key(&self.name)).arg(1);
        loop {
            let heard: Option<(String, String)> = redis.send(&next).await?;
            if let Some((id, answer)) = heard.as_ref().and_then(|(_, text)| text.split_once(' '))
                && let Some((_, waiting)) = self.waiting.remove(id)
                && let Ok(outcome) = serde_json::from_str(answer)
            {
                let _ = waiting.send(outcome); // the buyer may have hung up
            }
        }
    }

    /// Serves requests until an error; returns at once while another node is the consumer.
    async fn be_the_consumer(self: Arc<Self>) -> Result<bool> {
        let mut sql = self.bench.sql_of(&self.session.pool).await?;
        sql.close_on_drop(); // the lock below belongs to this session, and must not outlive its use
        const ALONE: &str = "SELECT pg_try_advisory_lock(hashtextextended($1, 0))";
        if !sql.one(ALONE, (&self.queue,)).await? {
            return Ok(false);
        }
        let redis = self.bench.line.another_connection();
        let mut next = cmd("BLMOVE");
        next.arg(&self.queue).arg(&self.in_hand).arg("LEFT").arg("RIGHT").arg(1);
        let left_behind = redis.send(cmd("LINDEX").arg(&self.in_hand).arg(0)).await?;
        let mut request: Option<String> = left_behind;
        loop {
            if let Some(request) = &request {
                self.serve_one(&mut sql, request).await?;
            }
            request = redis.send(&next).await?;
        }
    }

    async fn serve_one(&self, sql: &mut Sql, request: &str) -> Result {
        let mut parts = request.splitn(3, ' ');
        if let (Some(node), Some(id), Some(buyer)) = (parts.next(), parts.next(), parts.next()) {
            let asked = Request { id: id.to_owned(), buyer: Buyer { name: buyer.to_owned() } };
            sql.run("BEGIN", ()).await?;
            // An error ends this session.
            let outcome = (self.serve)(&self.bench, sql, &asked).await?;
            sql.run("COMMIT", ()).await?;
            let answer = format!("{id} {}", serde_json::json!(outcome));
            self.push(&self.bench.key(node), answer).await?;
        }
        self.bench.redis("LREM", (&self.in_hand, 1, request)).await
    }

    async fn push(&self, list: &str, text: String) -> Result {
        self.bench.redis("RPUSH", (list, text)).await
    }
}
