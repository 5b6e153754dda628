//! The opening moment: twenty thousand people wait, connected, and click within a tenth of a second.
//!
//! **Method.** The clicks are due evenly over 100 ms, the first of them 20 ms before `opens_at`, each on a
//! connection of its own. Who is too early must hear `not_open` (and does not come back here), the first
//! of the others get what there is, the rest hear `sold_out`. Every answer is compared with the rows:
//! `created_at` is Redis' time of the admission.
//!
//! **First come.** A batch is judged in the order in which its buyers joined the queue, and its order ids
//! are given out in that order. The order in which people joined is the server's; here only the order in
//! which they sent is known, and two threads of the server read thousands of sockets in turns. So this
//! reports by how much anybody was overtaken within a batch; that a batch keeps the queue's order exactly
//! is an integration test (`tests/it/admission.rs`).
//!
//! One server may not be able to hold so many connections (the limit of open files): then as many
//! instances as needed share the stores.

use crate::{
    Error, Options, cpu,
    growth::{all_know, join},
    load::{Follower, Load, Requests, Schedule, Seen, histogram},
    process::{self, Process, Workspace},
    section::{Section, thousands},
    stage::{ACCEPTED, NOT_OPEN, PAUSE, Run, SOLD_OUT, Stage, Target, quiescent_audit},
};
use flash_sale::{
    domain::{OrderId, SaleId, SaleState},
    http::{ConnectionLimits, server::raise_descriptor_limit},
};
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::sync::mpsc;

const PEOPLE: usize = 20_000;
/// Of so many people one gets something.
const ONE_IN: usize = 4;
const EARLY: Duration = Duration::from_millis(20);
const WITHIN: Duration = Duration::from_millis(100);
/// For making the connections. The server gives an idle one up after 15 s.
const LEAD: Duration = Duration::from_secs(10);
/// If the first click comes later than this, the generator was not ready.
const READY: Duration = Duration::from_millis(50);

pub async fn run(options: &Options, workspace: &Workspace) -> Result<Section, Error> {
    let mut stage = Stage::new(options, workspace)?;
    let people = options.crowd(PEOPLE);
    let most = ConnectionLimits::most_with(raise_descriptor_limit());
    let instances = people.div_ceil(most);
    let first = stage.serve("opening", &[("REDIS_FSYNC", "always"), ("LAB", "off")])?;
    let others = join(&stage, workspace, "opening", instances - 1)?;
    let targets: Vec<&Target> = std::iter::once(&first).chain(&others).collect();
    let headings = [
        "",
        "won",
        "too early",
        "sold out",
        "p50 ms",
        "p99",
        "max",
        "first row ms after opening",
        "batch overtaken p99 ms",
        "max",
    ];
    let mut section = Section::new("opening", "The opening moment", &headings);
    stage.sell_some("warming up", &first, 20_000).await?;
    let mut figures = Vec::new();
    for round in 0..options.rounds().min(3) {
        let mut tries = 3;
        let opened = loop {
            if let Some(opened) = open(&mut stage, workspace, &targets, people).await? {
                break opened;
            }
            tries -= 1;
            if tries == 0 {
                return Err(
                    "the generator never had its connections when the sale opened: this machine is too busy, or take \
                     fewer with --crowd"
                        .into(),
                );
            }
            eprintln!("the generator was late; once more");
        };
        let at = |quantile| format!("{:.1}", opened.run.milliseconds(quantile));
        let ms = |histogram: &Histogram<u64>, quantile| {
            format!("{:.1}", histogram.value_at_quantile(quantile) as f64 / 1e6)
        };
        let kinds = &opened.run.kinds;
        section.row([
            format!("round {}", round + 1),
            kinds[0].to_string(),
            kinds[2].to_string(),
            kinds[1].to_string(),
            at(0.5),
            at(0.99),
            at(1.0),
            opened.first_row_ms.to_string(),
            ms(&opened.overtaken, 0.99),
            ms(&opened.overtaken, 1.0),
        ]);
        figures.push(opened.json());
    }
    let memory = targets
        .iter()
        .filter_map(|target| cpu::peak_memory(target.process.pid()));
    section.note(format!(
        "{} people on {instances} instance(s), one connection each; clicks due evenly from {} ms before opens_at on, \
         within {} ms. Latency counts from when a click was due; the generator needs a processor to send it. Resident \
         memory of the instances at most {} MiB together.",
        thousands(people as f64),
        EARLY.as_millis(),
        WITHIN.as_millis(),
        memory.sum::<u64>() >> 20
    ));
    section.note(
        "Batch overtaken: for winners of one batch, how much later than they somebody had clicked who stands before them.",
    );
    section.failures = stage.failures;
    section.figures = json!({"people": people, "instances": instances, "rounds": figures});
    Ok(section)
}

struct Opened {
    run: Run,
    /// From opens_at to the first admission, by Redis' clock.
    first_row_ms: i128,
    /// Nanoseconds.
    overtaken: Histogram<u64>,
    batches: usize,
}

impl Opened {
    fn json(&self) -> Value {
        let overtaken = |quantile| self.overtaken.value_at_quantile(quantile) as f64 / 1e6;
        json!({
            "won": self.run.kinds[0],
            "sold_out": self.run.kinds[1],
            "not_open": self.run.kinds[2],
            "latency_us": crate::report::latency_json(&self.run.latency),
            "first_row_ms_after_opening": i64::try_from(self.first_row_ms).unwrap_or(i64::MAX),
            "batches": self.batches,
            "overtaken_in_batch_ms": {"p50": overtaken(0.5), "p99": overtaken(0.99), "max": overtaken(1.0)},
        })
    }
}

