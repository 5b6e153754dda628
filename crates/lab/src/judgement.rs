//! A server of a visitor's own before the judge, as a lane of the race: stormed, followed, stopped,
//! and forgotten after a while.

use crate::error::{LabError, Result, within};
use crate::{limits::MOST_STOCK, loopback, storm::Storm, tally::Counts};
use judge::history::{Meaning, Phase, Request};
use judge::{Config, Event, report::Report};
use parking_lot::Mutex;
use serde::Deserialize;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;
use uuid::Uuid;
use web::address_limit::Share;

/// How many are remembered, those under way among them.
const MOST_KEPT: usize = 32;
/// How long after its end.
const KEPT: Duration = Duration::from_secs(10 * 60);
/// One that nobody follows for so long is stopped. A page in the background lets go of its stream,
/// and may come back.
const LONGEST_UNFOLLOWED: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = StartJudgement)]
pub struct Wanted {
    /// A server on this machine, by the contract of docs/judge.md.
    #[schema(
        example = "http://127.0.0.1:9000",
        max_length = 200,
        pattern = r"^http://(localhost|127\.[\d.]+|\[[\da-f:]+\])(:\d+)?(/[A-Za-z\d._/-]*)?$"
    )]
    pub url: String,
    #[schema(minimum = 1, maximum = 10_000)]
    pub stock: i64,
    #[schema(minimum = 1, maximum = 100_000)]
    pub buyers: u32,
    #[schema(minimum = 1, maximum = 1_000)]
    pub concurrency: u32,
    /// Of all buyers, how many click twice; 0 if absent.
    #[schema(minimum = 0, maximum = 1)]
    pub duplicate_share: Option<f64>,
}

const LONGEST_URL: usize = 200;

impl Wanted {
    /// And the port of the server.
    pub(crate) fn config(&self, closed: &[u16]) -> Result<(Config, u16)> {
        let Self { url, stock, buyers, concurrency, duplicate_share } = self.clone();
        let invalid = |why: String| LabError::invalid("url", why);
        if url.len() > LONGEST_URL {
            return Err(invalid(format!("must have at most {LONGEST_URL} characters")));
        }
        let port = loopback::check_url(&url, closed).map_err(invalid)?;
        let stock = within::<u32>("stock", stock, MOST_STOCK)? as usize;
        Storm { buyers, concurrency, duplicate_share }.check()?;
        let config = Config {
            url,
            stock,
            buyers: buyers as usize,
            concurrency: concurrency as usize,
            duplicates: duplicate_share.unwrap_or(0.0),
            ..Config::default()
        };
        Ok((config, port))
    }
}

/// Why there is no report, in words.
pub type End = Result<Report, String>;

pub struct Judgement {
    pub id: String,
    pub stock: u64,
    /// What listens on one port of this machine is one server, whatever it is called.
    port: u16,
    /// Stopped, or forgotten.
    pub gone: CancellationToken,
    /// The last of its requests has ended.
    over: CancellationToken,
    pub live: Mutex<Live>,
    pub end: watch::Sender<Option<Arc<End>>>,
}

/// What its buyers have heard so far.
#[derive(Default)]
pub struct Live {
    pub counts: Counts,
    /// How many requests the storm makes, if nobody has to ask again.
    pub planned: u64,
    /// Orders beyond the one that a buyer may have.
    pub beyond: u64,
    orders: HashMap<String, HashSet<Option<String>>>,
}

impl Live {
    fn note(&mut self, event: &Event<'_>) {
        match event {
            Event::Storm(planned) => self.planned = *planned as u64,
            Event::Answered(request, _) => self.add(request),
            _ => {}
        }
    }

    fn add(&mut self, request: &Request) {
        let counts = &mut self.counts;
        if request.phase == Phase::Storm {
            counts.attempts += 1;
            // From 1: a time of 0 is none.
            counts.span(request.start_us as i64 + 1, request.end_us as i64 + 1);
            let took = Duration::from_micros(request.end_us.saturating_sub(request.start_us));
            counts.losers.record(took);
        }
        match request.means {
            Meaning::Sold => {
                let orders = self.orders.entry(request.user.clone()).or_default();
                // The same order may be told of twice: to a key that is known.
                if orders.insert(request.order_id.clone()) {
                    counts.sold += 1;
                    self.beyond += u64::from(orders.len() > 1);
                }
            }
            Meaning::SoldOut | Meaning::AlreadyOrdered => {}
            Meaning::ComeAgain => counts.contended += 1,
            Meaning::Lost | Meaning::NotSent | Meaning::Unexpected => counts.failed += 1,
        }
    }
}

