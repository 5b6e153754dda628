//! Proving the checkers: each promise is broken on purpose by a planted bug, and the
//! checker that looks after it must cry. The same load without a bug must be clean.

use crate::support::plant::*;
use crate::support::{checkers::Checker, stores::Result};
use crate::trial::{self, Plan};
use crate::{cluster::Cluster, faults::Fault};
use Checker::*;
use How::{Library, Sql, SwappedTokens};
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
    /// On the way there: a client that looks at another user's order is taken for that user.
    SwappedTokens,
}

/// A bug, the checker that must notice it, and where it is planted.
type Planted = (&'static str, Checker, How);

const PLANTED: [Planted; 12] = [
    ("sell_beyond_stock", NoOversell, Library(SELL_BEYOND_STOCK)),
    ("sell_twice_to_a_user", NoDuplicate, Library(SELL_TWICE_TO_A_USER)),
    ("swallow_rows", AcceptedIsOneRow, Sql(SWALLOW_ROWS)),
    ("invent_an_order", NoRowWithoutAttempt, Sql(INVENT_AN_ORDER)),
    ("forget_a_release", Conservation, Sql(FORGET_A_RELEASE)),
    ("sold_out_too_early", NoUndersell, Library(SOLD_OUT_TOO_EARLY)),
    ("repeat_ids", UniqueIds, Library(REPEAT_IDS)),
    ("unpay", NothingReverts, Sql(UNPAY)),
    ("write_nothing", TerminalInTime, Sql(WRITE_NOTHING)),
    ("forget_idempotency_keys", SameKeySameOrder, Library(FORGET_IDEMPOTENCY_KEYS)),
    ("ignore_the_window", OnlyWhileOpen, Library(IGNORE_THE_WINDOW)),
    ("swap_tokens", OrdersArePrivate, SwappedTokens),
];

/// The constraints that would stop a bug: Postgres guards some promises by itself.
fn constraint_against(bug: &str) -> Option<&'static str> {
    match bug {
        "sell_beyond_stock" => Some("ALTER TABLE sales DROP CONSTRAINT sales_taken_within_stock"),
        "sell_twice_to_a_user" => Some("DROP INDEX orders_one_live_per_user_slot"),
        _ => None,
    }
}

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
        let (bug, must_notice, evidence) = (&self.bug, &self.must_notice, &self.evidence);
        let verdict = match (self.passed, bug == NO_BUG) {
            (true, true) => "clean".to_owned(),
            (true, false) => format!("caught by {must_notice}"),
            (false, true) => format!("NOT CLEAN: {evidence}"),
            (false, false) => {
                let others = &self.noticed_by;
                format!("NOT CAUGHT by {must_notice}, but by {others:?}: {evidence}")
            }
        };
        format!("{bug:<32}{verdict}")
    }
}

const NO_BUG: &str = "no bug";

/// How many at once: each is mostly waiting for orders to lapse.
const AT_ONCE: usize = 6;

/// Plants every bug, one deployment each, and none in one more.
pub async fn run(seed: u64, only: &[String]) -> Vec<PlantedReport> {
    let all = std::iter::once(None).chain(PLANTED.map(Some));
    let name = |planted: Option<Planted>| planted.map_or(NO_BUG, |(bug, ..)| bug);
    let chosen =
        all.filter(|planted| only.is_empty() || only.iter().any(|one| one == name(*planted)));
    let trials = chosen.map(async |planted| {
        try_out(seed, planted).await.unwrap_or_else(|error| PlantedReport {
            bug: name(planted).to_owned(),
            must_notice: String::new(),
            noticed_by: Vec::new(),
            passed: false,
            evidence: error.to_string(),
        })
    });
    stream::iter(trials).buffered(AT_ONCE).collect().await
}

async fn deploy(planted: Option<Planted>) -> Result<Cluster> {
    let cluster = Cluster::start(Fault::Calm.roles(), &[]).await?;
    let Some((bug, _, how)) = planted else { return Ok(cluster) };
    let mut postgres = cluster.direct().await?;
    if let Some(constraint) = constraint_against(bug) {
        postgres.execute(constraint).await?;
    }
    match how {
        Library(mutation) => plant(&mut cluster.redis.connection().await?, mutation).await,
        Sql(statements) => {
            sqlx::raw_sql(statements).execute(&mut postgres).await?;
        }
        SwappedTokens => {}
    }
    Ok(cluster)
}

async fn try_out(seed: u64, planted: Option<Planted>) -> Result<PlantedReport> {
    let mut cluster = deploy(planted).await?;
    let (bug, checker) = planted.map_or((NO_BUG, None), |(bug, checker, _)| (bug, Some(checker)));
    let fault = Fault::Calm;
    let plan = Plan {
        seed,
        length: Duration::from_millis(500),
        clients: 8,
        // Where nothing will ever end there is no use in waiting for long.
        terminal_within: match checker {
            Some(TerminalInTime) => Duration::from_secs(5),
            _ => fault.terminal_within(),
        },
        least_accepted: 150,
        swaps_tokens: planted.is_some_and(|(.., how)| how == SwappedTokens),
    };
    let judged = trial::conduct(fault, plan, seed, &mut cluster).await?;
    let violations = &judged.violations;
    let mut noticed: Vec<Checker> = violations.iter().map(|one| one.checker).collect();
    noticed.sort();
    noticed.dedup();
    let void = judged.report.void;
    let passed = match checker {
        None => noticed.is_empty() && void.is_none(),
        Some(checker) => noticed.contains(&checker),
    };
    let wanted = |found: Checker| checker.is_none_or(|checker| checker == found);
    let evidence = violations.iter().find(|one| wanted(one.checker));
    let evidence = evidence.or(violations.first()).map(|one| one.evidence.clone());
    Ok(PlantedReport {
        bug: bug.to_owned(),
        must_notice: checker.map_or("nobody".to_owned(), |checker| format!("{checker:?}")),
        noticed_by: noticed.iter().map(|checker| format!("{checker:?}")).collect(),
        passed,
        evidence: evidence.or(void).unwrap_or_default(),
    })
}
