//! Every registered strategy keeps its promise, and its promise says all: the same scenarios for
//! all of them (docs/lab.md), under forced interleaving, and every demonstration shows what it
//! says.

use super::lab;
use flash_sale::lab::{
    Lab, STRATEGIES, Strategy, Trial,
    strategy::{Demonstration, Harm, Harms, Language, Likelihood, Promise, Scenario},
    verdict::Verdict,
};
use futures_util::{StreamExt, stream};

/// How many scenarios run at a time: mostly they wait.
const AT_ONCE: usize = 3;

/// Those of which no particular node has to come by the crash point: only one node of a task queue is the
/// consumer, and nobody can say which; all buyers of a node may lose to those of others; a leaked lock stays
/// with one node.
const MAY_NOT_COME_BY: [&str; 5] = [
    "task-queue",
    "version-column",
    "cas-stock",
    "serializable",
    "session-advisory-lock",
];

/// A scenario that every strategy has to go through, and what is expected of it besides `never`.
struct Case {
    name: String,
    scenario: Scenario,
    /// Whether `expected` harms must show here.
    ordinary: bool,
    /// Whether the node has to crash, because the point is passed on it for certain.
    crashes: bool,
}

fn cases(strategy: &'static Strategy) -> Vec<Case> {
    let case = |name: &str, scenario, ordinary| Case {
        name: name.to_owned(),
        scenario,
        ordinary,
        crashes: false,
    };
    let mut cases = Vec::new();
    for nodes in [1, 3] {
        let plain = Scenario {
            nodes,
            ..Scenario::SMALL
        };
        cases.push(case(&format!("{nodes} node(s)"), plain, true));
        let clicks = Scenario {
            duplicates_percent: 100,
            stock: 8,
            buyers: 16,
            concurrency: 16,
            ..plain
        };
        cases.push(case(
            &format!("second clicks, {nodes} node(s)"),
            clicks,
            false,
        ));
        let slow: &'static [_] = &[("pause_ms", "60"), ("work_ms", "2")];
        cases.push(case(
            &format!("slow holder, {nodes} node(s)"),
            Scenario {
                options: slow,
                ..plain
            },
            false,
        ));
    }
    for point in strategy.crash_points {
        let options = vec![
            ("crash_at", *point),
            ("crash_node", "1"),
            ("crash_after", "1"),
        ];
        let scenario = Scenario {
            nodes: 3,
            // Enough for everybody: each node sells, and so comes by the point.
            stock: 25,
            options: options.leak(),
            ..Scenario::SMALL
        };
        cases.push(Case {
            crashes: !MAY_NOT_COME_BY.contains(&strategy.id),
            ..case(&format!("crash at \"{point}\""), scenario, false)
        });
    }
    cases
}

