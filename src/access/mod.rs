//! Access policies of a sale: waiting room, proof of work, passes.

pub mod bots;
pub mod waiting_room;
