//! How long after its 202 an order is a durable row, with people coming at 80 % of what the machine can do.
//!
//! **Method.** First the most that the machine sells is found in closed loops: orders over the time until
//! the last of them is a row. Then people come at a fixed share of it, whether the answers before them
//! have come or not (`load.rs`). Of every so-many-th order a watcher notes when its row is first seen in
//! Postgres, asking for all that are missing about once a millisecond. A row is seen by others only after
//! its commit, and a commit has been flushed to disk by then (`synchronous_commit` is on).
//!
//! **Bias.** Upwards: the watcher sees a row at its next question only, and its questions cost Postgres
//! some work and wait for a processor like everybody else. Downwards: the 202 counts from when the
//! generator has read it, which on a busy machine is after it was sent.

use crate::{
    Error, Options,
    load::{Follower, Schedule, Seen, histogram},
    process::{self, Process, Workspace},
    section::{Bound, Section, median, thousands},
    stage::{Run, Sell, Stage, Target},
};
use flash_sale::postgres::Pool;
use flash_sale::{domain::OrderId, sale::orders};
use hdrhistogram::Histogram;
use serde_json::json;
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};
use tokio::sync::mpsc;

/// Rows that are watched a second: enough for a p99, few enough to cost little.
const WATCHED_PER_SECOND: f64 = 1_000.0;
/// How long one run lasts.
const SECONDS: f64 = 5.0;
/// People begin to come so long after the connections are made.
const LEAD: Duration = Duration::from_millis(500);
/// The purchases of a closed run that finds the most.
const CLOSED: usize = 100_000;
const WITHIN_MS: f64 = 50.0;

pub async fn run(options: &Options, workspace: &Workspace) -> Result<Section, Error> {
    let mut stage = Stage::new(options, workspace)?;
    let target = stage.serve("durable", &[("REDIS_FSYNC", "always"), ("LAB", "off")])?;
    let stores = process::stores(&Process::data_dir(workspace, "durable"), "").await?;

    let count = options.scaled(CLOSED);
    stage.sell_some("warming up", &target, count / 2).await?;
    let mut most = Vec::new();
    for _ in 0..3 {
        let (_, run) = stage.sell_some("the most", &target, count).await?;
        most.push(run.requests as f64 / (run.seconds + run.drain_seconds.unwrap_or(0.0)));
    }
    let most = median(most.into_iter()).ok_or("nothing was measured")?;
    let rate = most * options.share;
    eprintln!(
        "the most: {}/s; people come at {}/s",
        thousands(most),
        thousands(rate)
    );

    let headings = ["", "p50 ms", "p95", "p99", "p99.9", "max", "orders"];
    let title = "From the 202 to the durable row";
    let mut section = Section::new("durable", title, &headings);
    let (mut lags, mut answers) = (histogram(), histogram());
    let mut rounds = Vec::new();
    for round in 0..options.rounds() {
        let (run, seen) = come(&mut stage, &target, &stores.postgres, rate).await?;
        eprintln!(
            "round {}: p99 {:.1} ms until the row, {:.1} ms until the answer, {} watched",
            round + 1,
            milliseconds(&seen.lags, 0.99),
            run.milliseconds(0.99),
            seen.lags.len()
        );
        if seen.lost > 0 {
            let what = format!(
                "{} orders were answered 202 and never seen as rows",
                seen.lost
            );
            stage.fail("durable", &what);
        }
        rounds.push(json!({
            "per_second": run.per_second(),
            "row_after_202_ms": quantiles(&seen.lags),
            "answer_after_due_ms": quantiles(&run.latency),
            "looks": seen.looks,
            "batch_size": run.batch_size,
            "rows_per_transaction": run.write_size,
        }));
        lags.add(&seen.lags)?;
        answers.add(&run.latency)?;
    }
    stores.close().await;
    for (what, histogram) in [
        ("from the 202 to the row", &lags),
        ("from the click to the 202", &answers),
    ] {
        let at = |quantile| format!("{:.2}", milliseconds(histogram, quantile));
        let count = thousands(histogram.len() as f64);
        section.row([
            what.to_owned(),
            at(0.5),
            at(0.95),
            at(0.99),
            at(0.999),
            at(1.0),
            count,
        ]);
    }
    section.note(format!(
        "People come at {}/s, {:.0} % of the {}/s that closed loops of {} connections sold and wrote; {} rounds of {SECONDS} s.",
        thousands(rate),
        options.share * 100.0,
        thousands(most),
        options.connections,
        options.rounds(),
    ));
    section.note(
        "The row is timed when a watcher, who asks about once a millisecond, first sees it committed: too late by up to \
         one question. The 202 is timed when the generator has read it. The click is timed when it was due, not when a \
         connection was free for it.",
    );
    let what = "p99 from the 202 to the durable row, ms";
    section.goal(what, Bound::AtMost(WITHIN_MS), milliseconds(&lags, 0.99));
    stage.check_alive([target].iter_mut());
    section.failures = stage.failures;
    section.figures = json!({
        "most_per_second": most,
        "share": options.share,
        "rate_per_second": rate,
        "row_after_202_ms": quantiles(&lags),
        "answer_after_due_ms": quantiles(&answers),
        "rounds": rounds,
    });
    Ok(section)
}

