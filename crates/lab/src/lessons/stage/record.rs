//! What is kept of a play.

use super::super::shop::Seen;
use super::super::timeline::{Ending, Event};
use std::{collections::HashMap, time::Instant};

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
    pub shown: Vec<(&'static str, &'static str)>,
    pub shows_shop: bool,
    pub shows_zoo: bool,
    pub owners: HashMap<String, Written>,
    pub believers: Vec<&'static str>,
}

impl Scene {
    /// Nobody believes anything.
    pub fn new(act: usize, first_event: usize, shown: Vec<(&'static str, &'static str)>) -> Self {
        Self {
            act,
            began: Instant::now(),
            first_event,
            shown,
            shows_shop: false,
            shows_zoo: false,
            owners: HashMap::new(),
            believers: Vec::new(),
        }
    }

    /// Rows from before the curtain rose: nobody on stage wrote them.
    pub fn found(&mut self, rows: Vec<Seen>) {
        let written = |value| Written { value, owner: None, ends: None };
        let rows = rows.into_iter().filter_map(|(name, value, _)| Some((name, written(value?))));
        self.owners.extend(rows);
    }
}

/// What a key held after the last step.
pub(super) struct Written {
    pub value: String,
    pub owner: Option<&'static str>,
    /// When it has gone, if nobody renews it.
    pub ends: Option<Instant>,
}

impl Written {
    /// Whether this value is the one of before, and not the same one written anew: where all
    /// clients write the same, the end of a lease is what tells.
    pub fn is_still(&self, value: &str, at: Instant) -> bool {
        self.value == value && self.ends.is_none_or(|ends| at < ends)
    }
}
