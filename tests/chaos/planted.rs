//! Proving the checkers: each promise is broken on purpose by a planted bug, and the
//! checker that looks after it must cry. The same load without a bug must be clean.

use crate::{
    Error,
    cluster::Cluster,
    faults::Fault,
    look,
    support::{checkers::Checker, plant::*},
    trial::{self, Plan},
};
use futures_util::{StreamExt, stream};
use serde::Serialize;
use sqlx::Executor;
use std::time::Duration;

/// Where a bug is planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// In what Redis decides.
    Library(Mutation),
    /// In Postgres.
    Sql(&'static str),
    /// On the way to the program: somebody who looks at another one's order is taken for that one.
    SwappedTokens,
}

/// A bug, and who must notice.
struct Planted {
    bug: &'static str,
    checker: Checker,
    how: How,
    /// The constraint that would stop it: Postgres guards some promises by itself.
    without: &'static str,
}

const PLANTED: &[Planted] = &[
    Planted {
        bug: "sell_beyond_stock",
        checker: Checker::NoOversell,
        how: How::Library(SELL_BEYOND_STOCK),
        without: "ALTER TABLE sales DROP CONSTRAINT sales_taken_within_stock",
    },
    Planted {
        bug: "sell_twice_to_a_user",
        checker: Checker::NoDuplicate,
        how: How::Library(SELL_TWICE_TO_A_USER),
        without: "DROP INDEX orders_one_live_per_user_slot",
    },
    Planted {
        bug: "swallow_rows",
        checker: Checker::AcceptedIsOneRow,
        how: How::Sql(SWALLOW_ROWS),
        without: "",
    },
    Planted {
        bug: "invent_an_order",
        checker: Checker::NoRowWithoutAttempt,
        how: How::Sql(INVENT_AN_ORDER),
        without: "",
    },
    Planted {
        bug: "forget_a_release",
        checker: Checker::Conservation,
        how: How::Sql(FORGET_A_RELEASE),
        without: "",
    },
    Planted {
        bug: "sold_out_too_early",
        checker: Checker::NoUndersell,
        how: How::Library(SOLD_OUT_TOO_EARLY),
        without: "",
    },
    Planted {
        bug: "repeat_ids",
        checker: Checker::UniqueIds,
        how: How::Library(REPEAT_IDS),
        without: "",
    },
    Planted {
        bug: "unpay",
        checker: Checker::NothingReverts,
        how: How::Sql(UNPAY),
        without: "",
    },
    Planted {
        bug: "write_nothing",
        checker: Checker::TerminalInTime,
        how: How::Sql(WRITE_NOTHING),
        without: "",
    },
    Planted {
        bug: "forget_idempotency_keys",
        checker: Checker::SameKeySameOrder,
        how: How::Library(FORGET_IDEMPOTENCY_KEYS),
        without: "",
    },
    Planted {
        bug: "ignore_the_window",
        checker: Checker::OnlyWhileOpen,
        how: How::Library(IGNORE_THE_WINDOW),
        without: "",
    },
    Planted {
        bug: "swap_tokens",
        checker: Checker::OrdersArePrivate,
        how: How::SwappedTokens,
        without: "",
    },
];

/// Whether one bug was noticed.
#[derive(Debug, Clone, Serialize)]
pub struct PlantedReport {
    /// "no bug" for the load alone.
    pub bug: String,
    pub must_notice: String,
    pub noticed_by: Vec<String>,
    pub passed: bool,
    /// What the checker said, or why this could not be done.
    pub evidence: String,
}

impl PlantedReport {
    pub fn line(&self) -> String {
        let Self {
            bug,
            must_notice,
            passed,
            ..
        } = self;
        let verdict = match (passed, bug == NO_BUG) {
            (true, true) => "clean".to_owned(),
            (true, false) => format!("caught by {must_notice}"),
            (false, true) => format!("NOT CLEAN: {}", self.evidence),
            (false, false) => format!(
                "NOT CAUGHT by {must_notice}, but by {:?}: {}",
                self.noticed_by, self.evidence
            ),
        };
        format!("{bug:<32}{verdict}")
    }
}

const NO_BUG: &str = "no bug";

/// How many at once: each is mostly waiting for orders to lapse.
const AT_ONCE: usize = 6;

/// Plants every bug, one deployment each.
pub async fn run(seed: u64, only: &[String]) -> Vec<PlantedReport> {
    let here = PLANTED.iter().map(|planted| planted.bug);
    let all = std::iter::once(None).chain(here.map(Some));
    let chosen = all.filter(|bug| {
        let name = bug.unwrap_or(NO_BUG);
        only.is_empty() || only.iter().any(|one| one == name)
    });
    let trials = chosen.map(async |bug| {
        let planted = deploy(seed, bug).await;
        planted.unwrap_or_else(|error| PlantedReport {
            bug: bug.unwrap_or(NO_BUG).to_owned(),
            must_notice: String::new(),
            noticed_by: Vec::new(),
            passed: false,
            evidence: error.to_string(),
        })
    });
    stream::iter(trials).buffered(AT_ONCE).collect().await
}

async fn deploy(seed: u64, bug: Option<&'static str>) -> Result<PlantedReport, Error> {
    let planted = match bug {
        None => None,
        Some(bug) => {
            let known = PLANTED.iter().find(|planted| planted.bug == bug);
            Some(known.ok_or_else(|| format!("{bug} has no checker "))?)
        }
    };
    let fault = Fault::Calm;
    let mut cluster = Cluster::start(fault.shape(), &[]).await?;
    if let Some(planted) = planted
        && !planted.without.is_empty()
    {
        cluster.direct().await?.execute(planted.without).await?;
    }
    match planted.map(|planted| planted.how) {
        Some(How::Library(mutation)) => {
            plant(&mut look::redis_connection(&cluster).await?, mutation).await;
        }
        Some(How::Sql(statements)) => {
            sqlx::raw_sql(statements)
                .execute(&mut cluster.direct().await?)
                .await?;
        }
        Some(How::SwappedTokens) | None => {}
    }
    let plan = Plan {
        seed,
        length: Duration::from_millis(500),
        clients: 8,
        // Where nothing will ever end there is no use in waiting for long.
        terminal_within: match planted.map(|planted| planted.checker) {
            Some(Checker::TerminalInTime) => Duration::from_secs(5),
            _ => fault.terminal_within(),
        },
        least_accepted: 150,
        swaps_tokens: planted.is_some_and(|planted| planted.how == How::SwappedTokens),
    };
    let judged = trial::conduct(fault, plan, seed, &mut cluster).await?;
    let mut noticed: Vec<Checker> = judged.violations.iter().map(|one| one.checker).collect();
    noticed.sort();
    noticed.dedup();
    let passed = match planted {
        None => noticed.is_empty() && judged.report.void.is_none(),
        Some(planted) => noticed.contains(&planted.checker),
    };
    let wanted = |checker: Checker| planted.is_none_or(|planted| planted.checker == checker);
    let evidence = judged.violations.iter().find(|one| wanted(one.checker));
    let evidence = evidence.or(judged.violations.first());
    Ok(PlantedReport {
        bug: bug.unwrap_or(NO_BUG).to_owned(),
        must_notice: planted.map_or("nobody".to_owned(), |one| format!("{:?}", one.checker)),
        noticed_by: noticed
            .iter()
            .map(|checker| format!("{checker:?}"))
            .collect(),
        passed,
        evidence: evidence.map_or(judged.report.void.unwrap_or_default(), |one| {
            one.evidence.clone()
        }),
    })
}