/// One opening; `None` if the generator was not ready for it, which then says nothing.
async fn open(
    stage: &mut Stage<'_>,
    workspace: &Workspace,
    targets: &[&Target],
    people: usize,
) -> Result<Option<Opened>, Error> {
    let stock = people / ONE_IN;
    let users = stage.users(people);
    let now = OffsetDateTime::now_utc();
    let nanoseconds = (now + LEAD).unix_timestamp_nanos() / 1_000_000 * 1_000_000;
    let opens_at = OffsetDateTime::from_unix_timestamp_nanos(nanoseconds)?;
    let until_open = Duration::try_from(opens_at - OffsetDateTime::now_utc())?;
    let begin = Instant::now() + until_open - EARLY;
    let client = &targets[0].client;
    let text = opens_at.format(&Rfc3339)?;
    let sale = client
        .create_sale_that_opens("opens", stock, Some(&text))
        .await?;
    let clients: Vec<_> = targets.iter().map(|target| &target.client).collect();
    all_know(&clients, &sale).await?;
    if client.sale_state(&sale).await? != state_name(SaleState::Scheduled) {
        return Err("a sale that opens later is open".into());
    }
    let requests = Requests::purchases(targets[0].address(), &sale, &users, !stage.options.no_keys);
    let (tell, mut seen) = mpsc::unbounded_channel();
    let load = Load {
        addresses: targets.iter().map(|target| target.address()).collect(),
        requests: Arc::new(requests),
        count: people,
        connections: people,
        // Each may need a table of descriptors of its own.
        threads: usize::from(stage.options.generator_threads).max(2),
        expected: vec![ACCEPTED, SOLD_OUT, NOT_OPEN],
        schedule: Some(Schedule {
            begin,
            per_second: people as f64 / WITHIN.as_secs_f64(),
        }),
        follower: Some(Follower { every: 1, tell }),
    };
    let run = Run::new(load.run().await?);
    let mut answers: HashMap<OrderId, Seen> = HashMap::new();
    let mut first_sent: Option<Instant> = None;
    while let Ok(answer) = seen.try_recv() {
        first_sent = Some(first_sent.map_or(answer.sent, |first| first.min(answer.sent)));
        if answer.kind == 0 {
            answers.insert(OrderId::from_i64(answer.order_id), answer);
        }
    }
    if first_sent.is_none_or(|sent| sent > begin + READY) {
        return Ok(None);
    }
    stage.check_answers("opening", &run);
    tokio::time::sleep(PAUSE).await;
    let audit = quiescent_audit(targets[0], &sale).await?;
    let (won, early) = (run.kinds[0], run.kinds[2]);
    if won != stock.min(people - early) || audit.live != won as u64 || !audit.ok || !audit.quiescent
    {
        let what = format!(
            "{won} won, {early} were too early, {} rows, {stock} units; the audit says {}",
            audit.live, audit.problems
        );
        stage.fail("opening", &what);
    }
    let rows = rows_of(workspace, &sale).await?;
    let first_row_ms = rows
        .iter()
        .map(|(_, at)| (*at - opens_at).whole_milliseconds())
        .min()
        .unwrap_or(i128::MAX);
    if first_row_ms < 0 {
        let what = format!("somebody was admitted {} ms before opens_at", -first_row_ms);
        stage.fail("opening", &what);
    }
    let (overtaken, batches) = overtaken(&rows, &answers);
    Ok(Some(Opened {
        run,
        first_row_ms,
        overtaken,
        batches,
    }))
}

fn state_name(state: SaleState) -> String {
    let name = serde_json::to_value(state).unwrap_or_default();
    name.as_str().unwrap_or_default().to_owned()
}

/// The orders of a sale, by id, with Redis' time of their admission.
async fn rows_of(
    workspace: &Workspace,
    sale: &str,
) -> Result<Vec<(OrderId, OffsetDateTime)>, Error> {
    let sale: SaleId = sale.parse()?;
    let stores = process::stores(&Process::data_dir(workspace, "opening"), "").await?;
    let rows = sqlx::query_as("SELECT id, created_at FROM orders WHERE sale_id = $1 ORDER BY id")
        .bind(sale)
        .fetch_all(&stores.postgres)
        .await;
    stores.close().await;
    Ok(rows?)
}

/// For every winner, by how much the latest click before them in their batch was later than theirs; and
/// the number of batches. A batch is what one instance was answered for one millisecond of Redis' clock.
pub fn overtaken(
    rows: &[(OrderId, OffsetDateTime)],
    answers: &HashMap<OrderId, Seen>,
) -> (Histogram<u64>, usize) {
    let mut overtaken = histogram();
    let mut latest: HashMap<(u16, OffsetDateTime), Instant> = HashMap::new();
    for (id, created_at) in rows {
        let Some(answer) = answers.get(id) else {
            continue;
        };
        let latest = latest
            .entry((answer.server, *created_at))
            .or_insert(answer.sent);
        let by = latest.saturating_duration_since(answer.sent);
        overtaken.saturating_record(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX));
        *latest = (*latest).max(answer.sent);
    }
    (overtaken, latest.len())
}
