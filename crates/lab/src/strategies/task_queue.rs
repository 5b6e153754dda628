//! `task-queue`: requests line up in a Redis list, and one consumer serves them one by one.

use crate::prelude::*;
use crate::servers::OwnPool;
use dashmap::DashMap;
use locks::wire::{Line, Meter};
use redis::cmd;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};

/// How long a buyer waits for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Clone)]
struct Node {
    redis: Line,
    /// Requests: this node's name, number, buyer.
    queue: String,
    /// The one that is being served; it stays until its order is committed.
    in_hand: String,
    /// What this incarnation of the node is called; its answers come to a list of that name.
    name: String,
    waiting: Arc<DashMap<String, oneshot::Sender<String>>>,
    /// The consumer's session, one connection: it is kept as long as the node lives, so it must not
    /// be one that all arenas share.
    session: Arc<OwnPool>,
    stand: Stand,
}

pub fn open(stand: Stand) -> Opening {
    opening(async move {
        let node = Node {
            redis: stand.line().clone(),
            queue: stand.key("queue"),
            in_hand: stand.key("in hand"),
            name: new_order_id(),
            waiting: Arc::default(),
            session: Arc::new(stand.own_pool(1)?),
            stand,
        };
        for task in [Task::HearAnswers, Task::BeTheConsumer] {
            let node = node.clone();
            tokio::spawn(async move {
                let gone = node.stand.gone().clone();
                gone.run_until_cancelled(node.keep(task)).await;
            });
        }
        Ok(node)
    })
}

impl Sell for Node {
    async fn buy(&self, buyer: &Buyer) -> Result<Outcome, Trouble> {
        let (number, (answer, answered)) = (new_order_id(), oneshot::channel());
        self.waiting.insert(number.clone(), answer);
        let request = format!("{} {number} {}", self.name, buyer.name);
        if let Err(trouble) = self.push(&self.queue, &request).await {
            self.waiting.remove(&number);
            return Err(trouble);
        }
        let answer = timeout(ANSWER_TIMEOUT, answered).await;
        self.waiting.remove(&number);
        match answer.as_ref().map(|answer| answer.as_deref()) {
            Ok(Ok("sold")) => Ok(Outcome::Sold { order_id: number }),
            Ok(Ok("sold out")) => Ok(Outcome::SoldOut),
            Ok(Ok("duplicate")) => Ok(Outcome::Duplicate),
            _ => Err(Trouble::Other("no answer from the consumer".to_owned())),
        }
    }

