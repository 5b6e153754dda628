//! Buyers who all ask at once, a bounded number at a time.

use crate::adapter::Adapter;
use crate::client::{Client, NoAnswer, Target};
use crate::config::Config;
use crate::event::{Event, Progress};
use crate::history::{Counts, Meaning, Phase, Request};
use crate::server::Server;
use crate::template::{Scope, Variables};
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Barrier, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// One who wants a unit, with what its own calls have found.
pub struct Buyer {
    pub name: String,
    pub variables: Variables,
}

/// One purchase of a buyer: sent until it has an answer, always with the same key.
#[derive(Clone)]
pub struct Ask {
    pub buyer: Arc<Buyer>,
    pub key: String,
    pub is_slow: bool,
    pub phase: Phase,
}

/// Shared by all workers.
pub struct Storm {
    target: Target,
    adapter: Arc<Adapter>,
    variables: Variables,
    timeout: Duration,
    retries: usize,
    began: Instant,
    /// False while the server is known to be away.
    is_up: watch::Receiver<bool>,
    pub progress: Progress,
    /// True once half of the units are sold, or half of the buyers have begun.
    pub half: watch::Sender<bool>,
    stock: usize,
    log: Mutex<(Vec<Request>, Counts)>,
}

/// Requests, and their deadline.
pub struct Wave {
    pub asks: Vec<Ask>,
    pub concurrency: usize,
    pub deadline: Instant,
}

impl Storm {
    pub fn new(
        server: &Server,
        config: &Config,
        is_up: watch::Receiver<bool>,
        progress: Progress,
    ) -> Self {
        Self {
            target: server.client.target().clone(),
            adapter: server.adapter.clone(),
            variables: server.variables.clone(),
            timeout: config.timeout,
            retries: config.retries,
            began: Instant::now(),
            is_up,
            progress,
            half: watch::Sender::new(false),
            stock: config.stock,
            log: Mutex::default(),
        }
    }

    fn log(&self) -> MutexGuard<'_, (Vec<Request>, Counts)> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything that was asked so far.
    pub fn requests(&self) -> Vec<Request> {
        self.log().0.clone()
    }

    /// Asks all of it, or what can be begun before the deadline. Answers how much was.
    pub async fn ask_all(self: &Arc<Self>, wave: Wave) -> usize {
        let workers = wave.concurrency.min(wave.asks.len());
        let shared = Arc::new((wave, AtomicUsize::new(0), Barrier::new(workers)));
        let mut tasks = JoinSet::new();
        for _ in 0..workers {
            tasks.spawn(self.clone().work(shared.clone()));
        }
        while tasks.join_next().await.is_some() {}
        shared.1.load(Relaxed).min(shared.0.asks.len())
    }

    async fn work(self: Arc<Self>, shared: Arc<(Wave, AtomicUsize, Barrier)>) {
        let (wave, next, opened) = &*shared;
        let mut client = Client::new(&self.target, self.timeout);
        client.connect().await;
        // All connections are there before the first request is sent.
        opened.wait().await;
        while Instant::now() < wave.deadline {
            let index = next.fetch_add(1, Relaxed);
            let Some(ask) = wave.asks.get(index) else { break };
            if index >= wave.asks.len() / 2 {
                self.half.send_replace(true);
            }
            self.ask(&mut client, ask, wave.deadline).await;
        }
    }

    /// Asks until there is an answer, politely.
    pub async fn ask(&self, client: &mut Client, ask: &Ask, deadline: Instant) {
        let mut is_up = self.is_up.clone();
        for attempt in 0..=self.retries {
            let _ = is_up.wait_for(|is_up| *is_up).await;
            let (means, retry_after) = self.attempt(client, ask).await;
            let is_done = means.is_an_answer() && means != Meaning::ComeAgain;
            if is_done || means == Meaning::Unexpected || Instant::now() >= deadline {
                return;
            }
            if attempt < self.retries {
                let pause = Duration::from_millis(20 << attempt.min(6));
                sleep(retry_after.unwrap_or(pause).min(LONGEST_PAUSE)).await;
            }
        }
    }

    async fn attempt(&self, client: &mut Client, ask: &Ask) -> (Meaning, Option<Duration>) {
        let own = Variables::from([("key".to_owned(), json!(ask.key))]);
        let scope = Scope(&[&self.variables, &ask.buyer.variables, &own]);
        let start_us = self.micros();
        let answer = match client.target().request(&self.adapter.order.request, scope) {
            Ok(request) => client.send(request, ask.is_slow).await,
            Err(why) => Err(NoAnswer::NotSent(why)),
        };
        let mut request = Request {
            user: ask.buyer.name.clone(),
            key: ask.key.clone(),
            phase: ask.phase,
            start_us,
            end_us: self.micros(),
            status: None,
            means: Meaning::Lost,
            order_id: None,
            error: None,
        };
        let mut retry_after = None;
        match answer {
            Ok(reply) => {
                retry_after = reply.retry_after();
                request.status = Some(reply.status);
                (request.means, request.order_id, request.error) =
                    self.adapter.order.meaning(reply.status, &reply.body);
            }
            Err(error) => {
                if matches!(error, NoAnswer::NotSent(_)) {
                    request.means = Meaning::NotSent;
                }
                request.error = Some(error.why());
            }
        }
        let means = request.means;
        self.record(request);
        (means, retry_after)
    }

    fn micros(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn record(&self, request: Request) {
        let mut log = self.log();
        log.1.add(request.means);
        let counts = log.1.clone();
        log.0.push(request.clone());
        drop(log);
        if counts.of(Meaning::Sold) * 2 >= self.stock {
            self.half.send_replace(true);
        }
        (self.progress)(Event::Answered(&request, &counts));
    }
}

/// Tells the keys of one run from those of the next.
pub fn moment() -> u32 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.subsec_nanos())
}
