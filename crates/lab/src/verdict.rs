//! The judgement over an arena, from the rows in Postgres and never from what the strategy
//! believes.

use super::{
    LabError,
    arena::Arena,
    real_shop,
    strategy::{Harm, Language, Likelihood},
    tally::{Counts, Latencies},
};
use serde::Serialize;
use sqlx::{AssertSqlSafe, Row};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use utoipa::ToSchema;

/// How long a verdict waits for purchases under way.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it waits for another process to hand in its tally. One that has gone never does.
const PATIENCE_WITH_OTHERS: Duration = Duration::from_secs(3);

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
    /// Of those who were sold something.
    pub winners_ms: Percentiles,
    /// Of everybody else.
    pub losers_ms: Percentiles,
    pub round_trips: RoundTrips,
    /// What the strategy noted while it sold, counted: deadlocks, crashes, locks that were lost.
    pub notes: BTreeMap<String, u64>,
    /// Whether everything was quiet when this was judged.
    pub quiet: bool,
    /// Whether nothing happened that the strategy says never happens.
    pub kept_promise: bool,
    pub explanation: String,
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
    fn of(counts: &Counts) -> Self {
        let each = |sent: u64| {
            let per_attempt = sent as f64 / counts.attempts.max(1) as f64;
            (per_attempt * 100.0).round() / 100.0
        };
        Self {
            redis: each(counts.redis),
            postgres: each(counts.postgres),
            zookeeper: each(counts.zookeeper),
        }
    }
}

/// What the rows say.
struct Rows {
    sold: i64,
    duplicates: i64,
    lost: i64,
    /// What buyers who got an answer may still have and did not get. Buyer by buyer, so that what
    /// one has too many does not pay for what another is missing.
    unmet: i64,
}

impl Verdict {
    /// Whether there is nothing to be judged: nobody got an answer.
    pub fn only_failed(&self) -> bool {
        self.attempts > 0 && self.failed == self.attempts
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
            Harm::Holds => {
                self.oversold == 0 && self.undersold == 0 && self.duplicates == 0 && self.lost == 0
            }
        }
    }
}

/// Judges an arena once it is quiet, or says that it was not.
pub async fn judge(arena: &Arc<Arena>, language: Language) -> Result<Verdict, LabError> {
    let quiet = tokio::time::timeout(SETTLE_TIMEOUT, arena.settle()).await.is_ok();
    let postgres = &arena.shared.servers.upkeep;
    let id = &arena.definition().id;
    let asked: Option<i64> =
        sqlx::query_scalar("UPDATE lab.arenas SET asked = asked + 1 WHERE id = $1 RETURNING asked")
            .bind(id)
            .fetch_optional(postgres)
            .await?;
    let asked = asked.ok_or(LabError::ArenaNotFound)?;
    arena.save(Some(asked)).await?;
    let others_are_in = wait_for_others(arena, asked).await?;

    let tallies: Vec<String> =
        sqlx::query_scalar("SELECT counts::text FROM lab.tallies WHERE arena = $1")
            .bind(id)
            .fetch_all(postgres)
            .await?;
    let mut counts = Counts::default();
    let mut processes = 0;
    for tally in &tallies {
        // A process that opened the arena and sold nothing has none.
        if let Ok(tally) = serde_json::from_str::<Counts>(tally) {
            processes += u32::from(tally.attempts > 0);
            counts.add(&tally);
        }
    }
    let rows = read_rows(arena).await?;
    Ok(write_verdict(arena, &counts, &rows, processes, quiet && others_are_in, language))
}

