//! After the storm: who was left out asks again while units are left, everything comes to rest,
//! and the last to ask ask alone, so that a refusal proves something.

use crate::config::Config;
use crate::event::Event;
use crate::history::{History, Meaning, Phase, Request, Run, Stored};
use crate::report::Doubts;
use crate::server::Server;
use crate::storm::{Ask, Buyer, Storm, Wave};
use crate::verdict::{self, Code};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Refusals of buyers who asked alone, after which nobody else is asked.
const LAST_CALLS: usize = 3;
/// Requests that are sent again after the storm.
const REPEATED: usize = 10;
/// How long, and how many readings, nothing may change even when nothing is wrong; and if
/// something may still be under way.
const QUIET: (Duration, usize) = (Duration::from_millis(500), 2);
const LONG_QUIET: (Duration, usize) = (Duration::from_secs(2), 3);
const MOST_ROUNDS: u32 = 20;
/// Fewer at a time than in the storm.
const POLITE: usize = 8;

pub(crate) struct Closing<'a> {
    pub server: Server,
    pub storm: Arc<Storm>,
    pub run: Run,
    pub buyers: &'a [Arc<Buyer>],
    pub config: &'a Config,
}

impl Closing<'_> {
    pub async fn close(&mut self) -> (History, Doubts) {
        let mut doubts = Doubts::default();
        let deadline = Instant::now() + self.config.time_limit + self.config.settle();
        self.repeat(deadline).await;
        self.ask_again(deadline).await;
        let mut rest = self.settle(deadline).await;
        if rest.is_ok() && self.last_call(deadline, rest.as_ref().ok()).await {
            rest = self.settle(deadline + self.config.settle()).await;
        }
        let stored = rest.map_err(|why| doubts.reasons.push(why)).ok();
        let history = self.history(stored);
        doubts.look_at(&history);
        (history, doubts)
    }

    fn history(&self, stored: Option<Stored>) -> History {
        History { run: self.run.clone(), requests: self.storm.requests(), stored }
    }

    async fn look(&mut self) -> Result<History, String> {
        let stored = self.server.stored().await?;
        Ok(self.history(Some(stored)))
    }

    /// The buyers who have nothing, with a key that no earlier answer belongs to.
    fn left_out(&self, history: &History, phase: Phase, round: u32) -> Vec<Ask> {
        let buyers = self.by_name();
        let suffix = if phase == Phase::Again { "again" } else { "last" };
        let keys: HashMap<&str, &str> = (history.requests.iter())
            .map(|request| (request.user.as_str(), request.key.as_str()))
            .collect();
        let ask = |user: &str| {
            let base = keys.get(user)?.split('~').next()?;
            let key = format!("{base}~{suffix}{round}");
            Some(Ask { buyer: (*buyers.get(user)?).clone(), key, is_slow: false, phase })
        };
        verdict::unserved(history).into_iter().filter_map(ask).collect()
    }

    /// Some of those who were sold a unit send the same request again, as a client does that has
    /// lost the answer.
    async fn repeat(&mut self, deadline: Instant) {
        let buyers = self.by_name();
        let again = |request: Request| {
            let buyer = (*buyers.get(request.user.as_str())?).clone();
            Some(Ask { buyer, key: request.key, is_slow: false, phase: Phase::Again })
        };
        let requests = self.storm.requests().into_iter();
        let sold = requests.filter(|request| request.means == Meaning::Sold);
        let few = if self.config.duplicates > 0.0 && self.run.keyed { REPEATED } else { 0 };
        let asks = sold.filter_map(again).take(few).collect();
        let wave = Wave { asks, concurrency: POLITE, deadline };
        self.storm.ask_all(wave).await;
    }

    fn by_name(&self) -> HashMap<&str, &Arc<Buyer>> {
        self.buyers.iter().map(|buyer| (buyer.name.as_str(), buyer)).collect()
    }

    /// Rounds of a few buyers each, as long as a round sells something.
    async fn ask_again(&mut self, deadline: Instant) {
        let mut before = usize::MAX;
        for round in 0..MOST_ROUNDS {
            let Ok(history) = self.look().await else { return };
            let left = verdict::left(&history);
            let mut asks = self.left_out(&history, Phase::Again, round);
            if left == 0 || left == before || asks.is_empty() || Instant::now() > deadline {
                return;
            }
            before = left;
            (self.storm.progress)(Event::Again(left));
            asks.truncate(left.saturating_mul(2).max(16));
            let wave = Wave { asks, concurrency: POLITE, deadline };
            self.storm.ask_all(wave).await;
        }
    }

    /// Whether a request was sent.
    async fn last_call(&mut self, deadline: Instant, stored: Option<&Stored>) -> bool {
        let mut history = self.history(stored.cloned());
        let (mut refused, mut asked) = (HashSet::new(), false);
        while refused.len() < LAST_CALLS && Instant::now() < deadline {
            let asks = self.left_out(&history, Phase::LastCall, 0);
            let next = asks.into_iter().find(|ask| !refused.contains(&ask.buyer.name));
            let Some(ask) = next.filter(|_| verdict::left(&history) > 0) else { break };
            let storm = self.storm.clone();
            storm.ask(&mut self.server.client, &ask, deadline).await;
            asked = true;
            history.requests = storm.requests();
            refused.insert(ask.buyer.name.clone());
            refused.retain(|name| verdict::unserved(&history).contains(&name.as_str()));
        }
        asked
    }

    /// How long what is right has to stay so: a server may still be working on a request that it
    /// has not answered, put off or only accepted.
    fn quiet(&self) -> (Duration, usize) {
        let may_work = |request: &Request| match request.means {
            Meaning::Lost | Meaning::Unexpected | Meaning::ComeAgain => true,
            means => means == Meaning::Sold && request.status == Some(202),
        };
        let is_long = self.storm.requests().iter().any(may_work);
        let (quiet, readings) = if is_long { LONG_QUIET } else { QUIET };
        (self.config.settle().min(quiet), readings)
    }

    /// The stored orders at rest: right, and still so after a moment; or wrong and unchanged for
    /// all of `--settle`, as a server may be late.
    async fn settle(&mut self, deadline: Instant) -> Result<Stored, (Code, String)> {
        let (mut last, mut same): (Option<Stored>, usize) = (None, 0);
        let (mut changed, mut read) = (Instant::now(), Instant::now());
        let (settle, (quiet, readings)) = (self.config.settle(), self.quiet());
        loop {
            let found = self.look().await;
            let waited = changed.elapsed();
            let is_late = Instant::now() > deadline;
            match found {
                Err(why) if is_late || read.elapsed() >= settle.max(LONG_QUIET.0) => {
                    return Err((Code::NotRead, format!("what is stored cannot be read: {why}")));
                }
                Err(_) => {}
                Ok(history) => {
                    read = Instant::now();
                    let is_missing =
                        verdict::left(&history) > 0 && !verdict::unserved(&history).is_empty();
                    let is_right = !is_missing && verdict::findings(&history).is_empty();
                    let stored = history.stored.unwrap_or_default();
                    (self.storm.progress)(Event::Settling(stored.orders.len()));
                    if last.as_ref() == Some(&stored) {
                        same += 1;
                        let is_quiet = is_right && waited >= quiet && same >= readings;
                        if is_quiet || waited >= settle {
                            return Ok(stored);
                        }
                    } else {
                        (changed, same) = (Instant::now(), 0);
                        last = Some(stored);
                    }
                    if is_late {
                        let why = "stored orders were still changing at the end".to_owned();
                        return Err((Code::NotAtRest, why));
                    }
                }
            }
            sleep((waited / 4).clamp(Duration::from_millis(20), Duration::from_millis(500))).await;
        }
    }
}
