//! The checker: holdings that overlap, numbers out of order, holders that were not told.

use locks::Why;
use std::{collections::HashSet, time::Duration};

/// One client believed to hold the lock. Times: nanoseconds of one monotonic clock.
#[derive(Debug, Clone)]
pub struct Holding {
    pub client: usize,
    pub from: u64,
    pub until: u64,
    pub sure: Option<u64>,
    pub end: End,
    pub fencing: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Blind,
    /// Its work, which was due then, was done, and no signal had come.
    Work {
        due: u64,
    },
    Told(Why),
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Violations {
    pub two_holders: usize,
    /// Pairs of holdings of which the later has a lower number, or that of another client.
    pub numbers_out_of_order: usize,
    pub not_told: usize,
}

/// The timer is precise to a millisecond, so work that is due that close may end first.
const TIMER: Duration = Duration::from_millis(2);

/// Touching is not overlapping: one holding may begin in the instant in which another ends.
pub fn check(history: &[Holding]) -> Violations {
    let mut found = Violations::default();
    for (index, a) in history.iter().enumerate() {
        if let (End::Work { due }, Some(sure)) = (a.end, a.sure) {
            found.not_told += usize::from(due > sure + nanos(TIMER));
        }
        for b in &history[index + 1..] {
            let (first, second) = if a.from <= b.from { (a, b) } else { (b, a) };
            if second.from < first.until {
                found.two_holders += 1;
            } else if let (Some(earlier), Some(later)) = (first.fencing, second.fencing) {
                // A reentrant owner that could not release its lock has it still, under one number.
                let repeated = later == earlier && first.client != second.client;
                found.numbers_out_of_order += usize::from(later < earlier || repeated);
            }
        }
    }
    found
}

pub fn two_holders(history: &[Holding]) -> bool {
    check(history).two_holders > 0
}

pub fn times_told(history: &[Holding]) -> usize {
    history.iter().filter(|holding: &&Holding| matches!(holding.end, End::Told(_))).count()
}

pub fn several_holders(history: &[Holding]) -> bool {
    let clients: HashSet<_> = history.iter().map(|holding| holding.client).collect();
    history.len() > 5 && clients.len() > 1
}

pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("a short time")
}

/// From a row: client, from, until, fencing number.
fn holding(row: &str) -> Holding {
    let mut numbers = row.split_whitespace().map(|word| word.parse().expect("a number"));
    let mut next = || numbers.next().expect("four numbers");
    Holding {
        client: next() as usize,
        from: next(),
        until: next(),
        sure: None,
        end: End::Blind,
        fencing: Some(next()),
    }
}

#[test]
fn the_checker_finds_what_is_planted_and_nothing_else() {
    let (alone, two, three, out_of_order) = ((0, 0), (1, 0), (3, 0), (0, 1));
    for (case, holdings, (two_holders, numbers_out_of_order)) in [
        ("in turns", "1 0 10 1, 2 10 20 2, 1 25 30 3", alone),
        ("inside", "1 0 100 1, 2 40 50 2, 3 200 201 3", two),
        ("by a nanosecond", "2 10 20 2, 1 0 11 1", two),
        ("all at once", "1 0 9 1, 2 1 9 2, 3 2 9 3", three),
        ("counted anew", "1 0 1 7, 2 2 3 1", out_of_order),
        ("numbered twice", "1 0 1 7, 2 2 3 7", out_of_order),
        ("never released", "1 0 1 7, 1 2 3 7", alone),
    ] {
        let history: Vec<Holding> = holdings.split(',').map(holding).collect();
        let expected = Violations { two_holders, numbers_out_of_order, ..Violations::default() };
        assert_eq!(check(&history), expected, "{case}");
    }
}

#[test]
fn the_checker_finds_a_signal_that_does_not_come() {
    let with = |sure, end| [Holding { sure, end, ..holding("1 0 1000000000 1") }];
    let sure = Some(1_000_000_000);
    let due = |due| End::Work { due };
    for (case, sure, end, not_told) in [
        ("nothing woke it", sure, due(2_000_000_000), 1),
        ("done in time", sure, due(500_000_000), 0),
        ("too close to tell", sure, due(1_000_000_001), 0),
        ("it was told", sure, End::Told(Why::LeaseOver), 0),
        ("it does not listen", sure, End::Blind, 0),
        ("its guard is never sure", None, due(2_000_000_000), 0),
    ] {
        assert_eq!(check(&with(sure, end)).not_told, not_told, "{case}");
        let told = usize::from(matches!(end, End::Told(_)));
        assert_eq!(times_told(&with(sure, end)), told, "{case}");
    }
}
