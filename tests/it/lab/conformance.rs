//! Every strategy keeps its promise under forced interleaving, and shows its harms (docs/lab.md).

use crate::support::{not_exercised, prelude::*, test_lab::TestLab, trace::*};
use lab::conformance::{self, Case, cases, missing_demonstrations, untried};
use lab::strategies::{find, solutions::STRATEGIES as SOLUTIONS};
use lab::strategy::{Harm, Harms, Language, Likelihood, Need, Promise};
use lab::verdict::{Outcome, Verdict};
use lab::{Lab, STRATEGIES, Strategy, Trial, arena::Arena, command::grade::grade};
use lab::{lessons::LESSONS, marks::Excerpt, servers::Servers};

const AT_ONCE: usize = 3;

/// Two labs: in the second the first buyer waits long for the second, who is sure to come.
struct Labs {
    both: [TestLab; 2],
    /// What this thread does, where it is the only one; else nothing.
    trace: Trace,
}

impl Labs {
    async fn start(prefix: &str) -> Self {
        let patient = |servers: &mut Servers| servers.first_wait = Duration::from_secs(5);
        let patient = TestLab::with(&format!("patient-{prefix}"), patient).await;
        Self { both: [TestLab::start(prefix).await, patient], trace: Trace::default() }
    }

    async fn finish(self) {
        for lab in self.both {
            lab.finish().await;
        }
    }

    fn of(&self, case: &Case) -> &Lab {
        &self.both[usize::from(case.shows.is_some_and(|harm| harm != Harm::Holds))]
    }
}

async fn contradictions(labs: &Labs, strategy: &'static Strategy, promise: Promise) -> Vec<String> {
    let ran = Mutex::<Lines>::default();
    let marks = strategy.marks(Language::En);
    // Of a lock's own lines some are only traced: what is traced has to be of the one that runs.
    let in_lock = |at: usize| marks[at].file.starts_with("crates/locks/");
    let is_in_lock = |case: &Case| case.mark.is_some_and(in_lock);
    let run = async |case: Case| {
        let (trial, lab) = (Trial::of(strategy, &case.scenario), labs.of(&case));
        if is_in_lock(&case) {
            labs.trace.clear();
        }
        let mut shared = None;
        let watch = |arena: &Arena| shared = Some(arena.shared.clone());
        let mut found = match trial.run(lab, Language::En, watch).await {
            Ok(verdict) => contradictions_in(promise, &case, &verdict),
            Err(error) => vec![error.to_string()],
        };
        let mut here = labs.trace.lines("");
        if let (Some(shared), Some(_)) = (shared, case.shows) {
            here.extend(shared.meter.lines());
            found.extend(case.mark.and_then(|at| not_run(&marks[at], &here)));
        }
        ran.lock().expect("the lines").extend(here);
        let at = |what| format!("{}, {}: {what}", strategy.id, case.name.en);
        found.into_iter().map(at).collect::<Vec<_>>()
    };
    labs.trace.clear();
    let (alone, others): (Vec<_>, _) = cases(strategy).into_iter().partition(is_in_lock);
    let others = stream::iter::<Vec<_>>(others).map(&run).buffer_unordered(AT_ONCE);
    let found: Vec<_> = others.chain(stream::iter(alone).then(&run)).collect().await;
    let missing = missing_demonstrations(strategy, promise).into_iter();
    let missing = missing.map(|what| format!("{}: {}", strategy.id, what.en));
    let ran = ran.into_inner().expect("the lines");
    let unseen = marks.iter().filter(|mark| !runs_in_lessons(mark));
    let unseen = unseen.filter_map(|mark| not_run(mark, &ran));
    missing.chain(found.into_iter().flatten()).chain(unseen).collect()
}

/// Shown beside a lock, and run by the acts of lessons that show them, too.
const RUN_IN_LESSONS: [(&str, &str); 3] = [
    ("crates/lab/src/lessons/b01_crash_between.rs", "cmd(\"DEL\")"),
    ("crates/locks/src/watchdog.rs", "hold.lose(Why::LeaseOver)"),
    ("crates/locks/src/watchdog.rs", "Ok(Err(error))"),
];

