//! 24. `task-queue`: requests line up in a Redis list, and one consumer serves them one by one.

use crate::{
    selling::{Buyer, Opening, Outcome, Sell, Trouble, opening},
    servers::OwnPool,
    stand::{Sql, Stand, new_order_id},
    strategy::{Demonstration, Family, Harm, Promise, Scenario, Strategy, Words},
};
use dashmap::DashMap;
use locks::wire::{Line, Meter};
use redis::cmd;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};

pub const STRATEGY: Strategy = Strategy {
    number: 24,
    id: "task-queue",
    family: Family::Queue,
    title: Words::new("A queue with one consumer", "排队，一个人处理"),
    idea: Words::new(
        "Nobody buys: everybody puts a request into a list and waits for its answer. One consumer \
         takes the requests one after the other. It reads, checks and writes like naive (1), and \
         is right all the same: there is nobody else.",
        "谁都不直接买：大家把请求放进一个列表，等待答复。唯一的消费者一个接一个地处理，做的正是 naive（第 1 种）那三步：先查、再判断、后写；却不会出错，因为没有别人。",
    ),
    source: Words::new(
        "《使用Redis实现分布式锁》 names it as the other way to sell ten phones to a million people without \
         a lock. It leaves open who makes sure that there is only one consumer. Here a Postgres \
         session does: the consumer holds an advisory lock on the very connection over which it \
         writes, so losing the one is losing the other.",
        "《使用Redis实现分布式锁》说这是不用锁也能把十部手机卖给一百万人的另一条路，却没说谁来保证消费者只有一个。这里由 Postgres 会话保证：消费者的咨询锁就在它写订单的那条连\
         接上，锁没了，连接也就没了，再也写不进去。",
    ),
    fails: Words::new(
        "All buyers wait for one worker, and the last in line waits longest, even to hear \"sold \
         out\". When the consumer dies, everybody waits until the next one has noticed. A request \
         whose buyer has hung up is served all the same, and there is an order that nobody knows \
         of. And a request must not be taken out of the list before its order is committed, nor be \
         served twice: here it stays in a second list meanwhile, and its number is the order's.",
        "所有买家都在等一个人干活，排在最后的人哪怕只是听一句“卖完了”也要等最久。消费者死了，大家都要等下一个消费者接手。买家已经挂断的请求照样会被处理，于是有了没人知道的订单。另外，请求\
         不能在订单提交之前就从列表里消失，也不能被处理两次：这里处理期间把它放进另一个列表，并用它的编号做订单号。",
    ),
    break_it: Words::new(
        "work_ms=20 with 200 buyers: watch p99 grow with the queue. crash_at=\"a request is in \
         hand\": see who hears nothing, and that its order is written all the same.",
        "work_ms=20、200 个买家：看 p99 怎样随队列变长。crash_at=\"a request is in hand\"：看谁等不到答复，而它的订单照样会写好。",
    ),
    instead: Words::new(
        "Decide at once in Redis and queue only the writing of orders: lua-stream (26).",
        "在 Redis 里当场判定，只让“写订单”去排队：lua-stream（第 26 种）。",
    ),
    promise: Promise::SOUND,
    needs: &[],
    options: &[],
    crash_points: &["a request is in hand"],
    demonstrations: &[
        Demonstration {
            shows: Harm::Fails,
            teaches: Words::new(
                "The consumer dies with a request in its hands: those who wait on this node hear \
                 nothing. The next consumer serves the request and the rest of the queue, for \
                 buyers who are no longer there.",
                "消费者手里拿着请求就死了：在此节点上等待的人都得不到答复。下一个消费者会把这个请求和剩下的队列处理完，可那些买家早已不在了。",
            ),
            scenario: Scenario {
                concurrency: 8,
                options: &[("crash_at", "a request is in hand"), ("restart_ms", "0")],
                ..Scenario::SMALL
            },
        },
        Demonstration {
            shows: Harm::Holds,
            teaches: Words::new(
                "Three nodes, one of which is the consumer: the same naive steps, and nothing is \
                 sold twice.",
                "三个节点，其中一个是消费者：还是那三步，却一件也不会卖两次。",
            ),
            scenario: Scenario { nodes: 3, duplicates_percent: 100, ..Scenario::SMALL },
        },
    ],
    routes_by_buyer: false,
    code: include_str!("s24_task_queue.rs"),
};

// --- the purchase

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
        if stand.has_bought(sql.send(), buyer).await? {
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
