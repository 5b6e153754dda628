//! What is written down of a play.

use super::super::timeline::{Ending, Event};
use std::{collections::HashMap, panic::Location, time::Instant};

#[derive(Default)]
pub(super) struct Record {
    pub act: usize,
    pub act_began: Option<Instant>,
    pub first_of_act: usize,
    /// Keys on stage: the node and the key's name without the play's prefix.
    pub shown: Vec<(String, &'static str)>,
    pub shop_is_open: bool,
    pub zoo_is_shown: bool,
    pub owners: HashMap<String, Written>,
    pub believers: Vec<&'static str>,
    pub events: Vec<Event>,
    pub told: usize,
    pub endings: Vec<Ending>,
}

/// One step, as it is handed in.
pub(super) struct Step {
    pub actor: &'static str,
    pub to: Option<&'static str>,
    pub id: &'static str,
    pub command: Option<String>,
    pub reply: Option<String>,
    pub line: Option<(&'static str, u32)>,
    /// Played by the stage, not done by a server or a client.
    pub is_staged: bool,
}

impl Step {
    pub fn new(actor: &'static str, id: &'static str) -> Self {
        Self { actor, to: None, id, command: None, reply: None, line: None, is_staged: false }
    }

    pub fn at(mut self, line: &Location<'static>) -> Self {
        self.line = Some((line.file(), line.line()));
        self
    }

    pub fn with(mut self, command: impl Into<String>, reply: impl Into<String>) -> Self {
        (self.command, self.reply) = (Some(command.into()), Some(reply.into()));
        self
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
    /// It was there before the curtain rose: nobody on stage wrote it.
    pub fn before_the_act(value: String) -> Self {
        Self { value, owner: None, ends: None }
    }

    /// Whether this value is the one of before, and not the same one written anew: where all
    /// clients write the same, the end of a lease is what tells.
    pub fn is_still(&self, value: &str, at: Instant) -> bool {
        self.value == value && self.ends.is_none_or(|ends| at < ends)
    }
}