/// Whether every process that serves the arena has handed in its tally.
async fn wait_for_others(arena: &Arena, asked: i64) -> Result<bool, LabError> {
    let deadline = tokio::time::Instant::now() + PATIENCE_WITH_OTHERS;
    loop {
        let missing: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM lab.tallies WHERE arena = $1 AND process <> $2 AND answered < $3",
        )
        .bind(&arena.definition().id)
        .bind(arena.process())
        .bind(asked)
        .fetch_one(&arena.shared.servers.upkeep)
        .await?;
        if missing == 0 {
            return Ok(true);
        }
        if tokio::time::Instant::now() >= deadline {
            return Ok(false);
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}

/// Where an arena's orders are, if the real shop sells there.
fn schema_of(arena: &Arena) -> Option<String> {
    let definition = arena.definition();
    (definition.strategy.id == real_shop::STRATEGY).then(|| real_shop::schema_of(&definition.id))
}

/// All orders of an arena, whichever table the strategy writes to.
async fn orders_of(arena: &Arena) -> Result<String, sqlx::Error> {
    let own = "SELECT id, buyer FROM lab.orders WHERE arena = $1
               UNION ALL SELECT id, buyer FROM lab.unique_orders WHERE arena = $1";
    let Some(schema) = schema_of(arena) else {
        return Ok(own.to_owned());
    };
    // The first node makes it: before that nobody has sold anything.
    let is_there: bool = sqlx::query_scalar("SELECT to_regclass($1) IS NOT NULL")
        .bind(format!("{schema}.orders"))
        .fetch_one(&arena.shared.servers.upkeep)
        .await?;
    Ok(if is_there {
        format!(
            "{own} UNION ALL SELECT id::text, user_id::text FROM {schema}.orders
                             WHERE status IN ('queued', 'pending_payment', 'paid')"
        )
    } else {
        own.to_owned()
    })
}

/// A row of `lab.buyers heard` as the orders' table calls that buyer.
fn who_ordered(arena: &Arena) -> &'static str {
    match schema_of(arena) {
        None => "heard.buyer",
        Some(_) => real_shop::USER_OF_BUYER,
    }
}

async fn read_rows(arena: &Arena) -> Result<Rows, LabError> {
    let statement = format!(
        "WITH orders AS ({}),
              by_buyer AS (SELECT buyer, count(*) AS orders FROM orders GROUP BY buyer)
         SELECT (SELECT count(*) FROM orders) AS sold,
                (SELECT coalesce(sum(greatest(orders - $2, 0)), 0)::bigint FROM by_buyer)
                    AS duplicates,
                (SELECT count(*) FROM lab.told
                 WHERE arena = $1 AND NOT EXISTS (SELECT FROM orders
                     WHERE orders.id = told.order_id)) AS lost,
                (SELECT coalesce(sum(greatest(least(tries, $2) - coalesce(by_buyer.orders, 0), 0)),
                    0)::bigint
                 FROM lab.buyers heard LEFT JOIN by_buyer ON by_buyer.buyer = {}
                 WHERE heard.arena = $1) AS unmet",
        orders_of(arena).await?,
        who_ordered(arena),
    );
    let definition = arena.definition();
    // Built from constants and from an id of hexadecimal digits.
    let row = sqlx::query(AssertSqlSafe(statement))
        .bind(&definition.id)
        .bind(i64::from(definition.per_user_limit))
        .fetch_one(&arena.shared.servers.upkeep)
        .await?;
    Ok(Rows {
        sold: row.try_get("sold")?,
        duplicates: row.try_get("duplicates")?,
        lost: row.try_get("lost")?,
        unmet: row.try_get("unmet")?,
    })
}

fn write_verdict(
    arena: &Arena,
    counts: &Counts,
    rows: &Rows,
    processes: u32,
    quiet: bool,
    language: Language,
) -> Verdict {
    let definition = arena.definition();
    let stock = i64::from(definition.stock);
    let mut all = counts.winners.clone();
    all.add(&counts.losers);
    let mut verdict = Verdict {
        strategy: definition.strategy.id,
        stock,
        nodes: definition.nodes,
        processes,
        attempts: counts.attempts,
        sold: rows.sold,
        oversold: (rows.sold - stock).max(0),
        undersold: (stock - rows.sold).clamp(0, rows.unmet.max(0)),
        duplicates: rows.duplicates,
        lost: rows.lost,
        contended: counts.contended,
        failed: counts.failed,
        throughput_per_s: (counts.throughput_per_s() * 10.0).round() / 10.0,
        latency_ms: Percentiles::from(&all),
        winners_ms: Percentiles::from(&counts.winners),
        losers_ms: Percentiles::from(&counts.losers),
        round_trips: RoundTrips::of(counts),
        notes: counts.notes.clone(),
        quiet,
        kept_promise: true,
        explanation: String::new(),
    };
    // Each process has nodes of its own: two processes of one node each are two nodes.
    let promised = definition.strategy.promise.on(definition.nodes * processes.max(1));
    let may_lose = definition
        .strategy
        .demonstrations
        .iter()
        .any(|demonstration| demonstration.shows == Harm::Loses);
    let broken = |(harm, likelihood)| likelihood == Likelihood::Never && verdict.shows(harm);
    verdict.kept_promise =
        !promised.each().into_iter().any(broken) && (verdict.lost == 0 || may_lose);
    verdict.explanation = explain(&verdict, language);
    verdict
}