fn not_run(mark: &Excerpt, ran: &Lines) -> Option<String> {
    (!ran_in(mark, ran)).then(|| format!("{}:{}: not run", mark.file, mark.marked_line))
}

fn runs_in_lessons(mark: &Excerpt) -> bool {
    let line = mark.code.lines().nth(mark.marked_line + 1 - mark.first_line).expect("it");
    RUN_IN_LESSONS.iter().any(|(file, code)| *file == mark.file && line.contains(code))
}

fn contradictions_in(promise: Promise, case: &Case, verdict: &Verdict) -> Vec<String> {
    let found = conformance::contradictions(promise, case, verdict);
    found.iter().map(|what| format!("{}: {verdict:?}", what.en)).collect()
}

async fn strategies_keep_their_promises(labs: Labs, at_once: usize, chosen: fn(&Strategy) -> bool) {
    // LAB_ONLY=naive,hincrby runs only these, for work on one strategy.
    let only = std::env::var("LAB_ONLY").unwrap_or_default();
    let is_chosen = |id| only.is_empty() || only.split(',').any(|one| one == id);
    let check = async |strategy: &'static Strategy| match labs.both[0].lacks(strategy) {
        Some(why) => {
            not_exercised(&format!("{}: {}", strategy.id, why.en));
            Vec::new()
        }
        None => contradictions(&labs, strategy, strategy.promise).await,
    };
    let chosen = STRATEGIES.iter().filter(|one| chosen(one) && is_chosen(one.id));
    let found = stream::iter(chosen).map(check).buffer_unordered(at_once);
    let found: Vec<String> = found.collect::<Vec<_>>().await.concat();
    assert_eq!(found.len(), 0, "contradictions:\n{}", found.join("\n"));
    labs.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_strategy_does_what_it_promises() {
    let labs = Labs::start("conformance:").await;
    strategies_keep_their_promises(labs, AT_ONCE, |one| one.locks.is_empty()).await;
}

/// One after the other on one thread: what is traced meanwhile is this strategy's.
async fn traced_strategies(prefix: &str, chosen: fn(&Strategy) -> bool) {
    let (trace, _guard) = Trace::here();
    let labs = Labs { trace, ..Labs::start(prefix).await };
    strategies_keep_their_promises(labs, 1, chosen).await;
}

fn asks_several(strategy: &Strategy) -> bool {
    strategy.needs.iter().any(|need| matches!(need, Need::RedisNodes(_)))
}

#[tokio::test]
async fn every_strategy_with_a_lock_in_one_server_does_what_it_promises() {
    traced_strategies("one-lock:", |one| !one.locks.is_empty() && !asks_several(one)).await;
}

#[tokio::test]
async fn every_strategy_with_a_lock_in_several_servers_does_what_it_promises() {
    traced_strategies("several-locks:", |one| !one.locks.is_empty() && asks_several(one)).await;
}

#[track_caller]
fn assert_found(found: &[String], what: &str) {
    assert!(found.iter().any(|line| line.contains(what)), "{what}: {found:#?}");
}

