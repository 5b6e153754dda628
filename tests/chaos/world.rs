//! What everybody in a run knows: the sales, the instances, the time, and who is who.

use crate::{
    Error,
    cluster::{ADMIN_TOKEN, Cluster, token_signer},
    http::{Connection, Ended, Response, request},
    support::history::{Micros, user_id},
};
use flash_sale::auth::TokenSigner;
use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

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

/// The sales of an ordinary run.
pub const SALES: [Habits; 5] = [
    ORDINARY,
    // Few units, which come back again and again: most are cancelled or lapse.
    Habits {
        name: "scarce",
        stock: 300,
        popularity: 30,
        pay: 0.04,
        cancel: 0.5,
        stock_changes: true,
        is_sold_off: true,
        ..ORDINARY
    },
    Habits {
        name: "paused",
        popularity: 10,
        is_paused_often: true,
        ..ORDINARY
    },
    Habits {
        name: "two each",
        stock: 300,
        per_user_limit: 2,
        popularity: 10,
        pay: 0.04,
        cancel: 0.5,
        is_sold_off: true,
        ..ORDINARY
    },
    Habits {
        name: "window",
        popularity: 10,
        window: Some((0.3, 0.7)),
        ..ORDINARY
    },
];

/// How long an order may be paid, everywhere: short, so that units come back while the run lasts.
pub const PAYMENT_TIMEOUT: Duration = Duration::from_secs(2);

/// A sale of this run.
#[derive(Debug, Clone)]
pub struct Sale {
    pub id: i64,
    pub habits: Habits,
}

/// See the head of this file.
pub struct World {
    pub seed: u64,
    pub began: Instant,
    /// The wall clock at that moment, in microseconds since 1970.
    pub began_at: i64,
    pub addresses: Vec<SocketAddr>,
    pub sales: Vec<Sale>,
    /// Accepted purchases at each instance, so far.
    pub accepted: Vec<AtomicU64>,
    /// Clients end their session and stop.
    pub stop: AtomicBool,
    /// A planted bug; see `planted.rs`.
    pub swaps_tokens: bool,
    tokens: TokenSigner,
    next_user: AtomicU32,
    next_key: AtomicU32,
    /// Orders of which somebody else will try to see something: order, sale, owner.
    seen: Mutex<VecDeque<(i64, u8, u32)>>,
}

const SEEN: usize = 256;

impl World {
    /// Creates the sales of this run, whose length decides when the windows are.
    pub async fn create(
        cluster: &Cluster,
        seed: u64,
        habits: &[Habits],
        length: Duration,
    ) -> Result<Self, Error> {
        let addresses = cluster.serving();
        let first = *addresses.first().ok_or("no instance serves")?;
        let mut connection = Connection::new(first);
        let mut sales = Vec::new();
        for habits in habits {
            let mut body = serde_json::json!({
                "title": habits.name,
                "price_cents": 100,
                "stock": habits.stock,
                "per_user_limit": habits.per_user_limit,
                "payment_timeout_secs": PAYMENT_TIMEOUT.as_secs(),
            });
            if let Some((opens, closes)) = habits.window {
                let at = |part: f64| {
                    let at = OffsetDateTime::now_utc() + length.mul_f64(part);
                    at.format(&Rfc3339)
                        .map_err(|error| format!("a time: {error}"))
                };
                body["opens_at"] = at(opens)?.into();
                body["closes_at"] = at(closes)?.into();
            }
            let body = body.to_string();
            let response = admin(&mut connection, "POST", "/api/v1/admin/sales", &body).await?;
            if response.status != 201 {
                return Err(format!("cannot create a sale: {response:?}").into());
            }
            let id = response
                .text("id")
                .parse()
                .map_err(|_| "a sale without an id")?;
            sales.push(Sale {
                id,
                habits: *habits,
            });
        }
        Ok(Self {
            seed,
            began: Instant::now(),
            began_at: i64::try_from(OffsetDateTime::now_utc().unix_timestamp_nanos() / 1_000)?,
            accepted: addresses.iter().map(|_| AtomicU64::new(0)).collect(),
            addresses,
            sales,
            stop: AtomicBool::new(false),
            swaps_tokens: false,
            tokens: token_signer(),
            next_user: AtomicU32::new(1),
            next_key: AtomicU32::new(1),
            seen: Mutex::default(),
        })
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

    pub fn show(&self, order: i64, sale: u8, owner: u32) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= SEEN {
            seen.pop_front();
        }
        seen.push_back((order, sale, owner));
    }

    /// An order that belongs to somebody else: order, sale, owner.
    pub fn order_of_another(&self, user: u32, dice: u64) -> Option<(i64, u8, u32)> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let at = usize::try_from(dice).unwrap_or(0).checked_rem(seen.len())?;
        let (order, sale, owner) = *seen.get(at)?;
        (owner != user).then_some((order, sale, owner))
    }
}

/// A call with the operator's token, which must be answered.
pub async fn admin(
    connection: &mut Connection,
    method: &str,
    path: &str,
    body: &str,
) -> Result<Response, Error> {
    let asked = request(method, path, ADMIN_TOKEN, "", body);
    match connection.call(&asked, Duration::from_secs(30)).await {
        Ended::Answered(response) => Ok(response),
        other => Err(format!("{method} {path} was not answered: {other:?}").into()),
    }
}
