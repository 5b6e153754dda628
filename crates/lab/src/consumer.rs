//! A queue of requests in Redis, which one consumer among all nodes serves one after the other.
//!
//! ```text
//! queue    list of requests: the asking node's name, the request's id, the buyer
//! in hand  list of the one that is being served; it stays until its order is committed
//! NAME     list of the answers to a node: the request's id, the answer
//! ```
//!
//! Crashes. Of the consumer: its session ends, another node becomes the consumer and serves what is
//! in hand first. Of the asking node: its requests are served, for nobody.

use crate::{
    selling::{Buyer, Outcome, Trouble},
    servers::OwnPool,
    sql::Sql,
    stand::{Stand, new_order_id},
};
use dashmap::DashMap;
use locks::wire::{Line, Meter};
use redis::cmd;
use std::{ops::Deref, sync::Arc, time::Duration};
use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};

/// How long a buyer waits for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Serves requests. Each call is a transaction of its own.
pub trait Consumer: Send + Sync + 'static {
    /// `id`: the request's, and the order's; a request may come again after a crash.
    fn serve(
        &self,
        sql: &mut Sql,
        id: &str,
        buyer: &Buyer,
    ) -> impl Future<Output = Result<Outcome, Trouble>> + Send;
}

/// One node's end of the queue.
pub struct TaskQueue(Arc<Inner>);

pub struct Inner {
    redis: Line,
    queue: String,
    in_hand: String,
    /// What this incarnation of the node is called.
    name: String,
    waiting: DashMap<String, oneshot::Sender<String>>,
    /// The consumer's session: it is kept as long as the node lives, so no arena may share it.
    session: OwnPool,
    stand: Stand,
}

#[derive(Clone, Copy)]
enum Task {
    HearAnswers,
    BeTheConsumer,
}

impl TaskQueue {
    /// Starts to hear answers, and to be the consumer whenever nobody else is.
    pub fn open(stand: Stand, consumer: impl Consumer) -> Result<Self, Trouble> {
        let inner = Arc::new(Inner {
            redis: stand.line().clone(),
            queue: stand.key("queue"),
            in_hand: stand.key("in hand"),
            name: new_order_id(),
            waiting: DashMap::new(),
            session: stand.own_pool(1)?,
            stand: stand.clone(),
        });
        let consumer = Arc::new(consumer);
        for task in [Task::HearAnswers, Task::BeTheConsumer] {
            let (inner, consumer) = (inner.clone(), consumer.clone());
            let gone = stand.gone().clone();
            tokio::spawn(async move {
                gone.run_until_cancelled(inner.again_and_again(task, &*consumer)).await;
            });
        }
        Ok(Self(inner))
    }
}

impl Deref for TaskQueue {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Inner {
    pub async fn ask(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let (id, (answer, answered)) = (new_order_id(), oneshot::channel());
        self.waiting.insert(id.clone(), answer);
        let pushed = self.push(&self.queue, &format!("{} {id} {}", self.name, buyer.name)).await;
        let answer = match pushed {
            Ok(()) => timeout(ANSWER_TIMEOUT, answered).await.ok().and_then(Result::ok),
            Err(_) => None,
        };
        self.waiting.remove(&id);
        pushed?;
        match answer.as_deref() {
            Some("sold") => Ok(Outcome::Sold { order_id: id }),
            Some("sold out") => Ok(Outcome::SoldOut),
            Some("duplicate") => Ok(Outcome::Duplicate),
            _ => Err(Trouble::Other("no answer from the consumer".to_owned())),
        }
    }

    /// Waits until every request is served, also those whose buyers have hung up.
    pub async fn settle(&self) {
        // It is the lab that asks: not counted.
        let redis = self.redis.clone().counted_by(&Meter::default());
        // In this order: a request goes from the queue into the hand and never back.
        for list in [&self.queue, &self.in_hand] {
            while !matches!(redis.send(cmd("LLEN").arg(list)).await, Ok(0)) {
                sleep(Duration::from_millis(10)).await;
            }
        }
    }

    /// For ever; after an error, or while somebody else is the consumer, with a pause.
    async fn again_and_again(&self, task: Task, consumer: &impl Consumer) {
        // Waiting in Redis blocks a connection, so each task has its own.
        let redis = self.redis.another_connection();
        loop {
            let ended = match task {
                Task::HearAnswers => self.hear_answers(&redis).await,
                Task::BeTheConsumer => self.be_the_consumer(&redis, consumer).await,
            };
            if let Err(trouble) = ended {
                tracing::debug!(%trouble, "the task queue tries again");
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    async fn hear_answers(&self, redis: &Line) -> Result<(), Trouble> {
        let mut next = cmd("BLPOP");
        next.arg(self.stand.key(&self.name)).arg(1);
        loop {
            let heard: Option<(String, String)> = redis.send(&next).await?;
            if let Some((id, answer)) = heard.as_ref().and_then(|(_, text)| text.split_once(' '))
                && let Some((_, waiting)) = self.waiting.remove(id)
            {
                let _ = waiting.send(answer.to_owned()); // the buyer may have hung up
            }
        }
    }

    async fn be_the_consumer(&self, redis: &Line, serve: &impl Consumer) -> Result<(), Trouble> {
        let mut sql = self.stand.sql_of(&self.session.pool).await?;
        sql.close_on_drop(); // the lock below belongs to this session, and must not outlive its use
        const ALONE: &str = "SELECT pg_try_advisory_lock(hashtextextended($1, 0))";
        if !sql.one(ALONE, (&self.queue,)).await? {
            return Ok(());
        }
        let (mut left_behind, mut next) = (cmd("LINDEX"), cmd("BLMOVE"));
        left_behind.arg(&self.in_hand).arg(0);
        next.arg(&self.queue).arg(&self.in_hand).arg("LEFT").arg("RIGHT").arg(1);
        let mut request: Option<String> = redis.send(&left_behind).await?;
        loop {
            if let Some(request) = &request {
                self.serve(&mut sql, request, serve).await?;
            }
            request = redis.send(&next).await?;
        }
    }

    async fn serve(
        &self,
        sql: &mut Sql,
        request: &str,
        consumer: &impl Consumer,
    ) -> Result<(), Trouble> {
        let mut parts = request.splitn(3, ' ');
        if let (Some(node), Some(id), Some(buyer)) = (parts.next(), parts.next(), parts.next()) {
            let buyer = Buyer { name: buyer.to_owned() };
            sqlx::query("BEGIN").execute(sql.send()).await?;
            let outcome = consumer.serve(sql, id, &buyer).await?; // an error ends this session
            sqlx::query("COMMIT").execute(sql.send()).await?;
            let answer = match outcome {
                Outcome::Sold { .. } => "sold",
                Outcome::Duplicate => "duplicate",
                Outcome::SoldOut | Outcome::Contended => "sold out",
            };
            self.push(&self.stand.key(node), &format!("{id} {answer}")).await?;
        }
        let _: i64 = self.redis.send(cmd("LREM").arg(&self.in_hand).arg(1).arg(request)).await?;
        Ok(())
    }

    async fn push(&self, list: &str, text: &str) -> Result<(), Trouble> {
        let _: i64 = self.redis.send(cmd("RPUSH").arg(list).arg(text)).await?;
        Ok(())
    }
}
