//! How many of something visitors may have at a time: all together, and from one address.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

/// How many are taken, by the address that took them; never zero.
type Taken = Arc<Mutex<HashMap<Option<String>, usize>>>;

pub struct Limits {
    most: usize,
    most_each: usize,
    taken: Taken,
}

/// One of those that [`Limits`] counts, until it is dropped.
pub struct Share {
    taken: Taken,
    by: Option<String>,
}

impl Limits {
    pub fn new(most: usize, most_each: usize) -> Self {
        Self { most, most_each, taken: Arc::default() }
    }

    /// `by`: an address that has its own limit. `None`: no more can be had now.
    pub fn take(&self, by: Option<&str>) -> Option<Share> {
        let by = by.map(str::to_owned);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let held = taken.get(&by).copied().unwrap_or(0);
        let is_full = taken.values().sum::<usize>() >= self.most;
        if is_full || (by.is_some() && held >= self.most_each) {
            return None;
        }
        taken.insert(by.clone(), held + 1);
        Some(Share { taken: self.taken.clone(), by })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = taken.get_mut(&self.by) {
            *held -= 1;
            if *held == 0 {
                taken.remove(&self.by);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_share_and_all_have_theirs() {
        let limits = Limits::new(3, 2);
        let mut held = vec![limits.take(Some("a")), limits.take(Some("a"))];
        assert!(held.iter().all(Option::is_some));
        assert!(limits.take(Some("a")).is_none(), "its own limit");
        held.push(limits.take(Some("b")));
        assert!(held[2].is_some());
        assert!(limits.take(Some("c")).is_none(), "the limit of all");
        assert!(limits.take(None).is_none(), "the limit of all");
        held.clear();
        assert!(limits.taken.lock().expect("not poisoned").is_empty());
        let nobody: Vec<_> = (0..3).map(|_| limits.take(None)).collect();
        assert!(nobody.iter().all(Option::is_some));
    }
}
