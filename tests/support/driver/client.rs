//! One client: a few connections, and one buyer (or operator) after another behind them.

use super::*;
use crate::support::people::client as http_client;

pub const TIMEOUT: Duration = Duration::from_secs(5);

/// In this time a request leaves, and is seldom answered.
const HANGUP_TIMEOUT: Duration = Duration::from_millis(1);

const CONFLICTS: [&str; 4] =
    ["still_queued", "not_payable", "not_cancellable", "not_enough_remaining"];

#[derive(Clone)]
pub struct Buyer {
    pub user: u32,
    pub sale: u8,
    pub key: u32,
    pub token: String,
}

impl Buyer {
    pub fn known(world: &World, user: u32, sale: u8, key: u32) -> Self {
        Self { user, sale, key, token: world.token(user) }
    }

    pub fn new(world: &World, sale: u8) -> Self {
        Self::known(world, world.new_number(), sale, NO_KEY)
    }

    pub fn with_key(world: &World, sale: u8) -> Self {
        Self::known(world, world.new_number(), sale, world.new_number())
    }

    pub fn operator(sale: u8) -> Self {
        Self { user: 0, sale, key: NO_KEY, token: ADMIN_TOKEN.to_owned() }
    }
}

pub struct Client {
    pub world: Arc<World>,
    number: u16,
    pub random: Random,
    http: reqwest::Client,
}

impl Client {
    pub fn new(world: &Arc<World>, number: u16) -> Self {
        let random = Random::of(world.seed, "client", u64::from(number));
        Self { world: world.clone(), number, random, http: http_client() }
    }

    pub fn any_instance(&mut self) -> usize {
        self.random.index(self.world.addresses.len())
    }

    fn request(&self, buyer: &Buyer, kind: Kind, order: i64, at: usize) -> Ask {
        let sale = self.world.sales[usize::from(buyer.sale)].id;
        let (method, path) = match kind {
            Kind::Buy => (Method::POST, format!("sales/{sale}/orders")),
            Kind::Pay => (Method::POST, format!("orders/{order}/pay")),
            Kind::Cancel => (Method::POST, format!("orders/{order}/cancel")),
            Kind::Read | Kind::Pry => (Method::GET, format!("orders/{order}")),
            Kind::Pause => (Method::POST, format!("admin/sales/{sale}/pause")),
            Kind::Resume => (Method::POST, format!("admin/sales/{sale}/resume")),
            Kind::AddStock(_) => (Method::POST, format!("admin/sales/{sale}/stock")),
        };
        let url = format!("http://{}/api/v1/{path}", self.world.addresses[at]);
        let ask = ask(&self.http, method, url).bearer(&buyer.token).within(self.world.timeout);
        match kind {
            Kind::Buy if buyer.key != NO_KEY => {
                ask.header("Idempotency-Key", format!("k{}", buyer.key))
            }
            Kind::AddStock(add) => ask.json(json!({ "add": add })),
            _ => ask,
        }
    }

    /// One operation from invocation to completion: the answer, and the order that it is about.
    pub async fn ask(&self, buyer: &Buyer, kind: Kind, order: i64, at: usize) -> (Answer, i64) {
        let asked = self.request(buyer, kind, order, at);
        let invoked = self.world.now();
        let (answer, named) = match asked.send().await {
            Ok(reply) => answer_of(kind, order, &reply),
            Err(error) if error.is_connect() => (Answer::NeverSent, NO_ORDER),
            Err(_) => (Answer::Unknown, NO_ORDER),
        };
        let order = if kind == Kind::Buy { named } else { order };
        self.note(buyer, kind, at, invoked, (answer, order));
        (answer, order)
    }

    pub async fn steer(&mut self, sale: u8, kind: Kind) -> Answer {
        let instance = self.any_instance();
        self.ask(&Buyer::operator(sale), kind, NO_ORDER, instance).await.0
    }

    pub async fn click_twice(&self, buyer: &Buyer, at: [usize; 2]) -> Option<i64> {
        let clicks = at.map(|at| self.ask(buyer, Kind::Buy, NO_ORDER, at));
        let mut told = join_all(clicks).await.into_iter();
        told.rfind(|(answer, _)| answer.is_accepted()).map(|(_, order)| order)
    }

    pub async fn hang_up(&self, buyer: &Buyer, at: usize) {
        let asked = self.request(buyer, Kind::Buy, NO_ORDER, at);
        let invoked = self.world.now();
        let _ = tokio::time::timeout(HANGUP_TIMEOUT, asked.send()).await;
        self.note(buyer, Kind::Buy, at, invoked, (Answer::HungUp, NO_ORDER));
    }

    pub fn note(
        &self,
        buyer: &Buyer,
        kind: Kind,
        instance: usize,
        invoked: Micros,
        (answer, order): (Answer, i64),
    ) {
        self.world.note(Operation {
            invoked,
            completed: self.world.now(),
            order,
            user: buyer.user,
            key: if kind == Kind::Buy { buyer.key } else { NO_KEY },
            client: self.number,
            instance: u8::try_from(instance).unwrap_or(u8::MAX),
            sale: buyer.sale,
            kind,
            answer,
        });
    }
}

/// What was asked of this order must be answered of it, and not of one that was read beside it.
fn answer_of(kind: Kind, order: i64, reply: &Reply) -> (Answer, i64) {
    let is_buy = kind == Kind::Buy;
    let about_order = matches!(kind, Kind::Read | Kind::Pry | Kind::Pay | Kind::Cancel);
    let replayed = reply.headers.contains_key("idempotent-replayed");
    let text = |member: &str| reply.body[member].as_str().unwrap_or_default();
    let named = text("order_id").parse().unwrap_or(NO_ORDER);
    let answer = match (reply.status.as_u16(), reply.code()) {
        (202, _) if is_buy && replayed => Answer::Replayed,
        (202, _) if is_buy => Answer::Accepted,
        (200, _) if about_order && named == order => {
            let status = text("status").parse::<OrderStatus>();
            status.map_or(Answer::Undocumented(200), Answer::Order)
        }
        (200, _) if !is_buy && !about_order => Answer::Done,
        (404, "order_not_found") if about_order => Answer::OrderNotFound,
        (409, "already_ordered") if is_buy => Answer::AlreadyOrdered,
        (409, "sold_out") if is_buy => Answer::SoldOut,
        (409, "not_open") if is_buy => Answer::NotOpen,
        (409, "paused") if is_buy => Answer::Paused,
        (409, "ended") if is_buy => Answer::Ended,
        (409, code) if !is_buy && CONFLICTS.contains(&code) => Answer::Conflict,
        (429, "rate_limited") => Answer::RateLimited,
        (503, "unavailable") => Answer::Unavailable,
        (status, _) => Answer::Undocumented(status),
    };
    (answer, named)
}
