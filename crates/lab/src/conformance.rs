//! Whether a strategy keeps its promise: its scenarios under forced interleaving, and the
//! contradictions in a verdict. For the tests and `lab grade`.

use crate::strategy::{Demonstration, Harm, Likelihood, Promise, Scenario, Strategy};
use crate::{STRATEGIES, lessons::timeline::Said, verdict::Verdict};

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

fn said(en: impl Into<String>, zh: impl Into<String>) -> Said {
    Said { en: en.into(), zh: zh.into() }
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
}

impl Case {
    fn new(name: Said, scenario: Scenario) -> Self {
        Self { name, scenario, ordinary: false, crashes: false, shows: None }
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
        let on = |en: &str, zh: &str| {
            said(format!("{en}{nodes} node(s)"), format!("{zh}{nodes} 个节点"))
        };
        let plain = Scenario { nodes, ..Scenario::SMALL };
        cases.push(Case { ordinary: true, ..Case::new(on("", ""), plain) });
        let clicks = plain.stock(8).buyers(16).double_clicks();
        cases.push(Case::new(on("second clicks, ", "连点两下，"), clicks));
        let options: &[_] = &[("pause_ms", "60"), ("work_ms", "2")];
        let slow = Scenario { options, ..plain };
        cases.push(Case::new(on("slow holder, ", "持有者很慢，"), slow));
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
        let name = said(format!("crash at {point}"), format!("崩溃：{point}"));
        cases.push(Case { crashes, ..Case::new(name, scenario) });
    }
    cases.extend(strategy.demonstrations.iter().map(|own| Case {
        shows: Some(own.shows),
        ..Case::new(shown("demonstration of ", "演示", own.shows), own.scenario)
    }));
    cases
}

/// More cases for `lab grade`: a crash while nobody else is buying. A lost unit shows, because
/// later buyers find it missing.
pub fn lonely_crashes(strategy: &'static Strategy) -> impl Iterator<Item = Case> {
    strategy.crash_points.iter().map(|point| {
        let options = vec![("crash_at", *point), ("restart_ms", "0")].leak();
        let (en, zh) =
            (format!("crash at {point}, one buyer at a time"), format!("崩溃：{point}，一次一人"));
        let scenario = Scenario::SMALL.concurrency(1).options(options);
        Case { crashes: true, ..Case::new(said(en, zh), scenario) }
    })
}

/// Both languages, with the name of the harm behind.
fn shown(en: &str, zh: &str, harm: Harm) -> Said {
    let chinese = match harm {
        Harm::Oversells => "超卖",
        Harm::Undersells => "少卖",
        Harm::Duplicates => "重复卖",
        Harm::Loses => "丢单",
        Harm::Contends => "没抢到",
        Harm::Fails => "出错",
        Harm::Notes(note) => note,
        Harm::Holds => "守住",
    };
    said(format!("{en}{harm:?}"), format!("{zh}：{chinese}"))
}

/// The ways in which this verdict contradicts the promise.
pub fn contradictions(promise: Promise, case: &Case, verdict: &Verdict) -> Vec<Said> {
    let mut found = Vec::new();
    let scenario = &case.scenario;
    let promised = promise.on(scenario.nodes);
    for (harm, likelihood) in promised.each() {
        let happened = verdict.shows(harm);
        if likelihood == Likelihood::Never && happened {
            let zh = shown("", "没有声明，却出现", harm).zh;
            found.push(said(format!("{harm:?}, which it does not declare"), zh));
        }
        if likelihood == Likelihood::Expected && case.ordinary && !happened {
            found.push(shown("not seen: ", "没有出现", harm));
        }
    }
    if let Some(harm) = case.shows.filter(|harm| !verdict.shows(*harm)) {
        found.push(shown("the demonstration does not show ", "演示没有显示", harm));
    }
    // By its rows a failure harms nobody: a strategy that only failed would keep any promise.
    let failing = ["crash_at", "failing_orders", "redis_nodes_down"];
    let mut options = scenario.options.iter().map(|(name, _)| name);
    let may_fail = case.shows == Some(Harm::Fails) || options.any(|name| failing.contains(name));
    let could_be_sold = i64::from(scenario.stock.min(scenario.buyers));
    let must_sell = !may_fail && promised.undersells == Likelihood::Never;
    let crashed = verdict.shows(Harm::Notes("node crashed"));
    for (is_wrong, en, zh) in [
        (case.crashes && !crashed, "the node did not crash", "节点没有崩溃"),
        (!may_fail && verdict.failed > 0, "purchases failed", "有购买出错"),
        (must_sell && verdict.sold < could_be_sold, "fewer sold than could be", "卖得太少"),
        (!verdict.quiet, "not quiet", "裁决时还有购买在途"),
    ] {
        found.extend(is_wrong.then(|| said(en, zh)));
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
                let (en, zh) = if several { ("nodes", "多节点") } else { ("node", "单节点") };
                let what = shown("no demonstration shows ", "没有演示", harm);
                found.push(said(format!("{} ({en})", what.en), format!("{}（{zh}）", what.zh)));
            }
        }
    }
    found
}

/// A strategy of one's own that nothing disturbs has shown nothing.
pub fn untried(strategy: &Strategy, interleaves: bool) -> Vec<Said> {
    let crashes = !strategy.crash_points.is_empty();
    let tried = [
        (crashes, "no crash was tried: it names no crash point", "没有试过崩溃：它没有崩溃点"),
        (
            interleaves,
            "no purchase met another: it never calls interleave",
            "没有两次购买相遇：它从不调用 interleave",
        ),
    ];
    let is_taught = STRATEGIES.iter().any(|taught| taught.id == strategy.id);
    let missing = tried.iter().filter(|(is_tried, ..)| !is_tried && !is_taught);
    missing.map(|(_, en, zh)| said(*en, *zh)).collect()
}
