//! The judge: beliefs that overlap are two holders, a write applied after one with a newer number
//! is stale, and who works on beyond what their guard vouched for was not told.

use flash_sale::lock::Why;
use std::time::Duration;

/// One client's belief to hold the lock, and what it wrote under it. Times are nanoseconds of one monotonic
/// clock.
#[derive(Debug, Clone)]
pub struct Belief {
    pub client: usize,
    pub from: u64,
    pub until: u64,
    /// How long its guard said that it could be sure.
    pub sure: Option<u64>,
    pub end: End,
    pub fencing: Option<u64>,
    pub writes: Vec<Written>,
}

/// Why a client stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It listens to nobody, and came to the end of its work.
    Blind,
    /// It would have stopped if told, and came to the end of its work, which was due then.
    Work {
        due: u64,
    },
    Told(Why),
}

#[derive(Debug, Clone, Copy)]
pub struct Written {
    pub fencing: u64,
    pub begun: u64,
    pub ended: u64,
    pub applied: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// Pairs of beliefs that overlap.
    pub two_holders: usize,
    /// Pairs of beliefs of which the later has a lower number, or the same as another client.
    pub numbers_out_of_order: usize,
    /// Pairs of applied writes of which the later has an older number.
    pub stale_writes: usize,
    /// Beliefs that went on beyond what their guard vouched for, because the signal did not come.
    pub not_told: usize,
}

/// The timer is precise to a millisecond, so work that is due that close may end first.
const TIMER: Duration = Duration::from_millis(2);

/// Touching is not overlapping: one may begin in the instant in which the other ends.
pub fn judge(history: &[Belief]) -> Judgement {
    let mut judgement = Judgement::default();
    for (index, a) in history.iter().enumerate() {
        if let (End::Work { due }, Some(sure)) = (a.end, a.sure)
            && due > sure + nanos(TIMER)
        {
            judgement.not_told += 1;
        }
        for b in &history[index + 1..] {
            let (first, second) = if a.from <= b.from { (a, b) } else { (b, a) };
            if second.from < first.until {
                judgement.two_holders += 1;
            } else if let (Some(earlier), Some(later)) = (first.fencing, second.fencing)
                // A reentrant owner that could not give its lock back has it still, under the same number.
                && (later < earlier || (later == earlier && first.client != second.client))
            {
                judgement.numbers_out_of_order += 1;
            }
        }
    }
    let applied: Vec<Written> = writes(history).filter(|write| write.applied).collect();
    for earlier in &applied {
        let stale = applied
            .iter()
            .filter(|later| earlier.ended < later.begun && later.fencing < earlier.fencing);
        judgement.stale_writes += stale.count();
    }
    judgement
}

pub fn two_holders(history: &[Belief]) -> bool {
    judge(history).two_holders > 0
}

/// How many turns were ended by the lock, and not by the work.
pub fn told(history: &[Belief]) -> usize {
    let told = history.iter();
    told.filter(|belief| matches!(belief.end, End::Told(_)))
        .count()
}

/// How many writes the resource has refused.
pub fn refused(history: &[Belief]) -> usize {
    writes(history).filter(|write| !write.applied).count()
}

fn writes(history: &[Belief]) -> impl Iterator<Item = Written> {
    history.iter().flat_map(|belief| &belief.writes).copied()
}

/// Several have had their turns: a play that is worth judging.
pub fn several_turns(history: &[Belief]) -> bool {
    let clients: std::collections::HashSet<_> =
        history.iter().map(|belief| belief.client).collect();
    history.len() > 5 && clients.len() > 1
}

pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("a short play")
}

// --- the judge itself, on histories that are made by hand

fn belief(client: usize, from: u64, until: u64, fencing: u64) -> Belief {
    Belief {
        client,
        from,
        until,
        sure: None,
        end: End::Blind,
        fencing: Some(fencing),
        writes: Vec::new(),
    }
}

fn writing(mut belief: Belief, begun: u64, applied: bool) -> Belief {
    belief.writes.push(Written {
        fencing: belief.fencing.expect("a number"),
        begun,
        ended: begun + 1,
        applied,
    });
    belief
}

#[test]
fn the_checker_finds_what_is_planted_and_nothing_else() {
    let found = |two_holders, numbers_out_of_order, stale_writes| Judgement {
        two_holders,
        numbers_out_of_order,
        stale_writes,
        not_told: 0,
    };
    let one_after_the_other = [
        belief(1, 0, 10, 1),
        belief(2, 10, 20, 2),
        belief(1, 25, 30, 3),
    ];
    assert_eq!(judge(&one_after_the_other), found(0, 0, 0));
    let one_inside_another = [
        belief(1, 0, 100, 1),
        belief(2, 40, 50, 2),
        belief(3, 200, 201, 3),
    ];
    assert_eq!(judge(&one_inside_another), found(1, 0, 0));
    let by_a_nanosecond = [belief(2, 10, 20, 2), belief(1, 0, 11, 1)];
    assert_eq!(judge(&by_a_nanosecond), found(1, 0, 0));
    let three_at_once = [belief(1, 0, 9, 1), belief(2, 1, 9, 2), belief(3, 2, 9, 3)];
    assert_eq!(judge(&three_at_once), found(3, 0, 0));
    let counted_anew = [belief(1, 0, 1, 7), belief(2, 2, 3, 1)];
    assert_eq!(judge(&counted_anew), found(0, 1, 0));
    let numbered_twice = [belief(1, 0, 1, 7), belief(2, 2, 3, 7)];
    assert_eq!(judge(&numbered_twice), found(0, 1, 0));
    let never_given_back = [belief(1, 0, 1, 7), belief(1, 2, 3, 7)];
    assert_eq!(judge(&never_given_back), found(0, 0, 0));
    // 1 sleeps past its lease, 2 writes, 1 writes.
    let late = |applied| {
        [
            writing(belief(1, 0, 50, 1), 40, applied),
            writing(belief(2, 10, 20, 2), 15, true),
        ]
    };
    assert_eq!(judge(&late(true)), found(1, 0, 1));
    assert_eq!(judge(&late(false)), found(1, 0, 0), "fenced off");
    assert_eq!((refused(&late(true)), refused(&late(false))), (0, 1));
}

#[test]
fn the_checker_finds_a_signal_that_does_not_come() {
    const SURE: u64 = 1_000_000_000;
    let listening = |end| Belief {
        sure: Some(SURE),
        end,
        ..belief(1, 0, SURE, 1)
    };
    let not_told = |end| judge(&[listening(end)]).not_told;
    // It slept for twice as long as its lease, and nothing woke it.
    assert_eq!(not_told(End::Work { due: 2 * SURE }), 1);
    // Its work was over in time, or so close to the end that either may come first.
    assert_eq!(not_told(End::Work { due: SURE / 2 }), 0);
    assert_eq!(not_told(End::Work { due: SURE + 1 }), 0);
    assert_eq!(not_told(End::Told(Why::LeaseOver)), 0);
    assert_eq!(not_told(End::Blind), 0);
    // Where a guard vouches for no time, only the signals that came can be counted.
    let mut endless = listening(End::Work { due: 2 * SURE });
    endless.sure = None;
    assert_eq!(judge(&[endless.clone()]).not_told, 0);
    assert_eq!(told(&[endless, listening(End::Told(Why::SessionGone))]), 1);
}
