//! Every registered strategy keeps its promise, and its promise says all.
//!
//! The same scenarios for all: one node, three nodes, a storm of second clicks, a crash of a node at each
//! of the strategy's crash points, a holder that stops for a while; all under forced interleaving. What a
//! strategy calls `never` must not happen in any of them, nor in any of its own demonstrations; what it
//! calls `expected` must happen in the ordinary storm; what it calls `possible` must have a demonstration
//! that makes it happen. And every demonstration must show what it says.

use super::lab;
use flash_sale::lab::{
    Lab, STRATEGIES, Strategy, Trial,
    strategy::{Demonstration, Harm, Harms, Language, Likelihood, Promise, Scenario},
    verdict::Verdict,
};
use futures_util::{StreamExt, stream};

/// How many scenarios run at a time: mostly they wait.
const AT_ONCE: usize = 6;

/// A scenario that every strategy has to go through, and what is expected of it besides `never`.
struct Case {
    name: String,
    scenario: Scenario,
    /// Whether `expected` harms must show here.
    ordinary: bool,
}

fn cases(strategy: &'static Strategy) -> Vec<Case> {
    let case = |name: &str, scenario, ordinary| Case {
        name: name.to_owned(),
        scenario,
        ordinary,
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
            ("crash_after", "2"),
        ];
        let scenario = Scenario {
            nodes: 3,
            options: options.leak(),
            ..Scenario::SMALL
        };
        cases.push(case(&format!("crash at \"{point}\""), scenario, false));
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
                eprintln!("NOT EXERCISED: {}: {}", strategy.id, why.en);
                return Vec::new();
            }
            let began = std::time::Instant::now();
            let found = contradictions(lab, strategy, strategy.promise).await;
            eprintln!("{} took {:?}", strategy.id, began.elapsed());
            found
        })
        .buffer_unordered(6)
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
    let with = |harms: Harms| Promise {
        one_node: harms,
        across_nodes: harms,
    };
    for (what, promise) in [
        (
            "Oversells although",
            with(Harms {
                oversells: Likelihood::Never,
                ..true_harms
            }),
        ),
        (
            "Duplicates although",
            with(Harms {
                duplicates: Likelihood::Never,
                ..true_harms
            }),
        ),
        (
            "Undersells although",
            with(Harms {
                undersells: Likelihood::Never,
                ..true_harms
            }),
        ),
        (
            "not seen: Undersells",
            with(Harms {
                undersells: Likelihood::Expected,
                ..true_harms
            }),
        ),
        (
            "no demonstration shows it",
            with(Harms {
                oversells: Likelihood::Possible,
                ..true_harms
            }),
        ),
    ] {
        let found = contradictions(&lab, naive, promise).await;
        assert!(
            found.iter().any(|line| line.contains(what)),
            "{what}: {found:#?}"
        );
    }
    assert_eq!(
        contradictions(&lab, naive, naive.promise).await,
        Vec::<String>::new()
    );
    lab.close().await;
    database.drop().await;
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
