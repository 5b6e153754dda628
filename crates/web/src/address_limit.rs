//! Limits what is held at a time, by all and by one address: connections, event streams, storms.
//!
//! A rate limit does not bound what is held open. Only addresses that hold something are in the
//! table, so it is never larger than three times what it counts.

use super::address::Address;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// An address, or the network around it: its head, and how many bits that has.
type Network = (Address, u8);

/// Permits of each network; never zero.
type Taken = Arc<Mutex<HashMap<Network, usize>>>;

/// How many times the limit of an address an IPv6 /56 or /48 has: one customer gets it as easily as
/// a /64, and a carrier serves thousands from it.
const WIDE: usize = 4;

fn networks_of(address: Address) -> Vec<Network> {
    let Address::V6Net([a, b, c, d, e, f, g, _]) = address else {
        return vec![(address, 32)];
    };
    let heads = [[a, b, c, d, e, f, g, 0], [a, b, c, d, e, f, 0, 0]].map(Address::V6Net);
    vec![(address, 64), (heads[0], 56), (heads[1], 48)]
}

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
        self.take_one_of(usize::MAX, address)
    }

    /// The same, where no address gets more than a quarter of what the others leave: `left` are
    /// free, this one included.
    pub fn take_one_of(&self, left: usize, address: Address) -> Option<Permit> {
        let Some(most) = self.most_each else {
            return Some(Permit(None));
        };
        let networks = networks_of(address);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |network: &Network| {
            let held = taken.get(network).copied().unwrap_or(0);
            let most = if network.1 < 64 && network.1 > 32 { most * WIDE } else { most };
            held >= most || held > 0 && held.saturating_mul(3) >= left
        };
        if networks.iter().any(is_full) {
            return None;
        }
        for network in &networks {
            *taken.entry(*network).or_default() += 1;
        }
        Some(Permit(Some((self.taken.clone(), networks))))
    }
}

/// A permit of [`AddressLimit`]; `None` where nothing is counted.
#[must_use]
pub struct Permit(Option<(Taken, Vec<Network>)>);

impl Drop for Permit {
    fn drop(&mut self) {
        let Some((taken, networks)) = &self.0 else {
            return;
        };
        let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
        for network in networks {
            if let Some(held) = taken.get_mut(network) {
                *held -= 1;
                if *held == 0 {
                    taken.remove(network);
                }
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
    fn nobody_gets_more_than_a_quarter_of_what_the_others_leave() {
        let limit = AddressLimit::new(Some(16));
        let mut held = Vec::new();
        let mut take_all = |address: Address| {
            let before = held.len();
            while let Some(permit) = limit.take_one_of(64 - held.len(), address) {
                held.push(permit);
            }
            held.len() - before
        };
        let taken = [1, 2, 3, 4].map(|host| take_all(Address::V4([10, 0, 0, host])));
        assert_eq!(taken, [16, 12, 9, 7]);
        for host in 5..=13 {
            assert!(take_all(Address::V4([10, 0, 0, host])) >= 1, "{host}");
        }
    }

    #[test]
    fn a_customers_network_counts_as_one() {
        let limit = AddressLimit::new(Some(2));
        let net =
            |fourth: [u8; 2]| Address::V6Net([0x20, 1, 0xd, 0xb8, 0, 1, fourth[0], fourth[1]]);
        let held: Vec<_> = (0..8).map(|part| limit.take(net([part, part]))).collect();
        assert!(held.iter().all(Option::is_some));
        assert!(limit.take(net([9, 9])).is_none(), "a /48");
        assert!(limit.take(Address::V6Net([0x20, 1, 0xd, 0xb8, 0, 2, 0, 0])).is_some());
        drop(held);
        assert!(limit.taken.lock().expect("not poisoned").is_empty());
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
