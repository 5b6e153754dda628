//! Whether a strategy keeps its promise: its scenarios under forced interleaving, and the
//! contradictions in a verdict. For the tests and `lab grade`.

use crate::strategy::{
    Demonstration, Harm, Language, Likelihood, Promise, Scenario, Strategy, Words,
};
use crate::{STRATEGIES, lessons::timeline::Said, texts, verdict::Verdict};

/// Strategies of which no particular node has to pass the crash point: only one node of a task
/// queue is the consumer; any node's relay may take a message; all buyers of a node may lose to
/// others; a leaked lock stays on one node.
const MAY_NOT_CRASH: [&str; 6] = [
    "task-queue",
    "version-column",
    "cas-stock",
    "serializable",
    "session-advisory-lock",
    "transactional-message",
];

/// An item of `texts/{en,zh}/grade.md`, about these words.
fn about(key: &'static str, en: &str, zh: &str) -> Said {
    let words = Words::of("grade", "Words", key);
    Said { en: words.en.replace("{}", en), zh: words.zh.replace("{}", zh) }
}

/// About a number, or the name of a point.
fn said(key: &'static str, of: impl ToString) -> Said {
    let of = of.to_string();
    about(key, &of, &of)
}

fn of_harm(key: &'static str, harm: Harm) -> Said {
    if let Harm::Notes(note) = harm {
        return said(key, note);
    }
    let name = format!("{harm:?}");
    let text = |language| texts::of("grade", language)?.item("Harms", &name);
    about(key, text(Language::En).unwrap_or(&name), text(Language::Zh).unwrap_or(&name))
}

pub struct Case {
    pub name: Said,
    pub scenario: Scenario,
    /// Harms that are promised as `expected` must show here.
    ordinary: bool,
    /// A node must crash, because it passes the point for certain.
    crashes: bool,
    /// The harm that must show here.
    pub shows: Option<Harm>,
    /// The mark whose line must run here.
    pub mark: Option<usize>,
}

impl Case {
    fn new(name: Said, scenario: Scenario) -> Self {
        Self { name, scenario, ordinary: false, crashes: false, shows: None, mark: None }
    }
}

/// Nobody gives up waiting for a lock before the crashing node had it, however busy the machine is;
/// but a lock that has lost its end is only repaired by those who gave up.
fn waits(strategy: &Strategy, point: &str) -> &'static [(&'static str, &'static str)] {
    let is_asked = strategy.options.iter().any(|option| option.name == "wait_ms");
    if is_asked && point != "between SETNX and EXPIRE" { &[("wait_ms", "20000")] } else { &[] }
}

/// The scenarios that every strategy has to go through, and its own demonstrations.
pub fn cases(strategy: &'static Strategy) -> Vec<Case> {
    let mut cases = Vec::new();
    for nodes in [1, 3] {
        let plain = Scenario { nodes, ..Scenario::SMALL };
        cases.push(Case { ordinary: true, ..Case::new(said("case", nodes), plain) });
        let clicks = plain.stock(8).buyers(16).double_clicks();
        cases.push(Case::new(said("clicks", nodes), clicks));
        let options: &[_] = &[("pause_ms", "60"), ("work_ms", "2")];
        let slow = Scenario { options, ..plain };
        cases.push(Case::new(said("slow", nodes), slow));
    }
    for point in strategy.crash_points {
        let crash = [("crash_node", "1"), ("crash_after", "1")];
        let scenario = Scenario {
            nodes: 3,
            // Enough for everybody: each node sells, and so passes the point.
            stock: 25,
            options: [&crash[..], &[("crash_at", *point)], waits(strategy, point)].concat().leak(),
            ..Scenario::SMALL
        };
        let crashes = !MAY_NOT_CRASH.contains(&strategy.id);
        cases.push(Case { crashes, ..Case::new(said("crash", point), scenario) });
    }
    cases.extend(strategy.demonstrations.iter().map(|own| Case {
        shows: Some(own.shows),
        mark: own.mark,
        ..Case::new(of_harm("demonstration", own.shows), own.scenario)
    }));
    cases
}

