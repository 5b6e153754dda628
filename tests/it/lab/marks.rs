//! Marks and shape of every strategy; that marked lines run, the conformance suite shows.

use lab::marks::{Excerpt, Kind, MOST_LINES, Source};
use lab::strategy::{Harm, Language::En, Language::Zh, Likelihood::Never};
use lab::{STRATEGIES, Strategy, strategies::find};

/// How many lines may differ between two neighbours, on either side.
const MOST_DIFFERENCES: usize = 25;

/// Compared with nobody: a design of their own, and why.
const OWN_DESIGN: &[(&str, &str)] = &[
    ("row-lock", "two rows, so that a deadlock can be shown"),
    ("skip-locked", "a row for each unit"),
    ("group-update", "a leader of its own sells to groups"),
    ("in-process-queue", "a queue in memory and its writer"),
    ("transactional-message", "a relay of its own"),
    ("lua-stream", "a whole shop"),
    ("sharded-local", "the stock in memory, dealt at the start"),
    ("bucketed", "many keys, and a loan between them"),
];

#[test]
fn every_strategy_marks_its_lines() {
    for strategy in STRATEGIES {
        let (id, marks) = (strategy.id, strategy.marks(En));
        // A lane shows two; the other lines of `lua-stream` are the shop's.
        assert!(marks.len() > usize::from(id != "lua-stream"), "{id}: {marks:?}");
        let is_sound = strategy.promise.across_nodes.each().iter().all(|(_, how)| *how == Never);
        let promised = if is_sound { Kind::Cure } else { Kind::Flaw };
        assert!(marks.iter().any(|mark| mark.kind == promised), "{id} marks no {promised:?}");
        for shown in strategy.demonstrations {
            let mark = &marks[shown.mark.expect(shown.id)];
            let is_of_its_kind = (mark.kind == Kind::Cure) == (shown.shows == Harm::Holds);
            let is_right = is_of_its_kind || matches!(shown.shows, Harm::Notes(_));
            assert!(is_right, "{id}, {}: {mark:?}", shown.id);
        }
        for (mark, chinese) in marks.iter().zip(strategy.marks(Zh)) {
            let at = format!("{}:{}", mark.file, mark.marked_line);
            assert!(mark.code.lines().count() <= MOST_LINES, "{at}: a long excerpt");
            assert!(mark.lines().contains(&mark.marked_line), "{at}: the mark is not shown");
            assert_ne!(mark.words, chinese.words, "{at}: not in Chinese");
        }
    }
}

/// A variant of a lock that stands in a lesson decides on the strategy's page, too.
#[test]
fn the_variant_that_an_option_chooses_is_marked() {
    let marks = find("setnx-expire").expect("a strategy").marks(En);
    let of_the_lesson = |mark: &&Excerpt| mark.file.ends_with("lessons/b01_crash_between.rs");
    let mark = marks.iter().find(of_the_lesson).expect("the line of delete-and-take");
    let line = mark.code.lines().nth(mark.marked_line + 1 - mark.first_line);
    assert!(line.is_some_and(|line| line.contains("DEL")), "{mark:?}");
    assert_eq!(mark.kind, Kind::Flaw);
}

/// The purchase without comments, and without what it shares with others.
fn purchase(strategy: &Strategy) -> Vec<String> {
    let code = strategy.purchase_code();
    let own = code.split("// shared by several strategies").next().unwrap_or("");
    let without = |own: String, script: &Source| own.replace(script.text.trim(), "");
    let own = strategy.scripts.iter().fold(own.to_owned(), without);
    let lines = own.lines().map(|line| line.split("//").next().unwrap_or("").trim());
    lines.filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

fn in_common(one: &[String], other: &[String]) -> usize {
    let mut row = vec![0; other.len() + 1];
    for line in one {
        let above = row.clone();
        for (at, another) in other.iter().enumerate() {
            row[at + 1] = if line == another { above[at] + 1 } else { above[at + 1].max(row[at]) };
        }
    }
    row[other.len()]
}

/// A strategy's neighbour is the one most like it among those that are taught before it.
#[test]
fn neighbours_differ_in_the_lines_that_matter() {
    let mut long = Vec::new();
    for (at, strategy) in STRATEGIES.iter().enumerate().skip(1) {
        let differences = |earlier: &Strategy| {
            let (one, other) = (purchase(earlier), purchase(strategy));
            (one.len().max(other.len()) - in_common(&one, &other), earlier.id)
        };
        let Some((lines, neighbour)) = STRATEGIES[..at].iter().map(differences).min() else {
            continue;
        };
        println!("{} differs from {neighbour} in {lines} lines", strategy.id);
        if (lines > MOST_DIFFERENCES) != OWN_DESIGN.iter().any(|(id, _)| *id == strategy.id) {
            long.push((strategy.id, neighbour, lines));
        }
    }
    assert_eq!(long, [], "more than {MOST_DIFFERENCES} lines, or an exception without need");
}

#[test]
fn what_two_have_in_common_is_counted_in_order() {
    let lines = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    for (one, other, common) in [("a b c", "a c", 2), ("a b", "b a", 1), ("a", "b", 0)] {
        assert_eq!(in_common(&lines(one), &lines(other)), common, "{one} and {other}");
    }
}
