//! How much of everything there may be.

use std::time::Duration;

/// The most arenas at a time, over all processes.
pub const MOST_ARENAS: u64 = 64;
/// The most arenas that one address may have, of those that this process serves.
pub const MOST_ARENAS_OF_ADDRESS: usize = 16;
/// The most storms at a time in this process: so many hardly slow down the shop.
pub const MOST_STORMS: usize = 8;
pub const MOST_STORMS_OF_ADDRESS: usize = 4;
/// How many plays a process runs at once.
pub const MOST_PLAYS: usize = 4;
/// How old an arena gets.
pub const LONGEST_LIFE: Duration = Duration::from_secs(15 * 60);

pub const MOST_STOCK: i64 = 10_000;
pub const MOST_NODES: i64 = 8;
pub const MOST_PER_USER: i64 = 100;
const _: () = assert!(MOST_STOCK == 10_000 && MOST_NODES == 8 && MOST_PER_USER == 100);
