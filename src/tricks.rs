//! What is done only for speed and can be left out, so that what it brings can be measured:
//! `make bench ARGS="tricks"` runs a server with and one without, in turns. No answer changes.
//!
//! Left out for the whole life of a process, by the hidden setting `WITHOUT`. Each is one relaxed load
//! where it matters, a plain read on every processor. (Micro-batching needs no switch: `BATCH_LIMIT=1`.)

use clap::ValueEnum;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Trick {
    /// One long-lived connection to Redis for the gates, rather than one from the pool for each batch
    SharedConnection,
    /// Sold out, paused and ended are said from memory where that is safe, rather than by Redis
    RefusalFromMemory,
    /// Orders are written by COPY rather than by INSERT
    Copy,
    /// Everybody who asks for an order at this moment shares one query
    SharedLook,
    /// A purchase of the usual form does not go through the router
    Express,
    /// Of a crowd that comes too late only one is asked about in Redis
    OneForAll,
    /// One timer for a connection rather than one for each of its requests
    LazyTimer,
}

/// Which tricks are left out.
#[derive(Debug, Default)]
pub struct Tricks([AtomicBool; 7]);

impl Tricks {
    pub fn leave_out(&self, trick: Trick) {
        self.0[trick as usize].store(true, Relaxed);
    }

    pub fn are_used(&self, trick: Trick) -> bool {
        !self.0[trick as usize].load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trick_has_a_place_of_its_own() {
        for trick in Trick::value_variants() {
            let tricks = Tricks::default();
            tricks.leave_out(*trick);
            for other in Trick::value_variants() {
                assert_eq!(tricks.are_used(*other), other != trick);
            }
        }
    }
}
