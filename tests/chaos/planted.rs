//! Proving the checkers: each promise is broken on purpose by a planted bug, and the
//! checker that looks after it must cry. The same load without a bug must be clean.

use crate::{
    Error,
    cluster::Cluster,
    faults::Fault,
    look,
    support::{
        checkers::Checker,
        plant::{IGNORE_THE_WINDOW, Mutation, SELL_BEYOND_STOCK, SELL_TWICE_TO_A_USER, plant},
    },
    trial::{self, Plan},
};
use flash_sale::fail_point::BUGS;
use futures_util::{StreamExt, stream};
use serde::Serialize;
use sqlx::Executor;
use std::time::Duration;

/// A bug, and who must notice.
struct Planted {
    bug: &'static str,
    checker: Checker,
    /// The constraint that would stop it: Postgres guards some promises by itself.
    without: &'static str,
    /// How it is planted from outside; `None`: it is one of the program's own.
    library: Option<Mutation>,
}

const PLANTED: &[Planted] = &[
    Planted {
        bug: "bug.sell_beyond_stock",
        checker: Checker::NoOversell,
        without: "ALTER TABLE sales DROP CONSTRAINT sales_taken_within_stock",
        library: Some(SELL_BEYOND_STOCK),
    },
    Planted {
        bug: "bug.sell_twice_to_a_user",
        checker: Checker::NoDuplicate,
        without: "DROP INDEX orders_one_live_per_user_slot",
        library: Some(SELL_TWICE_TO_A_USER),
    },
    Planted {
        bug: "bug.acknowledge_unwritten",
        checker: Checker::AcceptedIsOneRow,
        without: "",
        library: None,
    },
    Planted {
        bug: "bug.invent_an_order",
        checker: Checker::NoRowWithoutAttempt,
        without: "",
        library: None,
    },
    Planted {
        bug: "bug.forget_a_release",
        checker: Checker::Conservation,
        without: "",
        library: None,
    },
    Planted {
        bug: "bug.sold_out_too_early",
        checker: Checker::NoUndersell,
        without: "",
        library: None,
    },
    Planted {
        bug: "bug.repeat_ids",
        checker: Checker::UniqueIds,
        without: "",
        library: None,
    },
    Planted {
        bug: "bug.unpay",
        checker: Checker::NothingReverts,
        without: "",
        library: None,
    },
    Planted {
        bug: "bug.write_nothing",
        checker: Checker::TerminalInTime,
        without: "",
        library: None,
    },
    Planted {
        bug: "bug.forget_idempotency_keys",
        checker: Checker::SameKeySameOrder,
        without: "",
        library: None,
    },
    Planted {
        bug: "bug.ignore_the_window",
        checker: Checker::OnlyWhileOpen,
        without: "",
        library: Some(IGNORE_THE_WINDOW),
    },
    Planted {
        bug: "bug.show_to_anybody",
        checker: Checker::OrdersArePrivate,
        without: "",
        library: None,
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

/// Bugs that do not show in this load, and where they are planted instead.
const ELSEWHERE: [&str; 3] = [
    "bug.draw_by_arrival", // need a waiting room: tests/it/room
    "bug.let_everybody_in",
    "bug.reuse_admissions",
];

/// Plants every bug of the program, one deployment each.
pub async fn run(seed: u64, only: &[String]) -> Vec<PlantedReport> {
    let unknown = BUGS.iter().filter(|bug| {
        !ELSEWHERE.contains(bug) && !PLANTED.iter().any(|planted| planted.bug == **bug)
    });
    assert_eq!(unknown.count(), 0, "a bug without a checker here");
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
            Some(known.ok_or_else(|| format!("{bug} has no checker in tests/chaos/planted.rs"))?)
        }
    };
    let points = match planted {
        Some(Planted {
            bug, library: None, ..
        }) => format!("{bug}=on*always"),
        _ => String::new(),
    };
    let fault = Fault::Calm;
    let mut cluster = Cluster::start(fault.shape(), &[("FAIL_POINTS", &points)]).await?;
    if let Some(planted) = planted
        && !planted.without.is_empty()
    {
        cluster.direct().await?.execute(planted.without).await?;
    }
    if let Some(mutation) = planted.and_then(|planted| planted.library) {
        plant(&mut look::redis_connection(&cluster).await?, mutation).await;
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
