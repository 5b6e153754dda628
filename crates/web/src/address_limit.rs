//! Limits what is held at a time, by all and by one address: connections, event streams, storms.
//!
//! A rate limit does not bound what is held open. Only addresses that hold something are in the
//! table, so it is never larger than what it counts.

use super::address::Address;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

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

/// So many at a time: all together, and of one address.
#[derive(Clone)]
pub struct Limits {
    all: Arc<Semaphore>,
    each: AddressLimit,
}

/// One of those that [`Limits`] counts, until it is dropped.
pub struct Share {
    _of_all: OwnedSemaphorePermit,
    _of_address: Option<Permit>,
}

/// Why no more can be had now.
#[derive(Debug, PartialEq, Eq)]
pub enum Full {
    All,
    Address,
}

impl Limits {
    pub fn new(most: usize, most_each: Option<usize>) -> Self {
        let all = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        Self { all, each: AddressLimit::new(most_each) }
    }

    /// `by`: an address that has its own limit.
    pub fn take(&self, by: Option<Address>) -> Result<Share, Full> {
        let of_address = by.map(|address| self.each.take(address).ok_or(Full::Address));
        let of_address = of_address.transpose()?;
        let of_all = self.all.clone().try_acquire_owned().map_err(|_| Full::All)?;
        Ok(Share { _of_all: of_all, _of_address: of_address })
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

    #[test]
    fn an_address_has_its_share_and_all_have_theirs() {
        let limits = Limits::new(3, Some(2));
        let of = |last| limits.take(Some(Address::V4([10, 0, 0, last])));
        let mut held = vec![of(1), of(1)];
        assert!(held.iter().all(Result::is_ok));
        assert!(of(1).err() == Some(Full::Address), "its own limit");
        held.push(of(2));
        assert!(held[2].is_ok());
        assert!(of(3).err() == Some(Full::All), "the limit of all");
        assert!(limits.take(None).err() == Some(Full::All), "the limit of all");
        held.clear();
        let nobody: Vec<_> = (0..3).map(|_| limits.take(None)).collect();
        assert!(nobody.iter().all(Result::is_ok));
    }
}
