//! The verdict over an arena, from the rows in Postgres and never from the strategy's own counts.

use crate::error::{LabError, Result};
use crate::strategy::{Harm, Language, Likelihood};
use crate::tally::{Counts, Latencies};
use crate::{arena::Arena, interleaving::Collision, real_shop, templates, texts};
use serde::Serialize;
use sqlx::AssertSqlSafe;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use stores::sql;
use utoipa::ToSchema;

/// How long a verdict waits for purchases under way.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it waits for another process to hand in its tally. One that has gone never does.
const TALLY_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Verdict {
    pub strategy: &'static str,
    pub stock: i64,
    pub nodes: u32,
    /// How many server processes took part.
    pub processes: u32,
    pub attempts: u64,
    /// Orders in Postgres.
    pub sold: i64,
    /// Orders beyond the stock.
    pub oversold: i64,
    /// Units that are left although somebody wanted one.
    pub undersold: i64,
    /// Orders beyond what one buyer may have.
    pub duplicates: i64,
    /// Orders that a buyer was told of and that do not exist.
    pub lost: i64,
    pub contended: u64,
    pub failed: u64,
    pub throughput_per_s: f64,
    pub latency_ms: Percentiles,
    /// Of buyers who were sold something.
    pub winners_ms: Percentiles,
    /// Of all other buyers.
    pub losers_ms: Percentiles,
    pub round_trips: RoundTrips,
    /// How often the strategy noted something: deadlocks, crashes, lost locks.
    pub notes: BTreeMap<String, u64>,
    /// Whether everything was quiet when this was judged.
    pub quiet: bool,
    /// The worst that happened, whether it was predicted or not.
    pub outcome: Outcome,
    /// Whether nothing happened that the strategy says never happens.
    pub kept_promise: bool,
    pub explanation: String,
    /// Two purchases of this race that met and were both sold a unit, where that is the harm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collision: Option<Collision>,
}

/// The worst that happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Oversold,
    SoldTwice,
    Lost,
    Undersold,
    /// Nobody got an answer.
    Failed,
    Exact,
}

impl Outcome {
    /// The class that colours it (a wrong sale is red, whether it was predicted or not), its key
    /// in the texts.
    pub fn shown(self) -> (&'static str, &'static str) {
        match self {
            Self::Oversold => ("bad", "oversold"),
            Self::SoldTwice => ("bad", "sold-twice"),
            Self::Lost => ("bad", "lost"),
            Self::Undersold => ("warn", "undersold"),
            Self::Failed => ("mute", "failed"),
            Self::Exact => ("good", "exact"),
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, ToSchema)]
pub struct Percentiles {
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

impl From<&Latencies> for Percentiles {
    fn from(latencies: &Latencies) -> Self {
        Self {
            p50: latencies.at_ms(0.5),
            p95: latencies.at_ms(0.95),
            p99: latencies.at_ms(0.99),
            max: latencies.max_ms(),
        }
    }
}

/// For each purchase, on average.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, ToSchema)]
pub struct RoundTrips {
    pub redis: f64,
    pub postgres: f64,
    pub zookeeper: f64,
}

impl RoundTrips {
    pub fn sum(&self) -> f64 {
        self.redis + self.postgres + self.zookeeper
    }

    fn of(counts: &Counts) -> Self {
        let attempts = counts.attempts.max(1) as f64;
        let each = |sent: u64| (sent as f64 / attempts * 100.0).round() / 100.0;
        Self {
            redis: each(counts.redis),
            postgres: each(counts.postgres),
            zookeeper: each(counts.zookeeper),
        }
    }
}

/// Orders; orders beyond a buyer's limit; promised orders that are missing; units that answered
/// buyers did not get. Counted buyer by buyer: one's surplus does not pay for another's lack.
type Rows = (i64, i64, i64, i64);

impl Verdict {
    /// On how many nodes it was sold: two processes of one node each are two.
    pub fn all_nodes(&self) -> u32 {
        self.nodes * self.processes.max(1)
    }

