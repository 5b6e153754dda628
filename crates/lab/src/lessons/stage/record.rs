//! What is kept of a play.

use super::super::lesson::{LOCK, REDIS_NODE};
use super::super::timeline::{Ending, Event, KeyState, Keys, Name};
use std::time::{Duration, Instant};

/// What is written down.
pub(super) struct Record {
    pub scene: Scene,
    pub events: Vec<Event>,
    pub told: usize,
    pub endings: Vec<Ending>,
}

/// The act that is going on.
pub(super) struct Scene {
    pub act: usize,
    pub began: Instant,
    pub first_event: usize,
    /// Keys on stage: the node and the key's name without the play's prefix.
    pub shown: Vec<(Name, &'static str)>,
    pub shows_shop: bool,
    pub shows_zoo: bool,
    /// What they held after the last step, and when that was.
    pub keys: Keys,
    pub looked: Instant,
    pub believers: Vec<Name>,
}

impl Scene {
    /// The lock is on stage, and nobody believes anything. `keys`: rows from before the curtain
    /// rose, which nobody on stage wrote.
    pub fn new(act: usize, first_event: usize, keys: Keys) -> Self {
        let began = Instant::now();
        Self {
            act,
            began,
            first_event,
            shown: vec![(REDIS_NODE, LOCK)],
            shows_shop: false,
            shows_zoo: false,
            keys,
            looked: began,
            believers: Vec::new(),
        }
    }

    /// Who wrote what a key holds after a step of this actor. Where all clients write the same
    /// value, the end of a lease tells whether it was written anew.
    pub fn owner_of(&self, name: &str, key: &KeyState, actor: Name, at: Instant) -> Option<Name> {
        key.value.as_ref()?;
        let is_still = |before: &&KeyState| {
            let left = before.ttl_ms.and_then(|left| u64::try_from(left).ok());
            let is_over = left.is_some_and(|left| at >= self.looked + Duration::from_millis(left));
            before.value == key.value && !is_over
        };
        self.keys.get(name).filter(is_still).map_or(Some(actor), |before| before.owner)
    }
}
