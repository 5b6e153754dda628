//! How many of something one address holds at this moment: connections, event streams.
//!
//! A limit on the rate of requests does not bound what is held open. Only addresses that hold something
//! are in the table, so it is never larger than what it counts.

use super::address::Address;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

/// How many seats each address has taken; never zero.
type Taken = Arc<Mutex<HashMap<Address, usize>>>;

/// The seats of all addresses, each address having at most the same number.
#[derive(Clone)]
pub struct Seats {
    /// `None`: as many as anybody likes, and nothing is counted.
    most_each: Option<usize>,
    taken: Taken,
}

impl Seats {
    pub fn new(most_each: Option<usize>) -> Self {
        Self {
            most_each,
            taken: Arc::default(),
        }
    }

    /// `None`: the address has all that it may have. The seat is free again when dropped.
    pub fn take(&self, address: Address) -> Option<Seat> {
        let Some(most) = self.most_each else {
            return Some(Seat(None));
        };
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let held = taken.entry(address).or_default();
        if *held >= most {
            return None;
        }
        *held += 1;
        Some(Seat(Some((self.taken.clone(), address))))
    }
}

/// What [`Seats`] counts; `None` where nothing is counted.
#[must_use]
pub struct Seat(Option<(Taken, Address)>);

impl Drop for Seat {
    fn drop(&mut self) {
        let Some((taken, address)) = &self.0 else {
            return;
        };
        let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = taken.get_mut(address) {
            *held -= 1;
            if *held == 0 {
                taken.remove(address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Address = Address::V4([10, 0, 0, 1]);
    const OTHER: Address = Address::V4([10, 0, 0, 2]);

    #[test]
    fn an_address_has_its_seats_and_nobody_elses() {
        let seats = Seats::new(Some(2));
        let (first, second) = (seats.take(ONE), seats.take(ONE));
        assert!(first.is_some() && second.is_some());
        assert!(seats.take(ONE).is_none());
        assert!(seats.take(OTHER).is_some());
        drop(first);
        assert!(seats.take(ONE).is_some());
    }

    #[test]
    fn who_holds_nothing_is_forgotten() {
        let seats = Seats::new(Some(1));
        drop(seats.take(ONE));
        assert!(seats.taken.lock().expect("not poisoned").is_empty());
    }

    #[test]
    fn without_a_limit_nothing_is_counted() {
        let seats = Seats::new(None);
        let held: Vec<_> = (0..1_000).map(|_| seats.take(ONE)).collect();
        assert!(held.iter().all(Option::is_some));
        assert!(seats.taken.lock().expect("not poisoned").is_empty());
    }
}
