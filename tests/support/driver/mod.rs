//! The load that the checkers judge: clients that ask, and note what they asked and were told.

pub mod client;
pub mod http;

use super::app::{ADMIN_TOKEN, TOKEN_SECRET};
use super::history::{Answer, Kind, Micros, Operation, user_id};
use super::locked;
use flash_sale::auth::TokenSigner;
use http::{Connection, Ended, Response, request};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use std::{collections::VecDeque, net::SocketAddr};
use time::OffsetDateTime;

pub type Error = Box<dyn std::error::Error + Send + Sync>;
pub type Result<T = (), E = Error> = std::result::Result<T, E>;

/// How the buyers of a sale behave, and what the operator does with it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Habits {
    pub name: &'static str,
    pub stock: i64,
    pub per_user_limit: i64,
    /// Out of all sessions, how many come here (weights).
    pub popularity: u64,
    /// Of the accepted orders, the share that is paid, and that is cancelled; the rest lapses.
    pub pay: f64,
    pub cancel: f64,
    /// Paused and resumed again and again.
    pub is_paused_often: bool,
    /// The operator adds and takes away units.
    pub stock_changes: bool,
    /// When it opens and closes, as parts of the run; `None`: open all the time.
    pub window: Option<(f64, f64)>,
    /// Sold to the last unit after healing, to see that nothing is left over.
    pub is_sold_off: bool,
}

/// Open all the time, with room for everybody.
pub const ORDINARY: Habits = Habits {
    name: "plenty",
    stock: 2_000_000,
    per_user_limit: 1,
    popularity: 40,
    pay: 0.3,
    cancel: 0.1,
    is_paused_often: false,
    stock_changes: false,
    window: None,
    is_sold_off: false,
};

#[derive(Debug, Clone)]
pub struct Sale {
    pub id: i64,
    pub habits: Habits,
}

/// What all clients of a run share: sales, instances, the clock, and the history.
pub struct World {
    pub seed: u64,
    pub began: Instant,
    /// The wall clock at that moment, in microseconds since 1970.
    pub began_at: i64,
    pub addresses: Vec<SocketAddr>,
    pub sales: Vec<Sale>,
    /// What has no answer by then gets none.
    pub timeout: Duration,
    /// A planted bug: a client that looks at another user's order is taken for that user.
    pub swaps_tokens: bool,
    /// Clients end their session and stop.
    pub stop: AtomicBool,
    /// No more snapshots are taken.
    pub is_over: AtomicBool,
    /// Accepted purchases at each instance, so far.
    pub accepted: Vec<AtomicU64>,
    operations: Mutex<Vec<Operation>>,
    tokens: TokenSigner,
    next_user: AtomicU32,
    next_key: AtomicU32,
    /// Orders that another user will try to see: order, sale, owner.
    seen: Mutex<VecDeque<(i64, u8, u32)>>,
}

const SEEN: usize = 256;

impl World {
    pub fn new(seed: u64, addresses: Vec<SocketAddr>, sales: Vec<Sale>) -> Self {
        let micros = OffsetDateTime::now_utc().unix_timestamp_nanos() / 1_000;
        Self {
            seed,
            began: Instant::now(),
            began_at: i64::try_from(micros).expect("a time"),
            accepted: addresses.iter().map(|_| AtomicU64::new(0)).collect(),
            addresses,
            sales,
            timeout: client::TIMEOUT,
            swaps_tokens: false,
            stop: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            operations: Mutex::default(),
            tokens: TokenSigner::new(TOKEN_SECRET).expect("the secret is long enough"),
            next_user: AtomicU32::new(1),
            next_key: AtomicU32::new(1),
            seen: Mutex::default(),
        }
    }

    pub fn now(&self) -> Micros {
        Micros::try_from(self.began.elapsed().as_micros()).unwrap_or(Micros::MAX)
    }

    pub fn is_stopping(&self) -> bool {
        self.stop.load(Relaxed)
    }

    pub fn new_user(&self) -> u32 {
        self.next_user.fetch_add(1, Relaxed)
    }

    pub fn new_key(&self) -> u32 {
        self.next_key.fetch_add(1, Relaxed)
    }

    /// A token for a week: longer than any clock in a run goes wrong.
    pub fn token(&self, user: u32) -> String {
        let until = OffsetDateTime::now_utc() + time::Duration::WEEK;
        self.tokens.mint(user_id(self.seed, user), "shopper", until)
    }

    pub fn operations(&self) -> MutexGuard<'_, Vec<Operation>> {
        locked(&self.operations)
    }

    pub fn note(&self, one: Operation) {
        if let (Kind::Buy, Answer::Accepted) = (one.kind, one.answer)
            && let Some(count) = self.accepted.get(usize::from(one.instance))
        {
            count.fetch_add(1, Relaxed);
        }
        self.operations().push(one);
    }

    pub fn show(&self, order: i64, sale: u8, owner: u32) {
        let mut seen = locked(&self.seen);
        if seen.len() >= SEEN {
            seen.pop_front();
        }
        seen.push_back((order, sale, owner));
    }

    /// An order that belongs to another user: order, sale, owner.
    pub fn order_of_another(&self, user: u32, dice: u64) -> Option<(i64, u8, u32)> {
        let seen = locked(&self.seen);
        let at = usize::try_from(dice).unwrap_or(0).checked_rem(seen.len())?;
        let (order, sale, owner) = *seen.get(at)?;
        (owner != user).then_some((order, sale, owner))
    }
}

/// A call with the operator's token, which must be answered.
pub async fn admin(at: SocketAddr, method: &str, path: &str, body: &str) -> Result<Response> {
    let asked = request(method, path, ADMIN_TOKEN, "", body);
    let mut connection = Connection::new(at);
    match connection.call(&asked, Duration::from_secs(30)).await {
        Ended::Answered(response) => Ok(response),
        other => Err(format!("{method} {path} was not answered: {other:?}").into()),
    }
}
