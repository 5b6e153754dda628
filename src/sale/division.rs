//! What this process knows of each bucket of a sale, and of all of them together.
//!
//! Every bucket has its own reading, its own gate and its own list of known buyers, because each is judged
//! by a script of its own. What is shown is the sum. Whether a divided sale is *sold out* is not decided by
//! the sum: a unit that is lent while the buckets are read one after the other may be missed by all of the
//! readings. See [`Division::is_dry`].

use super::{
    board::{KnownBuyers, Tally, lock},
    gate::Waiting,
};
use crate::domain::{Part, UserId, bucket};
use std::sync::{
    Mutex, OnceLock,
    atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering::Relaxed},
};
use tokio::sync::mpsc;

/// One bucket as this process knows it.
pub struct Compartment {
    pub part: Part,
    pub buyers: KnownBuyers,
    pub(super) gate: OnceLock<mpsc::Sender<Waiting>>,
    /// Copies of its reading for the purchase path, which must not wait for a lock.
    admitted: AtomicI64,
    epoch: AtomicI64,
    /// How many searches for units it has under way; see [`Compartment::hunger`].
    hungry: AtomicUsize,
}

impl Compartment {
    fn new(part: Part) -> Self {
        Self {
            part,
            buyers: KnownBuyers::new(),
            gate: OnceLock::new(),
            admitted: AtomicI64::new(0),
            epoch: AtomicI64::new(0),
            hungry: AtomicUsize::new(0),
        }
    }

    /// Keeps others of this process from borrowing here, for as long as the value lives: this bucket is itself
    /// borrowing, for buyers who are judged next.
    pub(super) fn hunger(&self) -> Hunger<'_> {
        self.hungry.fetch_add(1, Relaxed);
        Hunger(self)
    }

    pub(super) fn is_hungry(&self) -> bool {
        self.hungry.load(Relaxed) > 0
    }

    /// Whether this user is known not to have bought here.
    pub(super) fn is_stranger(&self, user: UserId) -> bool {
        let known = self
            .buyers
            .cover(self.epoch.load(Relaxed), self.admitted.load(Relaxed));
        known && !self.buyers.contains(user)
    }
}

/// See [`Compartment::hunger`].
pub(super) struct Hunger<'a>(&'a Compartment);

impl Drop for Hunger<'_> {
    fn drop(&mut self) {
        self.0.hungry.fetch_sub(1, Relaxed);
    }
}

/// All buckets of a sale, as it is divided in one epoch or several. A sale that is divided anew gets a new
/// one, whose predecessor ends with the last buyer who waits in it.
pub struct Division {
    parts: Box<[Compartment]>,
    readings: Mutex<Box<[Option<Tally>]>>,
    /// Copies of the sums.
    remaining: AtomicI64,
    present: AtomicBool,
    dry: AtomicBool,
    /// One look at all buckets at a time; the others wait for what it finds.
    pub(super) looking: tokio::sync::Mutex<()>,
}

impl Division {
    pub(super) fn new(of: u16, remaining: i64) -> Self {
        let of = of.max(1);
        Self {
            parts: (0..of)
                .map(|index| Compartment::new(Part { index, of }))
                .collect(),
            readings: Mutex::new(vec![None; usize::from(of)].into()),
            remaining: AtomicI64::new(remaining),
            present: AtomicBool::new(false),
            dry: AtomicBool::new(false),
            looking: tokio::sync::Mutex::default(),
        }
    }

    /// How many buckets.
    pub fn of(&self) -> u16 {
        // Made from a u16.
        self.parts.len() as u16
    }

    pub fn parts(&self) -> &[Compartment] {
        &self.parts
    }

    /// The bucket of a user.
    pub fn part_of(&self, user: UserId) -> &Compartment {
        &self.parts[usize::from(bucket::index_of(user, self.of()))]
    }

    /// The last reading of one bucket.
    pub fn reading(&self, part: Part) -> Option<Tally> {
        lock(&self.readings)[self.place(part)?]
    }

    /// The last reading of every bucket that has one.
    pub fn readings(&self) -> Vec<(Part, Tally)> {
        let readings = lock(&self.readings);
        let parts = self.parts.iter().map(|place| place.part);
        parts
            .zip(readings.iter())
            .filter_map(|(part, reading)| Some((part, (*reading)?)))
            .collect()
    }

    /// The sum of all readings; `None` while one is missing.
    pub fn sum(&self) -> Option<Tally> {
        sum(&lock(&self.readings))
    }

    fn place(&self, part: Part) -> Option<usize> {
        (part.of == self.of()).then_some(usize::from(part.index))
    }

    /// Takes in a reading of one bucket's state; `None`: there is none. Older ones, and those of another
    /// division, are ignored.
    pub fn tell(&self, part: Part, reading: Option<Tally>) {
        let Some(place) = self.place(part) else {
            return;
        };
        let mut readings = lock(&self.readings);
        if let (Some(new), Some(known)) = (reading, readings[place])
            && (new.epoch, new.change) < (known.epoch, known.change)
        {
            return;
        }
        self.store(&mut readings, place, reading);
    }

