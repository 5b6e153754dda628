//! One run from the setup to the verdict.

use crate::adapter::{Adapter, BadAdapter};
use crate::client::{Client, Target};
use crate::closing::Closing;
use crate::config::{Config, PREPARING};
use crate::event::{Event, Progress};
use crate::faults;
use crate::history::{History, Phase, Run};
use crate::report::Report;
use crate::server::{Probe, Server, capture};
use crate::stored::Sql;
use crate::storm::{Ask, Buyer, Storm, Wave};
use crate::template::{Variables, scalar};
use crate::verdict::{self, Code};
use serde_json::json;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, timeout};

/// Why there is no verdict.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Adapter(#[from] BadAdapter),
    #[error("{0}")]
    Server(String),
    #[error("--orders-sql: {0}")]
    Sql(String),
    #[error("{0}")]
    Command(String),
}

/// Storms the server and judges it. Dropping the future ends everything but a started server.
/// Only requests are sent on the caller's threads: to compare what is stored takes time.
pub async fn run(config: Config, progress: Progress) -> Result<(Report, History), Error> {
    let longest = config.longest();
    let late = || Error::Server(format!("no verdict within {} s", longest.as_secs()));
    let (_wanted, dropped) = oneshot::channel::<()>();
    let runtime = Handle::current();
    let work = move || {
        runtime.block_on(async {
            tokio::select! {
                judged = timeout(longest, judged(config, progress)) => judged.ok(),
                _ = dropped => None,
            }
        })
    };
    let done = spawn_blocking(work).await.map_err(|error| Error::Server(error.to_string()))?;
    done.unwrap_or_else(|| Err(late()))
}

async fn judged(config: Config, progress: Progress) -> Result<(Report, History), Error> {
    let adapter = match &config.adapter {
        Some(adapter) => adapter.clone(),
        None => Adapter::contract()?,
    };
    let mut variables = adapter.environment()?;
    variables.insert("stock".to_owned(), json!(config.stock));
    let target = Target::find(&config.url, config.allow_remote).await.map_err(Error::Server)?;
    let sql = config.orders_sql.as_ref().map(|sql| Sql::parse(sql, config.allow_remote));
    let sql = sql.transpose().map_err(Error::Sql)?;
    let (client, adapter) = (Client::new(&target, config.timeout), Arc::new(adapter));
    let mut server = Server { client, adapter, sql, variables };
    server.set_up(&progress).await.map_err(Error::Server)?;
    server.starts_empty(config.stock).await.map_err(Error::Server)?;
    let prepared = timeout(PREPARING, prepare(&target, &server, &config, &progress)).await;
    let late = |_| Err(format!("the buyers were not prepared within {} s", PREPARING.as_secs()));
    let buyers = prepared.unwrap_or_else(late).map_err(Error::Server)?;

    let (is_up, watch_up) = watch::channel(true);
    let storm = Arc::new(Storm::new(&server, &config, watch_up, progress.clone()));
    let asks = asks(&buyers, &config, server.adapter.per_user.min(config.stock));
    let planned = asks.len();
    progress(Event::Storm(planned));
    let deadline = Instant::now() + config.time_limit;
    let wave = Wave { asks, concurrency: config.concurrency, deadline };
    let fault = break_it(&server, &config, storm.half.subscribe(), is_up, &progress);
    let asked = async {
        let asked = storm.ask_all(wave).await;
        // It may have ended before its half.
        storm.half.send_replace(true);
        Ok(asked)
    };
    let (asked, ()) = tokio::try_join!(asked, fault)?;

    let (per_user, keyed) = (server.adapter.per_user, server.adapter.order.request.is_keyed());
    let run = Run { server: config.url.clone(), stock: config.stock, per_user, keyed };
    let mut closing = Closing { server, storm, run, buyers: &buyers, config: &config };
    let (history, mut doubts) = closing.close().await;
    if asked < planned {
        let limit = config.time_limit.as_secs_f64();
        let why = format!("after {limit} s only {asked} of {planned} requests had been begun");
        // Those who were not asked could have bought them.
        let is_sold_out = verdict::left(&history) == 0;
        match is_sold_out {
            true => doubts.notes.push(why),
            false => doubts.reasons.push((Code::NotAsked, why)),
        }
    }
    Ok((Report::of(&history, doubts), history))
}

