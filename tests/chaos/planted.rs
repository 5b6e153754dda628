//! Proving the checkers: each must cry at its planted bug, and none at the same load without.

use crate::report::{TrialReport, say};
use crate::support::stores::{Result, Stores};
use crate::support::{checkers::Checker, plant::*, prelude::*};
use crate::trial::{self, Plan};
use crate::{cluster::Cluster, faults::Fault, payments};
use Checker::*;
use How::{Library, Money, Nowhere, RefundsAgain, Sql, SwappedTokens};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
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

const AT_ONCE: usize = 6;

/// Whether all was as it must be.
pub async fn run(seed: u64, only: &[String]) -> Result<bool> {
    let names = PLANTED.map(|(bug, ..)| bug);
    if let Some(unknown) = only.iter().find(|one| !names.contains(&one.as_str())) {
        let names = names.join(", ");
        return Err(format!("there is no planted bug {unknown:?}; there are: {names}").into());
    }
    let is_chosen = |bug: &str| only.is_empty() || only.iter().any(|one| one == bug);
    let chosen = PLANTED.into_iter().filter(|(bug, ..)| is_chosen(bug));
    let trials = chosen.map(async |planted| {
        let found = try_out(seed, planted).await;
        let found = found.unwrap_or_else(|error| Err(format!("NOT JUDGED: {error}")));
        let (Ok(what) | Err(what)) = &found;
        (found.is_ok(), format!("{:<32}{what}", planted.0))
    });
    let found: Vec<(bool, String)> = stream::iter(trials).buffered(AT_ONCE).collect().await;
    found.iter().for_each(|(_, line)| say(line));
    Ok(found.iter().all(|(is_right, _)| *is_right))
}

async fn deploy((bug, _, how): Planted) -> Result<Cluster> {
    let cluster = match how {
        Money(_) | RefundsAgain => payments::deploy().await?,
        _ => Cluster::start(Fault::Calm.roles(), Vec::new()).await?,
    };
    let mut postgres = cluster.postgres().await?;
    // The constraints that would stop a bug: Postgres guards some promises by itself.
    let unguarded = match bug {
        "sell_beyond_stock" => "ALTER TABLE sales DROP CONSTRAINT sales_taken_within_stock",
        "sell_twice_to_a_user" => "DROP INDEX orders_one_live_per_user_slot",
        _ => "",
    };
    postgres.execute(unguarded).await?;
    match how {
        Library(mutation) => plant(&mut cluster.redis.connection().await?, mutation).await,
        Sql(statements) | Money(statements) => {
            sqlx::raw_sql(statements).execute(&mut postgres).await?;
        }
        SwappedTokens | RefundsAgain | Nowhere => {}
    }
    Ok(cluster)
}

/// What is as it must be, or in the inner `Err` what is not.
async fn try_out(seed: u64, planted: Planted) -> Result<Result<String, String>> {
    let mut cluster = deploy(planted).await?;
    let (_, checker, how) = planted;
    let plan = Plan {
        seed,
        length: Duration::from_millis(500),
        clients: 8,
        terminal_within: match checker {
            Some(TerminalInTime) => Duration::from_secs(2),
            _ => Fault::Calm.terminal_within(),
        },
        slack: 4,
        least_accepted: 150,
        planted: how,
    };
    let TrialReport { violations, void, .. } =
        trial::conduct(Fault::Calm, plan, &mut cluster).await?;
    let noticed: BTreeSet<Checker> = violations.iter().map(|one| one.checker).collect();
    let evidence = violations.into_iter().next().map(|one| one.evidence).or(void.clone());
    let evidence = evidence.unwrap_or_default();
    Ok(match checker {
        None if noticed.is_empty() && void.is_none() => Ok("clean".to_owned()),
        None => Err(format!("NOT CLEAN: {evidence}")),
        Some(checker) if noticed.contains(&checker) => Ok(format!("caught by {checker:?}")),
        Some(checker) => Err(format!("NOT CAUGHT by {checker:?}, but by {noticed:?}: {evidence}")),
    })
}