    /// Takes in what a script saw, which is less than a full reading; `None` is not told by it.
    pub fn tell_remaining(&self, part: Part, epoch: i64, change: i64, seen: Seen) {
        let Some(place) = self.place(part) else {
            return;
        };
        let mut readings = lock(&self.readings);
        let Some(known) = readings[place] else {
            return;
        };
        if known.epoch != epoch || change < known.change {
            return;
        }
        let new = Tally {
            change,
            remaining: seen.remaining,
            admitted: seen.admitted.unwrap_or(known.admitted),
            lent: seen.lent.unwrap_or(known.lent),
            ..known
        };
        self.store(&mut readings, place, Some(new));
    }

    /// Notes that the sale was found dry, at one instant in which its buckets had these change counters of
    /// these epochs; unless something else is known by now.
    pub(super) fn tell_dry(&self, found: &[(i64, i64)]) {
        let readings = lock(&self.readings);
        let unchanged = readings.len() == found.len()
            && readings.iter().zip(found).all(|(known, found)| {
                known.is_some_and(|known| (known.epoch, known.change) == *found)
            });
        if unchanged {
            self.dry.store(true, Relaxed);
        }
    }

    fn store(&self, readings: &mut [Option<Tally>], place: usize, new: Option<Tally>) {
        readings[place] = new;
        if let Some(new) = new {
            let part = &self.parts[place];
            part.epoch.store(new.epoch, Relaxed);
            part.admitted.store(new.admitted, Relaxed);
        }
        if new.is_none_or(|new| new.remaining > 0 || new.lent > 0) {
            self.dry.store(false, Relaxed);
        }
        let sum = sum(readings);
        self.present.store(sum.is_some(), Relaxed);
        if let Some(sum) = sum {
            self.remaining.store(shown(sum), Relaxed);
        }
    }

    /// Units left, as far as is known; while all that is left is on its way between buckets, that.
    pub(super) fn remaining(&self) -> i64 {
        self.remaining.load(Relaxed)
    }

    /// Whether Redis had every bucket when last looked.
    pub(super) fn is_present(&self) -> bool {
        self.present.load(Relaxed)
    }

    /// Whether nothing is left, safely enough to say so to a buyer. For one bucket that is what its reading
    /// says. Of several, all have to be seen dry at one and the same instant, with nothing on its way between
    /// them; [`super::lending`] looks for that, and the first sign of a unit takes it back.
    pub(super) fn is_dry(&self) -> bool {
        if self.parts.len() == 1 {
            self.remaining() <= 0
        } else {
            self.dry.load(Relaxed)
        }
    }
}

/// What a script saw of a bucket.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    pub remaining: i64,
    pub admitted: Option<i64>,
    pub lent: Option<i64>,
}

fn shown(sum: Tally) -> i64 {
    if sum.remaining > 0 {
        sum.remaining
    } else {
        sum.lent
    }
}

fn sum(readings: &[Option<Tally>]) -> Option<Tally> {
    readings
        .iter()
        .copied()
        .reduce(|sum, one| {
            let (sum, one) = (sum?, one?);
            Some(Tally {
                // Until all have arrived in an epoch, or at a version, the sale has not.
                epoch: sum.epoch.min(one.epoch),
                version: sum.version.min(one.version),
                stock: sum.stock + one.stock,
                remaining: sum.remaining + one.remaining,
                admitted: sum.admitted + one.admitted,
                pending: sum.pending + one.pending,
                change: sum.change + one.change,
                lent: sum.lent + one.lent,
            })
        })
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(remaining: i64, lent: i64, change: i64) -> Option<Tally> {
        Some(Tally {
            epoch: 1,
            version: 1,
            stock: 5,
            remaining,
            admitted: 5 - remaining - lent,
            pending: 0,
            change,
            lent,
        })
    }

    const A: Part = Part { index: 0, of: 2 };
    const B: Part = Part { index: 1, of: 2 };

    #[test]
    fn a_divided_sale_is_as_present_as_its_least_bucket() {
        let division = Division::new(2, 10);
        division.tell(A, reading(3, 0, 4));
        assert!(!division.is_present());
        division.tell(B, reading(2, 0, 4));
        assert_eq!((division.is_present(), division.remaining()), (true, 5));
        division.tell(A, None);
        assert_eq!((division.is_present(), division.sum()), (false, None));
    }

    #[test]
    fn readings_that_add_up_to_nothing_are_not_yet_sold_out() {
        let division = Division::new(2, 10);
        division.tell(A, reading(0, 0, 4));
        division.tell(B, reading(0, 0, 7));
        assert!(!division.is_dry());
        division.tell_dry(&[(1, 4), (1, 6)]); // B has changed since
        assert!(!division.is_dry());
        division.tell_dry(&[(1, 4), (1, 7)]);
        assert!(division.is_dry());
        division.tell(B, reading(1, 0, 8)); // a unit came back
        assert!(!division.is_dry());
    }

    #[test]
    fn what_is_on_its_way_is_shown_and_not_sold_out() {
        let division = Division::new(2, 10);
        division.tell(A, reading(0, 3, 4));
        division.tell(B, reading(0, 0, 4));
        assert_eq!((division.remaining(), division.is_dry()), (3, false));
    }

    #[test]
    fn a_reading_of_another_division_is_ignored() {
        let division = Division::new(2, 10);
        division.tell(Part::WHOLE, reading(1, 0, 1));
        assert_eq!(division.reading(A), None);
    }
}