/// The buyers, each after the calls of its own.
async fn prepare(
    target: &Target,
    server: &Server,
    config: &Config,
    progress: &Progress,
) -> Result<Vec<Arc<Buyer>>, String> {
    let named = |number: usize| {
        let name = json!(format!("u{number}"));
        [("user".to_owned(), name), ("number".to_owned(), json!(number))].into()
    };
    let workers = if server.adapter.buyer.is_empty() { 1 } else { config.concurrency };
    let mut tasks = JoinSet::new();
    for worker in 0..workers {
        let (adapter, variables) = (server.adapter.clone(), server.variables.clone());
        let (progress, all) = (progress.clone(), config.buyers);
        let mut client = Client::new(target, config.timeout);
        tasks.spawn(async move {
            let mut buyers = Vec::new();
            for number in (worker..all).step_by(workers) {
                let mut own: Variables = named(number);
                for (index, call) in adapter.buyer.iter().enumerate() {
                    let (scope, member) = ([&variables, &own], format!("buyer[{index}]"));
                    let found = capture(&mut client, call, &scope, &member).await?;
                    own.extend(found);
                }
                let name = own.get("user").and_then(scalar).unwrap_or_default();
                buyers.push((number, Arc::new(Buyer { name, variables: own })));
                if worker == 0 && !adapter.buyer.is_empty() {
                    progress(Event::Prepared(number + 1, all));
                }
            }
            Ok::<_, String>(buyers)
        });
    }
    let mut buyers = Vec::with_capacity(config.buyers);
    while let Some(done) = tasks.join_next().await {
        buyers.extend(done.map_err(|error| error.to_string())??);
    }
    buyers.sort_unstable_by_key(|(number, _)| *number);
    let mut names = HashSet::from([""]);
    if let Some((_, buyer)) = buyers.iter().find(|(_, buyer)| !names.insert(&buyer.name)) {
        let name = &buyer.name;
        return Err(format!("buyer: capture.user: {name:?} is not the name of just one buyer"));
    }
    Ok(buyers.into_iter().map(|(_, buyer)| buyer).collect())
}

/// Spread evenly, and the same in every run.
fn is_chosen(number: usize, share: f64, salt: f64) -> bool {
    (number as f64 * 0.618_033_988_749_895 + salt).fract() < share
}

pub(crate) fn clicks_twice(number: usize, config: &Config) -> bool {
    is_chosen(number, config.duplicates, 0.0)
}

/// Second clicks stand beside the first ones, so that they are under way together. Every other
/// buyer who clicks twice repeats the key; the others ask for one more than they may have.
fn asks(buyers: &[Arc<Buyer>], config: &Config, per_user: usize) -> Vec<Ask> {
    let run = std::process::id() ^ crate::storm::moment();
    let (mut asks, mut twice) = (Vec::new(), 0);
    for (number, buyer) in buyers.iter().enumerate() {
        let ask = |tab: usize| Ask {
            buyer: buyer.clone(),
            key: format!("judge-{run:08x}-{number}-{tab}"),
            is_slow: is_chosen(number + tab, config.slow_client, 0.5),
            phase: Phase::Storm,
        };
        asks.push(ask(0));
        if clicks_twice(number, config) {
            match twice % 2 {
                0 => asks.push(ask(0)),
                _ => asks.extend((1..=per_user).map(ask)),
            }
            twice += 1;
        }
    }
    asks
}

const NO_PROOF: &str = "only a new connection that is refused or breaks shows that it is gone";

/// Kills the server in the middle of the storm, and starts it again.
async fn break_it(
    server: &Server,
    config: &Config,
    mut is_half: watch::Receiver<bool>,
    is_up: watch::Sender<bool>,
    progress: &Progress,
) -> Result<(), Error> {
    let Some(command) = &config.kill else { return Ok(()) };
    let _ = is_half.wait_for(|is_half| *is_half).await;
    let probe = Probe::of(server).map_err(Error::Server)?;
    let no_proof = |why: &str| Error::Command(format!("the server {why} --kill: {NO_PROOF}"));
    if probe.turns_away(config.timeout).await {
        return Err(no_proof("turns new connections away before"));
    }
    // Watched while it is killed: a supervisor may start it again in a moment.
    let (watching, mut watch) = (probe.clone(), JoinSet::new());
    watch.spawn(async move { watching.gone().await });
    faults::kill(command).await.map_err(Error::Command)?;
    is_up.send_replace(config.start.is_none());
    let gone = timeout(faults::GONE, watch.join_next()).await;
    gone.map_err(|_| no_proof("still answers after"))?;
    progress(Event::Killed);
    let Some(command) = &config.start else { return Ok(()) };
    let mut started = faults::start(command).map_err(Error::Command)?;
    let deadline = Instant::now() + faults::LIMIT;
    while probe.answers(config.timeout).await != Some(true) {
        if let Some(why) = started.failure() {
            return Err(Error::Command(why));
        }
        if Instant::now() > deadline {
            return Err(Error::Command(started.because("no answer from the server")));
        }
        sleep(Duration::from_millis(50)).await;
    }
    // Another server may have answered in its place.
    if let Some(why) = started.failure() {
        return Err(Error::Command(why));
    }
    started.forget();
    is_up.send_replace(true);
    progress(Event::Started);
    Ok(())
}
