//! How long after its 202 an order is a durable row, with people coming at 80 % of what the machine
//! can do. A row is seen by the watcher only after its commit, which is on disk by then
//! (`synchronous_commit` is on); the bias is in the notes of the result.

use crate::load::{Follower, Requests, Run, Schedule, Seen, histogram, milliseconds, quantiles};
use crate::report::{Bound, Section, median, thousands};
use crate::stage::{PAUSE, Stage, Target};
use crate::{Options, Result, process::Workspace, scenarios::ACCEPTED};
use flash_sale::{domain::OrderId, orders::queries, postgres::Pool};
use hdrhistogram::Histogram;
use serde_json::json;
use std::time::{Duration, Instant};
use std::{collections::HashMap, sync::Arc};
use tokio::sync::mpsc;

/// At which share of the most people come.
const SHARE: f64 = 0.8;
/// Rows that are watched a second: enough for a p99, few enough to cost little.
const WATCHED_PER_SECOND: f64 = 1_000.0;
/// How long one run lasts.
const SECONDS: f64 = 5.0;
/// People begin to come so long after the connections are made.
const LEAD: Duration = Duration::from_millis(500);
/// The purchases of a closed run that finds the most.
const CLOSED: usize = 100_000;
const WITHIN_MS: f64 = 50.0;

pub async fn run(options: &Options, workspace: &Workspace) -> Result<Section> {
    let mut stage = Stage::new(options, workspace)?;
    let target = stage.serve("durable", "always", "off")?;
    let stores = workspace.stores("durable").await?;

    let count = options.scaled(CLOSED);
    stage.sell_some("warming up", &target, count / 2).await?;
    let mut most = Vec::new();
    for _ in 0..3 {
        let run = stage.sell_some("the most", &target, count).await?;
        most.push(run.requests as f64 / (run.seconds + run.drain_seconds.unwrap_or(0.0)));
    }
    let most = median(most.into_iter()).ok_or("nothing was measured")?;
    let rate = most * SHARE;
    let (most_text, rate_text) = (thousands(most), thousands(rate));
    eprintln!("the most: {most_text}/s; people come at {rate_text}/s");

    let headings = ["", "p50 ms", "p95", "p99", "p99.9", "max", "orders"];
    let mut section = Section::new("durable", "From the 202 to the durable row", &headings);
    let (mut lags, mut answers) = (histogram(), histogram());
    let mut rounds = Vec::new();
    for round in 1..=options.rounds() {
        let (run, seen) = come(&mut stage, &target, &stores.postgres, rate).await?;
        let (row, answer) = (milliseconds(&seen.lags, 0.99), milliseconds(&run.latency, 0.99));
        let watched = seen.lags.len();
        eprintln!(
            "round {round}: p99 {row:.1} ms until the row of {watched}, answer {answer:.1} ms"
        );
        if seen.lost > 0 {
            let what = format!("{} orders were answered 202 and never seen as rows", seen.lost);
            stage.fail("durable", what);
        }
        let row_after_202 = quantiles(&seen.lags, serde_json::value::Serializer)?;
        rounds.push(json!({"row_after_202_ms": row_after_202, "run": run}));
        lags.add(&seen.lags)?;
        answers.add(&run.latency)?;
    }
    stores.close().await;
    let named = [("from the 202 to the row", &lags), ("from the click to the 202", &answers)];
    for (what, histogram) in named {
        let at = |quantile| format!("{:.2}", milliseconds(histogram, quantile));
        let quantiles = [0.5, 0.95, 0.99, 0.999, 1.0].map(at);
        let count = thousands(histogram.len() as f64);
        section.row([&[what.to_owned()][..], &quantiles, &[count]].concat());
    }
    section.note(format!(
        "People come at {rate_text}/s, {:.0} % of the {most_text}/s that closed loops of {} \
         connections sold and wrote; {} rounds of {SECONDS} s.",
        SHARE * 100.0,
        options.connections,
        options.rounds(),
    ));
    section.note(
        "The row is timed when a watcher, who asks about once a millisecond, first sees it \
         committed: too late by up to one question. The 202 is timed when the generator has read \
         it. The click is timed when it was due, not when a connection was free for it.",
    );
    let what = "p99 from the 202 to the durable row, ms";
    section.goal(what, Bound::AtMost(WITHIN_MS), milliseconds(&lags, 0.99));
    section.failures = stage.finish([target].iter_mut());
    section.figures = json!({"most_per_second": most, "rate_per_second": rate, "rounds": rounds});
    Ok(section)
}

/// One run at a fixed rate, watched.
async fn come(
    stage: &mut Stage<'_>,
    target: &Target,
    postgres: &Pool,
    rate: f64,
) -> Result<(Run, Watched)> {
    const NAME: &str = "by the clock";
    let count = (rate * SECONDS) as usize;
    let sale = target.client.create_sale(NAME, count * 2).await?;
    let requests = Requests::purchases(target.process.address, &sale, &stage.tokens(count), true);
    let (tell, seen) = mpsc::unbounded_channel();
    let every = ((rate / WATCHED_PER_SECOND) as usize).max(1);
    let mut load = stage.load(target.process.address, &Arc::new(requests), count, ACCEPTED);
    load.schedule = Some(Schedule { begin: Instant::now() + PAUSE + LEAD, per_second: rate });
    load.follower = Some(Follower { every, tell });
    let (run, watched) = tokio::join!(stage.sell(NAME, target, &sale, load), watch(postgres, seen));
    Ok((run?, watched?))
}

struct Watched {
    /// Nanoseconds from the answer to the row.
    lags: Histogram<u64>,
    /// Orders that never became rows.
    lost: usize,
}

/// Follows orders until all of them are rows and nobody is left to tell of more.
async fn watch(postgres: &Pool, mut seen: mpsc::UnboundedReceiver<Seen>) -> Result<Watched> {
    const LOST_AFTER: Duration = Duration::from_secs(30);
    let mut lags = histogram();
    let mut missing: HashMap<OrderId, Instant> = HashMap::new();
    let mut last_news = Instant::now();
    loop {
        // Asked before the rest is read, to which nobody adds then.
        let ended = seen.is_closed();
        while let Ok(answer) = seen.try_recv() {
            missing.insert(OrderId::from_i64(answer.order_id), answer.answered);
            last_news = Instant::now();
        }
        if !missing.is_empty() {
            let ids: Vec<i64> = missing.keys().map(|id| id.get()).collect();
            let found = queries::existing(postgres, &ids).await?;
            let now = Instant::now();
            for answered in found.iter().filter_map(|id| missing.remove(id)) {
                let lag = now.saturating_duration_since(answered).as_nanos();
                lags.saturating_record(u64::try_from(lag).unwrap_or(u64::MAX));
            }
        }
        let lost = missing.len();
        if ended && (lost == 0 || last_news.elapsed() > LOST_AFTER) {
            return Ok(Watched { lags, lost });
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