    /// Whether this harm happened.
    pub fn shows(&self, harm: Harm) -> bool {
        match harm {
            Harm::Oversells => self.oversold > 0,
            Harm::Undersells => self.undersold > 0,
            Harm::Duplicates => self.duplicates > 0,
            Harm::Loses => self.lost > 0,
            Harm::Contends => self.contended > 0,
            Harm::Fails => self.failed > 0,
            Harm::Notes(note) => self.notes.contains_key(note),
            Harm::Holds => matches!(self.outcome, Outcome::Exact | Outcome::Failed),
        }
    }

    /// The outcome, and then whether it was predicted; a sale that held says nothing of that.
    pub fn in_words(&self, language: Language) -> Vec<&'static str> {
        let predicted = match (self.kept_promise, self.shows(Harm::Holds)) {
            (true, true) => None,
            (true, false) => Some("predicted"),
            (false, _) => Some("not-predicted"),
        };
        let keys = [self.outcome.shown().1].into_iter().chain(predicted);
        keys.map(|key| texts::item("verdict", "Outcomes", key, language)).collect()
    }
}

/// Judges an arena once it is quiet, or says that it was not.
pub async fn judge(arena: &Arc<Arena>, language: Language) -> Result<Verdict> {
    let quiet = tokio::time::timeout(SETTLE_TIMEOUT, arena.settle()).await.is_ok();
    let postgres = &arena.shared.servers.upkeep;
    let id = &arena.definition().id;
    let asked = "UPDATE lab.arenas SET asked = asked + 1 WHERE id = $1 RETURNING asked";
    let (asked,) = sql::row(postgres, asked, (id,)).await?.ok_or(LabError::ArenaNotFound)?;
    // Deleted meanwhile, it has no rows for a tally.
    arena.save(Some(asked)).await.map_err(|error| match error.as_database_error() {
        Some(refused) if refused.is_foreign_key_violation() => LabError::ArenaNotFound,
        _ => error.into(),
    })?;
    let others_are_in = wait_for_others(arena, asked).await?;

    let tallies = "SELECT counts::text FROM lab.tallies WHERE arena = $1";
    let tallies: Vec<(String,)> = sql::rows(postgres, tallies, (id,)).await?;
    let mut counts = Counts::default();
    let mut processes = 0;
    for (tally,) in &tallies {
        // A process that opened the arena and sold nothing has none.
        if let Ok(tally) = serde_json::from_str::<Counts>(tally) {
            processes += u32::from(tally.attempts > 0);
            counts.add(&tally);
        }
    }
    let rows = read_rows(arena).await?;
    write_verdict(arena, &counts, rows, processes, quiet && others_are_in, language)
}

/// Whether every process that serves the arena has handed in its tally.
async fn wait_for_others(arena: &Arena, asked: i64) -> Result<bool> {
    let deadline = tokio::time::Instant::now() + TALLY_TIMEOUT;
    let missing = "SELECT FROM lab.tallies WHERE arena = $1 AND process <> $2 AND answered < $3";
    loop {
        let values = (&arena.definition().id, arena.process, asked);
        if sql::run(&arena.shared.servers.upkeep, missing, values).await? == 0 {
            return Ok(true);
        }
        if tokio::time::Instant::now() >= deadline {
            return Ok(false);
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}

/// All orders of an arena, whichever table the strategy writes to, and a row of `lab.buyers heard`
/// as that table calls the buyer.
async fn orders_of(arena: &Arena) -> Result<(String, &'static str), sqlx::Error> {
    let own = "SELECT id, buyer FROM lab.orders WHERE arena = $1
               UNION ALL SELECT id, buyer FROM lab.unique_orders WHERE arena = $1";
    let definition = arena.definition();
    if definition.strategy.id != real_shop::STRATEGY {
        return Ok((own.to_owned(), "heard.buyer"));
    }
    let orders = format!("{}.orders", real_shop::schema_of(&definition.id));
    // The first node makes it: before that nobody has sold anything.
    let is_there = "SELECT to_regclass($1) IS NOT NULL";
    let is_there = sql::row(&arena.shared.servers.upkeep, is_there, (&orders,)).await?;
    let in_shop = match is_there {
        Some((true,)) => format!(
            "UNION ALL SELECT id::text, user_id::text FROM {orders}
                       WHERE status IN ('queued', 'pending_payment', 'paid')"
        ),
        _ => String::new(),
    };
    Ok((format!("{own} {in_shop}"), real_shop::USER_OF_BUYER))
}

async fn read_rows(arena: &Arena) -> Result<Rows> {
    let (orders, who_ordered) = orders_of(arena).await?;
    let statement = format!(
        "WITH orders AS ({orders}),
              by_buyer AS (SELECT buyer, count(*) AS orders FROM orders GROUP BY buyer)
         SELECT (SELECT count(*) FROM orders),
                (SELECT coalesce(sum(greatest(orders - $2, 0)), 0)::bigint FROM by_buyer),
                (SELECT count(*) FROM lab.told
                 WHERE arena = $1 AND NOT EXISTS (SELECT FROM orders
                     WHERE orders.id = told.order_id)),
                (SELECT coalesce(sum(greatest(least(tries, $2) - coalesce(by_buyer.orders, 0), 0)),
                    0)::bigint
                 FROM lab.buyers heard LEFT JOIN by_buyer ON by_buyer.buyer = {who_ordered}
                 WHERE heard.arena = $1)"
    );
    let definition = arena.definition();
    let values = (&definition.id, i64::from(definition.per_user_limit));
    // Built from constants and from an id of hexadecimal digits.
    let rows = sql::row(&arena.shared.servers.upkeep, AssertSqlSafe(statement), values).await?;
    Ok(rows.unwrap_or_default())
}

fn write_verdict(
    arena: &Arena,
    counts: &Counts,
    (sold, duplicates, lost, unmet): Rows,
    processes: u32,
    quiet: bool,
    language: Language,
) -> Result<Verdict> {
    let definition = arena.definition();
    let stock = i64::from(definition.stock);
    let undersold = (stock - sold).clamp(0, unmet.max(0));
    let harms = [
        (sold > stock, Outcome::Oversold),
        (duplicates > 0, Outcome::SoldTwice),
        (lost > 0, Outcome::Lost),
        (undersold > 0, Outcome::Undersold),
        (counts.attempts > 0 && counts.failed == counts.attempts, Outcome::Failed),
    ];
    let worst = harms.into_iter().find(|(happened, _)| *happened);
    let mut verdict = Verdict {
        strategy: definition.strategy.id,
        stock,
        nodes: definition.nodes,
        processes,
        attempts: counts.attempts,
        sold,
        oversold: (sold - stock).max(0),
        undersold,
        duplicates,
        lost,
        contended: counts.contended,
        failed: counts.failed,
        throughput_per_s: counts.throughput_per_s(),
        latency_ms: Percentiles::from(&counts.latencies()),
        winners_ms: Percentiles::from(&counts.winners),
        losers_ms: Percentiles::from(&counts.losers),
        round_trips: RoundTrips::of(counts),
        notes: counts.notes.clone(),
        quiet,
        outcome: worst.map_or(Outcome::Exact, |(_, outcome)| outcome),
        kept_promise: true,
        explanation: String::new(),
        collision: None,
    };
    let strategy = definition.strategy;
    let promised = strategy.promise.on(verdict.all_nodes());
    let may_lose = strategy.demonstrations.iter().any(|shown| shown.shows == Harm::Loses);
    let broken = |(harm, likelihood)| likelihood == Likelihood::Never && verdict.shows(harm);
    verdict.kept_promise = !promised.each().into_iter().any(broken) && (lost == 0 || may_lose);
    let collisions = &arena.shared.points.collisions;
    verdict.collision = match verdict.outcome {
        Outcome::Oversold => collisions.first(false).or_else(|| collisions.first(true)),
        Outcome::SoldTwice => collisions.first(true),
        _ => None,
    };
    verdict.explanation = templates::render("verdict.txt", language, &verdict)?;
    Ok(verdict)
}
