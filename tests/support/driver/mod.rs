//! The load that the checkers judge: clients that ask, and note what they asked and were told.

pub mod client;
pub mod shopper;

use super::history::*;
use crate::support::prelude::*;
use std::sync::MutexGuard;

pub type Error = Box<dyn std::error::Error + Send + Sync>;
pub type Result<T = (), E = Error> = std::result::Result<T, E>;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Habits {
    pub name: &'static str,
    pub stock: i64,
    pub per_user_limit: i64,
    pub seconds_to_pay: u64,
    pub popularity: usize,
    /// Of the accepted orders, the share that is paid, and that is cancelled; the rest lapses.
    pub pay: f64,
    pub cancel: f64,
    pub is_paused_often: bool,
    pub stock_changes: bool,
    /// When it opens and closes, as parts of the run; `None`: open all the time.
    pub window: Option<(f64, f64)>,
    pub is_sold_off: bool,
}

pub const ORDINARY: Habits = Habits {
    name: "plenty",
    stock: 2_000_000,
    per_user_limit: 1,
    seconds_to_pay: 2,
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

pub struct World {
    pub seed: u64,
    pub began: Instant,
    /// The wall clock at that moment, in microseconds since 1970.
    pub began_at: i64,
    pub addresses: Vec<SocketAddr>,
    pub sales: Vec<Sale>,
    pub timeout: Duration,
    pub pause: Duration,
    /// A planted bug: a client that looks at another user's order is taken for that user.
    pub swaps_tokens: bool,
    pub stop: AtomicBool,
    pub is_over: AtomicBool,
    pub accepted: Vec<AtomicU64>,
    operations: Mutex<Vec<Operation>>,
    tokens: TokenSigner,
    next_number: AtomicU32,
}

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
            pause: Duration::ZERO,
            swaps_tokens: false,
            stop: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            operations: Mutex::default(),
            tokens: TokenSigner::new(SECRET.as_bytes()).expect("the secret is long enough"),
            next_number: AtomicU32::new(1),
        }
    }

    pub fn now(&self) -> Micros {
        Micros::try_from(self.began.elapsed().as_micros()).unwrap_or(Micros::MAX)
    }

    pub fn is_stopping(&self) -> bool {
        self.stop.load(Relaxed)
    }

    pub fn new_number(&self) -> u32 {
        self.next_number.fetch_add(1, Relaxed)
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

    pub fn purchase_of_another(&self, user: u32, random: &mut Random) -> Option<Operation> {
        let operations = self.operations();
        let is_it = |one: &&Operation| one.answer == Answer::Accepted && one.user != user;
        let until = random.index(operations.len() + 1);
        operations[..until].iter().rfind(is_it).copied()
    }
}

pub async fn admin(at: SocketAddr, path: &str, body: Option<Value>) -> Result<(u16, Value)> {
    let (client, url) = (client(), format!("http://{at}/api/v1/admin/{path}"));
    let ask = ask(&client, if body.is_some() { "POST" } else { "GET" }, url).maybe_json(body);
    let reply = ask.bearer(ADMIN_TOKEN).within(Duration::from_secs(30)).send().await?;
    Ok((reply.status.as_u16(), reply.body))
}