    /// Waits until every request is served, also those whose buyers have hung up.
    async fn settle(&self) {
        // It is the lab that asks: not counted.
        let redis = self.redis.clone().counted_by(&Meter::default());
        loop {
            // In this order: a request goes from the queue into the hand and never back.
            let mut left = Ok(0_i64);
            for list in [&self.queue, &self.in_hand] {
                if matches!(left, Ok(0)) {
                    left = redis.send(cmd("LLEN").arg(list)).await;
                }
            }
            if matches!(left, Ok(0)) {
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
    }
}

#[derive(Clone, Copy)]
enum Task {
    HearAnswers,
    BeTheConsumer,
}

impl Node {
    /// Runs a task for ever; after an error, or while somebody else is the consumer, tries again.
    async fn keep(&self, task: Task) {
        // Waiting in Redis blocks a connection, so each task has its own.
        let redis = self.redis.another_connection();
        loop {
            let ended = match task {
                Task::HearAnswers => self.hear_answers(&redis).await,
                Task::BeTheConsumer => self.be_the_consumer(&redis).await,
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
            if let Some((number, answer)) =
                heard.as_ref().and_then(|(_, text)| text.split_once(' '))
                && let Some((_, waiting)) = self.waiting.remove(number)
            {
                let _ = waiting.send(answer.to_owned()); // the buyer may have hung up
            }
        }
    }

    async fn be_the_consumer(&self, redis: &Line) -> Result<(), Trouble> {
        let mut sql = self.stand.sql_of(&self.session.pool).await?;
        sql.close_on_drop(); // the lock below belongs to this session, and must not outlive its use
        let alone: bool =
            sqlx::query_scalar("SELECT pg_try_advisory_lock(hashtextextended($1, 0))")
                .bind(&self.queue)
                .fetch_one(sql.send())
                .await?;
        if !alone {
            return Ok(());
        }
        let (mut left_behind, mut next) = (cmd("LINDEX"), cmd("BLMOVE"));
        left_behind.arg(&self.in_hand).arg(0);
        next.arg(&self.queue).arg(&self.in_hand).arg("LEFT").arg("RIGHT").arg(1);
        let mut request: Option<String> = redis.send(&left_behind).await?;
        loop {
            if let Some(request) = &request {
                self.serve(&mut sql, request).await?;
            }
            request = redis.send(&next).await?;
        }
    }

    async fn serve(&self, sql: &mut Sql, request: &str) -> Result<(), Trouble> {
        self.stand.crash_point("a request is in hand").await;
        let mut parts = request.splitn(3, ' ');
        if let (Some(node), Some(number), Some(buyer)) = (parts.next(), parts.next(), parts.next())
        {
            let buyer = Buyer { name: buyer.to_owned() };
            sqlx::query("BEGIN").execute(sql.send()).await?;
            let outcome = self.sell(sql, number, &buyer).await?; // an error ends this session
            sqlx::query("COMMIT").execute(sql.send()).await?;
            self.push(&self.stand.key(node), &format!("{number} {outcome}")).await?;
        }
        let mut done = cmd("LREM");
        let _: i64 = self.redis.send(done.arg(&self.in_hand).arg(1).arg(request)).await?;
        Ok(())
    }

    /// As naive does it: read, check, write back.
    async fn sell(
        &self,
        sql: &mut Sql,
        number: &str,
        buyer: &Buyer,
    ) -> Result<&'static str, Trouble> {
        let stand = &self.stand;
        let served_before: bool =
            sqlx::query_scalar("SELECT EXISTS (SELECT FROM lab.orders WHERE id = $1)")
                .bind(number)
                .fetch_one(sql.send())
                .await?;
        if served_before {
            return Ok("sold");
        }
        if stand.has_bought(sql, buyer).await? {
            return Ok("duplicate");
        }
        let remaining: i32 = sqlx::query_scalar(
            "SELECT remaining FROM lab.stock WHERE arena = $1 AND item = 'thing'",
        )
        .bind(stand.arena())
        .fetch_one(sql.send())
        .await?;
        if remaining < 1 {
            return Ok("sold out");
        }

        stand.meet("the stock is read").await; // nobody else comes here
        stand.pause().await;
        stand.work().await;

        sqlx::query("UPDATE lab.stock SET remaining = $2 WHERE arena = $1 AND item = 'thing'")
            .bind(stand.arena())
            .bind(remaining - 1)
            .execute(sql.send())
            .await?;
        sqlx::query("INSERT INTO lab.orders (id, arena, buyer) VALUES ($1, $2, $3)")
            .bind(number)
            .bind(stand.arena())
            .bind(&buyer.name)
            .execute(sql.send())
            .await?;
        Ok("sold")
    }

    async fn push(&self, list: &str, text: &str) -> Result<(), Trouble> {
        let mut push = cmd("RPUSH");
        let _: i64 = self.redis.send(push.arg(list).arg(text)).await?;
        Ok(())
    }
}

pub const STRATEGY: Strategy = Strategy {
    id: "task-queue",
    family: Family::Queue,
    promise: Promise::SOUND,
    crash_points: &["a request is in hand"],
    demonstrations: &[
        Demonstration {
            id: "fails",
            shows: Harm::Fails,
            scenario: Scenario {
                concurrency: 8,
                options: &[("crash_at", "a request is in hand"), ("restart_ms", "0")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            id: "holds",
            shows: Harm::Holds,
            scenario: Scenario { nodes: 3, duplicates_percent: 100, ..Scenario::SMALL },
        },
    ],
    ..Strategy::PLAIN
};