/// The suite can fail: it notices each wrong promise about `naive`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_promise_is_noticed() {
    use Likelihood::{Expected, Never, Possible};
    let labs = Labs::start("wrong-promise:").await;
    let [naive, sound] = ["naive", "conditional-update"].map(|id| find(id).expect(id));
    let contradictions = async |promise| contradictions(&labs, naive, promise).await;
    type Change = fn(&mut Harms);
    let wrong: [(&str, Change); 5] = [
        ("Oversells, which", |harms| harms.oversells = Never),
        ("Duplicates, which", |harms| harms.duplicates = Never),
        ("Undersells, which", |harms| harms.undersells = Never),
        ("not seen: Undersells", |harms| harms.undersells = Expected),
        ("no demonstration shows", |harms| harms.oversells = Possible),
    ];
    for (what, change) in wrong {
        let mut promise = naive.promise;
        promise.across_nodes = promise.one_node;
        change(&mut promise.one_node);
        change(&mut promise.across_nodes);
        assert_found(&contradictions(promise).await, what);
    }
    assert_eq!(contradictions(naive.promise).await, [""; 0]);
    // A strategy whose every purchase fails harms nobody, and is noticed all the same.
    let plain = cases(sound).remove(0);
    let trial = Trial::of(sound, &plain.scenario);
    let verdict = trial.run(labs.of(&plain), Language::En, |_| {}).await;
    let mut verdict = verdict.expect("a verdict");
    assert_eq!(contradictions_in(sound.promise, &plain, &verdict), [""; 0]);
    (verdict.failed, verdict.sold) = (verdict.attempts, 0);
    let found = contradictions_in(sound.promise, &plain, &verdict);
    assert_found(&found, "purchases failed");
    assert_found(&found, "fewer sold than could be");
    // Nor does it hold if nothing was sold, even where purchases may fail.
    let mut holds = plain;
    holds.scenario.options = &[("crash_at", "anywhere")];
    holds.shows = Some(Harm::Holds);
    (verdict.failed, verdict.outcome) = (verdict.attempts, Outcome::Failed);
    let found = contradictions_in(sound.promise, &holds, &verdict);
    assert_found(&found, "fewer sold than could be");
    (verdict.lost, verdict.kept_promise) = (1, false);
    assert_found(&contradictions_in(sound.promise, &holds, &verdict), "Loses, which");
    labs.finish().await;
}

#[test]
fn marks_that_only_lessons_run_are_marks_of_their_acts() {
    let marks = LESSONS.iter().flat_map(|lesson| lesson.acts).flat_map(|act| act.marks);
    let marks: Vec<(&str, &str)> = marks.map(|mark| (mark.file, mark.code)).collect();
    assert!(RUN_IN_LESSONS.iter().all(|excused| marks.contains(excused)), "{marks:?}");
}

#[test]
fn the_purchase_comes_first_and_names_its_crash_points() {
    for strategy in STRATEGIES {
        let (id, code) = (strategy.id, strategy.purchase_code());
        assert!(code.contains("impl Sell for"), "{id}");
        assert!(code.lines().count() < 250, "{id}");
        for point in strategy.crash_points {
            assert!(code.contains(point), "{id}: {point}");
        }
    }
}

/// docs/exercises.md: each task can be solved, and the file that they begin with is broken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_solutions_of_the_exercises_pass() {
    let lab = TestLab::start("exercises:").await;
    let grade = async |strategy: &'static Strategy| {
        let grade = grade(strategy, &lab, Language::En, |_, _| {}).await.expect("a grade");
        (grade.holds, serde_json::to_string_pretty(&grade).expect("JSON"))
    };
    let grades = stream::iter(SOLUTIONS).map(grade).buffer_unordered(AT_ONCE);
    let broken = grades.filter_map(async |(holds, grade)| (!holds).then_some(grade));
    let broken = broken.collect::<Vec<_>>().await;
    assert_eq!(broken.len(), 0, "{}", broken.join("\n"));
    let (holds, example) = grade(find("example").expect("the template")).await;
    assert!(!holds && example.contains("Oversells, which"), "{example}");
    // A unit that a crash loses is missed, even if that is not declared and not demonstrated.
    let loses = find("solution-7").expect("a solution");
    let silent = Strategy { promise: Promise::SOUND, demonstrations: &[], ..*loses };
    let (holds, silent) = grade(Box::leak(Box::new(silent))).await;
    assert!(!holds && silent.contains("Undersells, which"), "{silent}");
    // A strategy that nothing disturbs has shown nothing.
    let calm = Strategy { crash_points: &[], demonstrations: &[], ..*loses };
    let (holds, graded) = grade(Box::leak(Box::new(calm))).await;
    assert!(!holds && graded.contains("no crash was tried"), "{graded}");
    assert!(!graded.contains("no purchase met another"), "{graded}");
    let found = untried(loses, false);
    assert!(found.len() == 1 && found[0].en.starts_with("no purchase met another"), "{found:?}");
    assert_eq!(untried(find("lua-stream").expect("a strategy"), false).len(), 0);
    lab.finish().await;
}
