//! Limits what one address holds at a time: connections, event streams.
//!
//! A rate limit does not bound what is held open. Only addresses that hold something are in the
//! table, so it is never larger than what it counts.

use super::address::Address;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Permits of each address; never zero.
type Taken = Arc<Mutex<HashMap<Address, usize>>>;

/// Gives each address at most a fixed number of permits.
#[derive(Clone)]
pub struct AddressLimit {
    /// `None`: no limit, and nothing is counted.
    most_each: Option<usize>,
    taken: Taken,
}

impl AddressLimit {
    pub fn new(most_each: Option<usize>) -> Self {
        Self { most_each, taken: Arc::default() }
    }

    /// `None`: the address has reached its limit. Dropping a permit returns it.
    pub fn take(&self, address: Address) -> Option<Permit> {
        let Some(most) = self.most_each else {
            return Some(Permit(None));
        };
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let held = taken.entry(address).or_default();
        if *held >= most {
            return None;
        }
        *held += 1;
        Some(Permit(Some((self.taken.clone(), address))))
    }
}

/// A permit of [`AddressLimit`]; `None` where nothing is counted.
#[must_use]
pub struct Permit(Option<(Taken, Address)>);

impl Drop for Permit {
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
    fn an_address_has_its_own_limit() {
        let limit = AddressLimit::new(Some(2));
        let (first, second) = (limit.take(ONE), limit.take(ONE));
        assert!(first.is_some() && second.is_some());
        assert!(limit.take(ONE).is_none());
        assert!(limit.take(OTHER).is_some());
        drop(first);
        assert!(limit.take(ONE).is_some());
    }

    #[test]
    fn an_address_that_holds_nothing_is_forgotten() {
        let limit = AddressLimit::new(Some(1));
        drop(limit.take(ONE));
        assert!(limit.taken.lock().expect("not poisoned").is_empty());
    }

    #[test]
    fn without_a_limit_nothing_is_counted() {
        let limit = AddressLimit::new(None);
        let held: Vec<_> = (0..1_000).map(|_| limit.take(ONE)).collect();
        assert!(held.iter().all(Option::is_some));
        assert!(limit.taken.lock().expect("not poisoned").is_empty());
    }
}
