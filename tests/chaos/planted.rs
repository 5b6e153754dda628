//! Proving the checkers: each must cry at its planted bug, and none at the same load without.

use crate::support::{checkers::Checker, plant::*, prelude::*, stores::Result};
use crate::trial::{self, Plan};
use crate::{cluster::Cluster, faults::Fault, payments};
use Checker::*;
use How::{Library, Money, Nowhere, RefundsAgain, Sql, SwappedTokens};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Nowhere,
    Library(Mutation),
    Sql(&'static str),
    /// On the way there: a client that looks at another user's order is taken for that user.
    SwappedTokens,
    /// Where people pay by a provider: statements, which may be none.
    Money(&'static str),
    RefundsAgain,
}

type Planted = (&'static str, Option<Checker>, How);

const PLANTED: [Planted; 19] = [
    ("no bug", None, Nowhere),
    ("sell_beyond_stock", Some(NoOversell), Library(SELL_BEYOND_STOCK)),
    ("sell_twice_to_a_user", Some(NoDuplicate), Library(SELL_TWICE_TO_A_USER)),
    ("swallow_rows", Some(AcceptedIsOneRow), Sql(SWALLOW_ROWS)),
    ("invent_an_order", Some(NoRowWithoutAttempt), Sql(INVENT_AN_ORDER)),
    ("forget_a_release", Some(Conservation), Sql(FORGET_A_RELEASE)),
    ("sold_out_too_early", Some(NoUndersell), Library(SOLD_OUT_TOO_EARLY)),
    ("repeat_ids", Some(UniqueIds), Library(REPEAT_IDS)),
    ("unpay", Some(NothingReverts), Sql(UNPAY)),
    ("write_nothing", Some(TerminalInTime), Sql(WRITE_NOTHING)),
    ("forget_idempotency_keys", Some(SameKeySameOrder), Library(FORGET_IDEMPOTENCY_KEYS)),
    ("ignore_the_window", Some(OnlyWhileOpen), Library(IGNORE_THE_WINDOW)),
    ("swap_tokens", Some(OrdersArePrivate), SwappedTokens),
    ("no bug in payments", None, Money("")),
    ("unpay_captured", Some(MoneyHasAnOrder), Money(UNPAY)),
    ("expire_at_the_webhook", Some(MoneyAsTold), Money(EXPIRE_AT_THE_WEBHOOK)),
    ("give_to_the_declined", Some(PaidHasMoney), Money(GIVE_TO_THE_DECLINED)),
    ("forget_refunds", Some(BooksAgree), Money(FORGET_REFUNDS)),
    ("refund_again", Some(RefundedOnce), RefundsAgain),
];

/// The constraints that would stop a bug: Postgres guards some promises by itself.
fn constraint_against(bug: &str) -> Option<&'static str> {
    match bug {
        "sell_beyond_stock" => Some("ALTER TABLE sales DROP CONSTRAINT sales_taken_within_stock"),
        "sell_twice_to_a_user" => Some("DROP INDEX orders_one_live_per_user_slot"),
        _ => None,
    }
}

type Found = (bool, Vec<Checker>, String);

fn line((bug, must_notice, _): Planted, (passed, noticed_by, evidence): &Found) -> String {
    let verdict = match (passed, must_notice) {
        (true, None) => "clean".to_owned(),
        (true, Some(checker)) => format!("caught by {checker:?}"),
        (false, None) => format!("NOT CLEAN: {evidence}"),
        (false, Some(checker)) => {
            format!("NOT CAUGHT by {checker:?}, but by {noticed_by:?}: {evidence}")
        }
    };
    format!("{bug:<32}{verdict}")
}

const AT_ONCE: usize = 6;

/// Of each bug, whether all was as it must be, and a line about it.
pub async fn run(seed: u64, only: &[String]) -> Vec<(bool, String)> {
    let is_chosen = |bug: &str| only.is_empty() || only.iter().any(|one| one == bug);
    let chosen = PLANTED.into_iter().filter(|(bug, ..)| is_chosen(bug));
    let trials = chosen.map(async |planted| {
        let found = try_out(seed, planted).await;
        let found = found.unwrap_or_else(|error| (false, Vec::new(), error.to_string()));
        (found.0, line(planted, &found))
    });
    stream::iter(trials).buffered(AT_ONCE).collect().await
}

async fn deploy((bug, _, how): Planted) -> Result<Cluster> {
    let cluster = match how {
        Money(_) | RefundsAgain => payments::deploy().await?,
        _ => Cluster::start(Fault::Calm.roles(), Vec::new()).await?,
    };
    let mut postgres = cluster.direct().await?;
    if let Some(constraint) = constraint_against(bug) {
        postgres.execute(constraint).await?;
    }
    match how {
        Library(mutation) => plant(&mut cluster.redis.connection().await?, mutation).await,
        Sql(statements) | Money(statements) => {
            sqlx::raw_sql(statements).execute(&mut postgres).await?;
        }
        SwappedTokens | RefundsAgain | Nowhere => {}
    }
    Ok(cluster)
}

async fn try_out(seed: u64, planted: Planted) -> Result<Found> {
    let mut cluster = deploy(planted).await?;
    let (_, checker, how) = planted;
    let fault = Fault::Calm;
    let plan = Plan {
        seed,
        length: Duration::from_millis(500),
        clients: 8,
        terminal_within: match checker {
            Some(TerminalInTime) => Duration::from_secs(2),
            _ => fault.terminal_within(),
        },
        patience: 4,
        least_accepted: 150,
        swaps_tokens: how == SwappedTokens,
        refunds_again: how == RefundsAgain,
    };
    let (report, violations) = match how {
        Money(_) | RefundsAgain => payments::conduct(fault, plan, seed, &mut cluster).await?,
        _ => trial::conduct(fault, plan, seed, &mut cluster).await?,
    };
    let mut noticed: Vec<Checker> = violations.iter().map(|one| one.checker).collect();
    noticed.sort();
    noticed.dedup();
    let passed = match checker {
        None => noticed.is_empty() && report.void.is_none(),
        Some(checker) => noticed.contains(&checker),
    };
    let wanted = violations.iter().find(|one| checker.is_none_or(|checker| checker == one.checker));
    let evidence = wanted.or(violations.first()).map(|one| one.evidence.clone());
    Ok((passed, noticed, evidence.or(report.void).unwrap_or_default()))
}