fn milliseconds(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile) as f64 / 1e6
}

fn quantiles(histogram: &Histogram<u64>) -> serde_json::Value {
    let at = |quantile| milliseconds(histogram, quantile);
    json!({"p50": at(0.5), "p95": at(0.95), "p99": at(0.99), "p999": at(0.999), "max": at(1.0), "count": histogram.len()})
}

/// One run at a fixed rate, watched.
async fn come(
    stage: &mut Stage<'_>,
    target: &Target,
    postgres: &Pool,
    rate: f64,
) -> Result<(Run, Watched), Error> {
    let count = (rate * SECONDS) as usize;
    let users = stage.users(count);
    let sale = target.client.create_sale("by the clock", count * 2).await?;
    let requests = stage.purchases(target.address(), &sale, &users);
    let (tell, seen) = mpsc::unbounded_channel();
    let every = ((rate / WATCHED_PER_SECOND) as usize).max(1);
    let connections = stage.connections();
    let selling = stage.sell(Sell {
        name: "by the clock",
        target,
        sale: &sale,
        requests,
        count,
        connections,
        schedule: Some(Schedule {
            begin: Instant::now() + crate::stage::PAUSE + LEAD,
            per_second: rate,
        }),
        follower: Some(Follower { every, tell }),
    });
    let (run, watched) = tokio::join!(selling, watch(postgres, seen));
    Ok((run?, watched?))
}

struct Watched {
    /// Nanoseconds from the answer to the row.
    lags: Histogram<u64>,
    looks: usize,
    /// Orders that never became rows.
    lost: usize,
}

/// Follows orders until all of them are rows and nobody is left to tell of more.
async fn watch(postgres: &Pool, mut seen: mpsc::UnboundedReceiver<Seen>) -> Result<Watched, Error> {
    const PATIENCE: Duration = Duration::from_secs(30);
    let mut watched = Watched {
        lags: histogram(),
        looks: 0,
        lost: 0,
    };
    let mut missing: HashMap<OrderId, Instant> = HashMap::new();
    let mut last_news = Instant::now();
    loop {
        let mut ended = false;
        loop {
            match seen.try_recv() {
                Ok(answer) => {
                    missing.insert(OrderId::from_i64(answer.order_id), answer.answered);
                    last_news = Instant::now();
                }
                Err(mpsc::error::TryRecvError::Empty) => break,
                Err(mpsc::error::TryRecvError::Disconnected) => {
                    ended = true;
                    break;
                }
            }
        }
        if missing.is_empty() {
            if ended {
                return Ok(watched);
            }
        } else {
            let ids: Vec<i64> = missing.keys().map(|id| id.get()).collect();
            let found = orders::existing(postgres, &ids).await?;
            let now = Instant::now();
            watched.looks += 1;
            for id in found {
                if let Some(answered) = missing.remove(&id) {
                    let lag = now.saturating_duration_since(answered);
                    let lag = u64::try_from(lag.as_nanos()).unwrap_or(u64::MAX);
                    watched.lags.saturating_record(lag);
                }
            }
            if ended && last_news.elapsed() > PATIENCE {
                watched.lost = missing.len();
                return Ok(watched);
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