/// More cases for `lab grade`: a crash while nobody else is buying. A lost unit shows, because
/// later buyers find it missing.
pub fn lonely_crashes(strategy: &'static Strategy) -> impl Iterator<Item = Case> {
    strategy.crash_points.iter().map(|point| {
        let options = vec![("crash_at", *point), ("restart_ms", "0")].leak();
        let scenario = Scenario::SMALL.concurrency(1).options(options);
        Case { crashes: true, ..Case::new(said("lonely-crash", point), scenario) }
    })
}

/// The ways in which this verdict contradicts the promise.
pub fn contradictions(promise: Promise, case: &Case, verdict: &Verdict) -> Vec<Said> {
    let mut found = Vec::new();
    let scenario = &case.scenario;
    let promised = promise.on(scenario.nodes);
    for (harm, likelihood) in promised.each() {
        let happened = verdict.shows(harm);
        if likelihood == Likelihood::Never && happened {
            found.push(of_harm("undeclared", harm));
        }
        if likelihood == Likelihood::Expected && case.ordinary && !happened {
            found.push(of_harm("unseen", harm));
        }
    }
    if found.is_empty() && verdict.lost > 0 && !verdict.kept_promise {
        found.push(of_harm("undeclared", Harm::Loses));
    }
    if let Some(harm) = case.shows.filter(|harm| !verdict.shows(*harm)) {
        found.push(of_harm("not-shown", harm));
    }
    // By its rows a failure harms nobody: a strategy that only failed would keep any promise.
    let failing = ["crash_at", "failing_orders", "redis_nodes_down"];
    let mut options = scenario.options.iter().map(|(name, _)| name);
    let may_fail = case.shows == Some(Harm::Fails) || options.any(|name| failing.contains(name));
    let could_be_sold = i64::from(scenario.stock.min(scenario.buyers));
    let must_sell = !may_fail && promised.undersells == Likelihood::Never;
    let sold_nothing = case.shows == Some(Harm::Holds) && verdict.sold == 0;
    let crashed = verdict.shows(Harm::Notes("node crashed"));
    for (is_wrong, what) in [
        (case.crashes && !crashed, "no-crash"),
        (!may_fail && verdict.failed > 0, "failed"),
        (must_sell && verdict.sold < could_be_sold || sold_nothing, "too-few"),
        (!verdict.quiet, "not-quiet"),
    ] {
        found.extend(is_wrong.then(|| said(what, "")));
    }
    found
}

/// Every possible harm needs a demonstration, on as many nodes as it is promised for.
pub fn missing_demonstrations(strategy: &Strategy, promise: Promise) -> Vec<Said> {
    let mut found = Vec::new();
    for (several, harms) in [(false, promise.one_node), (true, promise.across_nodes)] {
        for (harm, likelihood) in harms.each() {
            // A harm on one node is one on several, too.
            let shows =
                |one: &Demonstration| one.shows == harm && (one.scenario.nodes == 1 || several);
            if likelihood == Likelihood::Possible && !strategy.demonstrations.iter().any(shows) {
                found.push(of_harm(if several { "missing-on-nodes" } else { "missing" }, harm));
            }
        }
    }
    found
}

/// A strategy of one's own that nothing disturbs has shown nothing.
pub fn untried(strategy: &Strategy, interleaves: bool) -> Vec<Said> {
    let crashes = !strategy.crash_points.is_empty();
    let tried = [(crashes, "no-crash-tried"), (interleaves, "nobody-met")];
    let is_taught = STRATEGIES.iter().any(|taught| taught.id == strategy.id);
    let missing = tried.iter().filter(|(is_tried, _)| !is_tried && !is_taught);
    missing.map(|(_, what)| said(what, "")).collect()
}