/// What happened, for a beginner.
fn explain(verdict: &Verdict, language: Language) -> String {
    let Verdict {
        stock,
        sold,
        oversold,
        undersold,
        duplicates,
        lost,
        attempts,
        contended,
        failed,
        ..
    } = verdict;
    let mut said = Vec::new();
    let en = language == Language::En;
    said.push(if en {
        format!("{attempts} attempts on {stock} units: {sold} orders are in the database.")
    } else {
        format!("{attempts} 次购买抢 {stock} 件货：数据库里有 {sold} 个订单。")
    });
    if *oversold > 0 {
        said.push(if en {
            format!(
                "OVERSOLD by {oversold}: so many buyers hold an order for something that does not \
                 exist."
            )
        } else {
            format!("超卖 {oversold} 件：有这么多买家拿着根本没有货的订单。")
        });
    }
    if *undersold > 0 {
        said.push(if en {
            format!(
                "UNDERSOLD by {undersold}: units are left (or lost) although buyers were turned \
                 away."
            )
        } else {
            format!("少卖 {undersold} 件：明明有人没买到，货却剩下（或丢失）了。")
        });
    }
    if *duplicates > 0 {
        said.push(if en {
            format!("{duplicates} DUPLICATE orders: somebody has more than one buyer may have.")
        } else {
            format!("重复订单 {duplicates} 个：有人买到的超过了每人限购数。")
        });
    }
    if *lost > 0 {
        said.push(if en {
            format!("{lost} LOST: buyers were told \"sold\" and have no order.")
        } else {
            format!("丢单 {lost} 个：买家被告知“抢到了”，数据库里却没有订单。")
        });
    }
    if *contended > 0 {
        said.push(if en {
            format!(
                "{contended} attempts gave up because others were faster at the lock or the row."
            )
        } else {
            format!("{contended} 次购买因为抢不到锁（或抢不到那一行）而放弃。")
        });
    }
    if *failed > 0 {
        said.push(if en {
            format!(
                "{failed} attempts failed: of those nothing can be said, they may have an order or \
                 none."
            )
        } else {
            format!("{failed} 次购买出错：对这些无法下结论，订单可能有，也可能没有。")
        });
    }
    let harmless = verdict.shows(Harm::Holds);
    if harmless && verdict.only_failed() {
        said.push(if en {
            "Nothing was sold at all: that breaks no promise, and keeps none.".to_owned()
        } else {
            "一件也没卖出去：没有违背承诺，也谈不上兑现。".to_owned()
        });
        return said.join(if en { " " } else { "" });
    }
    said.push(match (verdict.kept_promise, harmless, en) {
        (true, true, true) => {
            "Nothing was sold twice, and nobody who got an answer was turned away while units were \
             left: the promise is kept."
                .to_owned()
        }
        (true, true, false) => {
            "没有多卖；凡得到答复的人，没有谁在还有货时被拒绝：承诺兑现。".to_owned()
        }
        (true, false, true) => {
            "The strategy never promised otherwise: this is how it fails.".to_owned()
        }
        (true, false, false) => "这种策略本来就没有承诺不出这种问题：它就是这样失败的。".to_owned(),
        (false, _, true) => {
            "The strategy says that this never happens: ITS PROMISE IS BROKEN.".to_owned()
        }
        (false, _, false) => "这种策略声称绝不会这样：承诺被打破。".to_owned(),
    });
    if !verdict.quiet {
        said.push(if en {
            "Purchases were still under way when this was judged.".to_owned()
        } else {
            "判定时仍有购买在进行。".to_owned()
        });
    }
    said.join(if en { " " } else { "" })
}