impl Judgement {
    /// `None`: stopped. All its requests end with this.
    async fn judged(self: &Arc<Self>, config: Config, unfollowed: Duration) -> Option<End> {
        // Whatever sends requests holds this.
        let (watched, held) = (self.clone(), self.over.clone().drop_guard());
        let progress = Arc::new(move |event: Event<'_>| {
            let _held = &held;
            watched.live.lock().note(&event);
        });
        tokio::select! {
            judged = judge::run(config, progress) => {
                Some(judged.map(|(report, _)| report).map_err(|error| error.to_string()))
            }
            () = self.gone.cancelled() => None,
            () = self.unfollowed(unfollowed) => None,
        }
    }

    async fn unfollowed(&self, limit: Duration) {
        let mut followed = Instant::now();
        while followed.elapsed() < limit {
            tokio::time::sleep(limit / 60).await;
            if self.end.receiver_count() > 0 {
                followed = Instant::now();
            }
        }
    }
}

/// Those of this process, the oldest first.
#[derive(Clone)]
pub struct Judgements {
    all: Arc<Mutex<VecDeque<Arc<Judgement>>>>,
    /// How long one goes on that nobody follows.
    pub unfollowed: Duration,
}

impl Default for Judgements {
    fn default() -> Self {
        Self { all: Arc::default(), unfollowed: LONGEST_UNFOLLOWED }
    }
}

impl Judgements {
    pub fn find(&self, id: &str) -> Option<Arc<Judgement>> {
        self.all.lock().iter().find(|judgement| judgement.id == id).cloned()
    }

    /// Forgets it once the last of its requests has ended.
    pub async fn stop(&self, id: &str) -> Option<()> {
        let judgement = self.find(id)?;
        judgement.gone.cancel();
        judgement.over.cancelled().await;
        self.forget(id);
        Some(())
    }

    fn forget(&self, id: &str) {
        self.all.lock().retain(|judgement| judgement.id != id);
    }

    /// Judges the server on this port, with this share of the storms.
    pub fn start(&self, config: Config, port: u16, share: Share) -> Result<Arc<Judgement>> {
        let judgement = Arc::new(Judgement {
            id: Uuid::new_v4().simple().to_string(),
            stock: config.stock as u64,
            port,
            gone: CancellationToken::new(),
            over: CancellationToken::new(),
            live: Mutex::default(),
            end: watch::Sender::new(None),
        });
        self.add(judgement.clone())?;
        let (all, started) = (self.clone(), judgement.clone());
        tokio::spawn(async move {
            let end = judgement.judged(config, all.unfollowed).await;
            judgement.over.cancelled().await;
            drop(share);
            if let Some(end) = end {
                judgement.end.send_replace(Some(Arc::new(end)));
                let _ = tokio::time::timeout(KEPT, judgement.gone.cancelled()).await;
            }
            judgement.gone.cancel();
            all.forget(&judgement.id);
        });
        Ok(started)
    }

    fn add(&self, judgement: Arc<Judgement>) -> Result {
        let mut all = self.all.lock();
        let is_running =
            |one: &&Arc<Judgement>| one.port == judgement.port && !one.over.is_cancelled();
        if let Some(running) = all.iter().find(is_running) {
            return Err(LabError::JudgementIsRunning(running.id.clone()));
        }
        all.push_back(judgement);
        while all.len() > MOST_KEPT {
            // Fewer storms than this are under way.
            let Some(index) = all.iter().position(|one| one.end.borrow().is_some()) else { break };
            if let Some(oldest) = all.remove(index) {
                oldest.gone.cancel();
            }
        }
        Ok(())
    }

    pub fn close(&self) {
        self.all.lock().drain(..).for_each(|judgement| judgement.gone.cancel());
    }
}
