//! How many of something visitors may have at a time: all together, and from one address.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use web::{
    address::Address,
    address_limit::{AddressLimit, Permit},
};

/// The most arenas at a time, over all processes.
pub const MOST_ARENAS: u64 = 64;
/// The most arenas that one address may have, of those that this process serves.
pub const MOST_ARENAS_OF_ADDRESS: usize = 16;
/// The most storms at a time in this process: so many hardly slow down the shop.
pub const MOST_STORMS: usize = 8;
pub const MOST_STORMS_OF_ADDRESS: usize = 4;
/// How old an arena gets.
pub const LONGEST_LIFE: Duration = Duration::from_secs(15 * 60);

pub struct Limits {
    all: Arc<Semaphore>,
    each: AddressLimit,
}

/// One of those that [`Limits`] counts, until it is dropped.
pub struct Share {
    _of_all: OwnedSemaphorePermit,
    _of_address: Option<Permit>,
}

impl Limits {
    pub fn new(most: usize, most_each: usize) -> Self {
        let all = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        Self { all, each: AddressLimit::new(Some(most_each)) }
    }

    /// `by`: an address that has its own limit. `None`: no more can be had now.
    pub fn take(&self, by: Option<Address>) -> Option<Share> {
        let of_all = self.all.clone().try_acquire_owned().ok()?;
        let of_address = match by {
            Some(address) => Some(self.each.take(address)?),
            None => None,
        };
        Some(Share { _of_all: of_all, _of_address: of_address })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_share_and_all_have_theirs() {
        let limits = Limits::new(3, 2);
        let of = |last| limits.take(Some(Address::V4([10, 0, 0, last])));
        let mut held = vec![of(1), of(1)];
        assert!(held.iter().all(Option::is_some));
        assert!(of(1).is_none(), "its own limit");
        held.push(of(2));
        assert!(held[2].is_some());
        assert!(of(3).is_none(), "the limit of all");
        assert!(limits.take(None).is_none(), "the limit of all");
        held.clear();
        let nobody: Vec<_> = (0..3).map(|_| limits.take(None)).collect();
        assert!(nobody.iter().all(Option::is_some));
    }
}
