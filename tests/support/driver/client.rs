//! One client: a few connections, and one buyer (or operator) after another behind them.

use super::http::{Connection, Ended, Response, request};
use super::{ADMIN_TOKEN, World};
use crate::support::history::{Answer, Kind, Micros, NO_KEY, NO_ORDER, Operation};
use crate::support::random::Random;
use flash_sale::domain::OrderStatus;
use std::{sync::Arc, time::Duration};

/// Longer than any timeout inside the program.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// With the state of an order or a sale.
const CONFLICTS: [&str; 4] =
    ["still_queued", "not_payable", "not_cancellable", "not_enough_remaining"];

/// A user who wants something of a sale.
#[derive(Clone)]
pub struct Buyer {
    pub user: u32,
    pub sale: u8,
    pub key: u32,
    pub token: String,
}

impl Buyer {
    pub fn known(world: &World, user: u32, sale: u8, key: u32) -> Self {
        let token = world.token(user);
        Self { user, sale, key, token }
    }

    pub fn new(world: &World, sale: u8) -> Self {
        Self::known(world, world.new_user(), sale, NO_KEY)
    }

    pub fn operator(sale: u8) -> Self {
        let (user, key, token) = (0, NO_KEY, ADMIN_TOKEN.to_owned());
        Self { user, sale, key, token }
    }

    fn request(&self, world: &World, kind: Kind, order: i64) -> Vec<u8> {
        let sale = world.sales[usize::from(self.sale)].id;
        let (mut headers, mut body) = (String::new(), String::new());
        let (method, path) = match kind {
            Kind::Buy => ("POST", format!("sales/{sale}/orders")),
            Kind::Pay => ("POST", format!("orders/{order}/pay")),
            Kind::Cancel => ("POST", format!("orders/{order}/cancel")),
            Kind::Read | Kind::Pry => ("GET", format!("orders/{order}")),
            Kind::Pause => ("POST", format!("admin/sales/{sale}/pause")),
            Kind::Resume => ("POST", format!("admin/sales/{sale}/resume")),
            Kind::AddStock(add) => {
                body = format!("{{\"add\":{add}}}");
                ("POST", format!("admin/sales/{sale}/stock"))
            }
        };
        if kind == Kind::Buy && self.key != NO_KEY {
            headers = format!("Idempotency-Key: k{}\r\n", self.key);
        }
        request(method, &format!("/api/v1/{path}"), &self.token, &headers, &body)
    }
}

pub struct Client {
    pub world: Arc<World>,
    number: u16,
    pub random: Random,
    /// Two for each instance, for double clicks.
    connections: Vec<Connection>,
}

impl Client {
    pub fn new(world: &Arc<World>, number: u16) -> Self {
        let addresses = world.addresses.iter().flat_map(|one| [one, one]);
        Self {
            world: world.clone(),
            number,
            random: Random::of(world.seed, "client", u64::from(number)),
            connections: addresses.map(|one| Connection::new(*one)).collect(),
        }
    }

    pub fn any_instance(&mut self) -> usize {
        self.random.index(self.world.addresses.len())
    }

    /// One operation from invocation to completion: the answer, and the order that it is about.
    pub async fn ask(&mut self, buyer: &Buyer, kind: Kind, order: i64, at: usize) -> (Answer, i64) {
        let asked = buyer.request(&self.world, kind, order);
        let invoked = self.world.now();
        let ended = self.connections[2 * at].call(&asked, self.world.timeout).await;
        self.note(buyer, (kind, order), at, (invoked, self.world.now()), &ended)
    }

    /// The same purchase on two connections at once; the order that it became.
    pub async fn click_twice(&mut self, buyer: &Buyer, at: [usize; 2]) -> Option<i64> {
        let asked = buyer.request(&self.world, Kind::Buy, NO_ORDER);
        let invoked = self.world.now();
        let both = self.connections.get_disjoint_mut([2 * at[0], 2 * at[1] + 1]);
        let [left, right] = both.expect("two connections");
        let world = &self.world;
        let call = async |connection: &mut Connection| {
            let ended = connection.call(&asked, world.timeout).await;
            (ended, world.now())
        };
        let (one, other) = tokio::join!(call(left), call(right));
        let mut bought = None;
        for (instance, (ended, completed)) in at.into_iter().zip([one, other]) {
            let times = (invoked, completed);
            let (answer, order) = self.note(buyer, (Kind::Buy, NO_ORDER), instance, times, &ended);
            bought = answer.is_accepted().then_some(order).or(bought);
        }
        bought
    }

    pub async fn hang_up(&mut self, buyer: &Buyer, instance: usize) {
        let asked = buyer.request(&self.world, Kind::Buy, NO_ORDER);
        let invoked = self.world.now();
        let connection = &mut self.connections[2 * instance];
        let ended = connection.call_and_hang_up(&asked, self.world.timeout).await;
        self.note(buyer, (Kind::Buy, NO_ORDER), instance, (invoked, self.world.now()), &ended);
    }

    fn note(
        &self,
        buyer: &Buyer,
        (kind, order): (Kind, i64),
        instance: usize,
        (invoked, completed): (Micros, Micros),
        ended: &Ended,
    ) -> (Answer, i64) {
        let answer = match ended {
            Ended::NeverSent => Answer::NeverSent,
            Ended::Unknown => Answer::Unknown,
            Ended::Answered(response) => answer_of(kind, response),
        };
        let order = match ended {
            Ended::Answered(response) if kind == Kind::Buy => {
                response.text("order_id").parse().unwrap_or(NO_ORDER)
            }
            _ => order,
        };
        self.world.note(Operation {
            invoked,
            completed,
            order,
            user: buyer.user,
            key: if kind == Kind::Buy { buyer.key } else { NO_KEY },
            client: self.number,
            instance: u8::try_from(instance).unwrap_or(u8::MAX),
            sale: buyer.sale,
            kind,
            answer,
        });
        (answer, order)
    }
}

fn answer_of(kind: Kind, response: &Response) -> Answer {
    let is_buy = kind == Kind::Buy;
    let about_order = matches!(kind, Kind::Read | Kind::Pry | Kind::Pay | Kind::Cancel);
    match (response.status, response.text("code")) {
        (202, _) if is_buy && response.replayed => Answer::Replayed,
        (202, _) if is_buy => Answer::Accepted,
        (200, _) if about_order => {
            let status = response.text("status").parse::<OrderStatus>();
            status.map_or(Answer::Undocumented(200), Answer::Order)
        }
        (200, _) if !is_buy => Answer::Done,
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
    }
}