/// What a strategy's promise and its deeds have to do with each other; one line for each contradiction.
async fn contradictions(lab: &Lab, strategy: &'static Strategy, promise: Promise) -> Vec<String> {
    let mut found = missing_demonstrations(strategy, promise);
    let own = strategy
        .demonstrations
        .iter()
        .enumerate()
        .map(|(number, demonstration)| {
            let name = format!("demonstration {number} ({:?})", demonstration.shows);
            (
                Case {
                    name,
                    scenario: demonstration.scenario,
                    ordinary: false,
                    crashes: false,
                },
                Some(demonstration),
            )
        });
    let cases: Vec<(Case, Option<&Demonstration>)> = cases(strategy)
        .into_iter()
        .map(|case| (case, None))
        .chain(own)
        .collect();
    let judged: Vec<Vec<String>> = stream::iter(cases)
        .map(|(case, demonstration)| async move {
            let trial = Trial::of(strategy, &case.scenario);
            match trial.run(lab, Language::En, |_| {}).await {
                Ok(verdict) => judge(strategy, promise, &case, demonstration, &verdict),
                Err(error) => vec![format!("{}, {}: {error}", strategy.id, case.name)],
            }
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    found.extend(judged.into_iter().flatten());
    found
}

fn judge(
    strategy: &Strategy,
    promise: Promise,
    case: &Case,
    demonstration: Option<&Demonstration>,
    verdict: &Verdict,
) -> Vec<String> {
    let mut found = Vec::new();
    let mut contradiction = |what: String| {
        found.push(format!(
            "{}, {}: {what}: {verdict:?}",
            strategy.id, case.name
        ))
    };
    for (harm, likelihood) in promise.on(case.scenario.nodes).each() {
        match likelihood {
            Likelihood::Never if verdict.shows(harm) => {
                contradiction(format!("{harm:?} although it never does"))
            }
            Likelihood::Expected if case.ordinary && !verdict.shows(harm) => {
                contradiction(format!("not seen: {harm:?}"));
            }
            _ => {}
        }
    }
    if let Some(demonstration) = demonstration
        && !verdict.shows(demonstration.shows)
    {
        contradiction(format!(
            "the demonstration does not show {:?}",
            demonstration.shows
        ));
    }
    if case.crashes && !verdict.shows(Harm::Notes("node crashed")) {
        contradiction("the node did not crash".to_owned());
    }
    // What fails harms nobody by the rows: a strategy that did nothing but fail would keep any promise.
    let scenario = &case.scenario;
    let made_to_fail =
        |name: &str| ["crash_at", "failing_orders", "redis_nodes_down"].contains(&name);
    let may_fail = scenario.options.iter().any(|(name, _)| made_to_fail(name))
        || demonstration.is_some_and(|demonstration| demonstration.shows == Harm::Fails);
    if !may_fail && verdict.failed > 0 {
        contradiction("purchases failed".to_owned());
    }
    let could_be_sold = i64::from(
        scenario
            .stock
            .min(scenario.buyers * scenario.per_user_limit),
    );
    if !may_fail
        && scenario.per_user_limit == 1
        && promise.on(scenario.nodes).undersells == Likelihood::Never
        && verdict.sold < could_be_sold
    {
        contradiction(format!("fewer sold than {could_be_sold}"));
    }
    if !verdict.quiet {
        contradiction("not quiet".to_owned());
    }
    found
}

/// Everything possible needs a demonstration, on as many nodes as it is promised for.
fn missing_demonstrations(strategy: &Strategy, promise: Promise) -> Vec<String> {
    let mut found = Vec::new();
    for (several, harms) in [(false, promise.one_node), (true, promise.across_nodes)] {
        for (harm, likelihood) in harms.each() {
            // What one node does, several do too.
            let shown = strategy.demonstrations.iter().any(|demonstration| {
                demonstration.shows == harm && (demonstration.scenario.nodes == 1 || several)
            });
            if likelihood == Likelihood::Possible && !shown {
                let nodes = if several { "several nodes" } else { "one node" };
                found.push(format!(
                    "{}: {harm:?} is possible on {nodes}, and no demonstration shows it",
                    strategy.id
                ));
            }
        }
    }
    found
}

#[tokio::test]
async fn every_strategy_does_what_it_promises() {
    let (lab, database) = lab("conformance:").await;
    let lab = &lab;
    // LAB_ONLY=naive,hincrby exercises only these, for whoever works on one.
    let only = std::env::var("LAB_ONLY").unwrap_or_default();
    let chosen = STRATEGIES
        .iter()
        .filter(|strategy| only.is_empty() || only.split(',').any(|id| id == strategy.id));
    let found: Vec<Vec<String>> = stream::iter(chosen)
        .map(|strategy| async move {
            if let Some(why) = lab.lacks(strategy) {
                crate::locks::say(&format!("NOT EXERCISED: {}: {}", strategy.id, why.en));
                return Vec::new();
            }
            contradictions(lab, strategy, strategy.promise).await
        })
        .buffer_unordered(3)
        .collect()
        .await;
    let found: Vec<String> = found.into_iter().flatten().collect();
    assert!(
        found.is_empty(),
        "{} contradictions:\n{}",
        found.len(),
        found.join("\n")
    );
    lab.close().await;
    database.drop().await;
}

/// The suite can fail: each wrong promise about `naive` is found out.
#[tokio::test]
async fn a_wrong_promise_is_found_out() {
    let (lab, database) = lab("wrong-promise:").await;
    let naive = STRATEGIES
        .iter()
        .find(|strategy| strategy.id == "naive")
        .expect("naive");
    let true_harms = naive.promise.one_node;
    type Change = fn(&mut Harms);
    let changes: [(&str, Change); 5] = [
        ("Oversells although", |harms| {
            harms.oversells = Likelihood::Never
        }),
        ("Duplicates although", |harms| {
            harms.duplicates = Likelihood::Never
        }),
        ("Undersells although", |harms| {
            harms.undersells = Likelihood::Never
        }),
        ("not seen: Undersells", |harms| {
            harms.undersells = Likelihood::Expected
        }),
        ("no demonstration shows it", |harms| {
            harms.oversells = Likelihood::Possible
        }),
    ];
    for (what, change) in changes {
        let mut harms = true_harms;
        change(&mut harms);
        let promise = Promise {
            one_node: harms,
            across_nodes: harms,
        };
        let found = contradictions(&lab, naive, promise).await;
        assert!(
            found.iter().any(|line| line.contains(what)),
            "{what}: {found:#?}"
        );
    }
    // A strategy whose every purchase fails harms nobody, and is found out all the same.
    let sound = STRATEGIES
        .iter()
        .find(|strategy| strategy.id == "conditional-update")
        .expect("conditional-update");
    let plain = cases(sound).remove(0);
    let trial = Trial::of(sound, &plain.scenario);
    let mut verdict = trial
        .run(&lab, Language::En, |_| {})
        .await
        .expect("a verdict");
    let judged = |verdict: &Verdict| judge(sound, sound.promise, &plain, None, verdict);
    assert_eq!(judged(&verdict), Vec::<String>::new());
    (verdict.failed, verdict.sold) = (verdict.attempts, 0);
    let found = judged(&verdict);
    for what in ["purchases failed", "fewer sold than 5"] {
        assert!(found.iter().any(|line| line.contains(what)), "{found:#?}");
    }
    assert_eq!(
        contradictions(&lab, naive, naive.promise).await,
        Vec::<String>::new()
    );
    lab.close().await;
    database.drop().await;
}

/// No row of the list is missing, and nothing is here that is not in it.
#[test]
fn the_registry_is_the_list() {
    // 29 is the other form of 11.
    const LIST: &str = "1 naive, 2 process-mutex, 3 mutex-unlock-before-commit, 4 per-user-mutex, \
        5 row-lock, 6 version-column, 7 cas-stock, 8 conditional-update, 9 unique-order, \
        10 serializable, 11 advisory-lock, 12 db-lock-table, 13 setnx-expire, 14 setnx-getset, \
        15 set-px-no-owner, 16 token-lock, 17 reentrant-lock, 18 multi-lock, 18 redlock, \
        19 zookeeper-lock, 20 fenced-lock, 21 hincrby, 22 lock-and-hincrby, 23 lua-sync, \
        24 task-queue, 25 in-process-queue, 26 lua-stream, 27 sharded-local, 28 bucketed, \
        29 session-advisory-lock";
    let registry = STRATEGIES.iter();
    let registry: Vec<String> = registry
        .map(|strategy| format!("{} {}", strategy.number, strategy.id))
        .collect();
    assert_eq!(registry.join(", "), LIST);
}

#[test]
fn the_registry_is_in_order_and_says_everything_twice() {
    for (index, strategy) in STRATEGIES.iter().enumerate() {
        let place = strategy.id;
        assert!(
            index == 0 || STRATEGIES[index - 1].number <= strategy.number,
            "{place}"
        );
        let others = STRATEGIES.iter().filter(|other| other.id == strategy.id);
        assert_eq!(others.count(), 1, "{place}");
        let texts = [
            strategy.title,
            strategy.idea,
            strategy.source,
            strategy.fails,
            strategy.break_it,
            strategy.instead,
        ];
        let demonstrations = strategy
            .demonstrations
            .iter()
            .map(|demonstration| demonstration.teaches);
        let options = strategy.options.iter().map(|option| option.teaches);
        for text in texts.into_iter().chain(demonstrations).chain(options) {
            assert!(
                !text.en.is_empty() && text.en.is_ascii()
                    || text.en.contains('《')
                    || text.en.contains('é'),
                "{place}: {}",
                text.en
            );
            assert!(
                text.zh
                    .chars()
                    .any(|letter| ('\u{4e00}'..'\u{9fff}').contains(&letter)),
                "{place}: {}",
                text.zh
            );
        }
        let code = strategy.purchase_code();
        assert!(
            code.contains("impl Sell for") && code.lines().count() < 250,
            "{place}"
        );
        // What is said of a crash point is in the code that is shown.
        for point in strategy.crash_points {
            assert!(code.contains(point), "{place}: {point}");
        }
    }
    let shown = |harm: Harm| {
        STRATEGIES
            .iter()
            .flat_map(|strategy| strategy.demonstrations)
            .any(|one| one.shows == harm)
    };
    assert!(shown(Harm::Duplicates) && shown(Harm::Undersells));
}
