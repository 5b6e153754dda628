//! The load: shoppers who buy, retry, click twice, hang up, pay, cancel, look at their orders and try
//! to look at those of others. Each notes every operation and its answer.

use crate::{
    http::{Connection, Ended, Response, request},
    support::{
        history::{Answer, Kind, NO_KEY, NO_ORDER, Operation},
        random::Random,
    },
    world::World,
};
use flash_sale::domain::OrderStatus;
use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Longer than any timeout inside the program: what has no answer by then gets none.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// How often a shopper asks again when the answer is unclear.
const RETRIES: usize = 12;

/// What is asked, and about which order.
const BUY: (Kind, i64) = (Kind::Buy, NO_ORDER);

/// How many of their own orders a shopper remembers, to look at them again.
const REMEMBERED: usize = 64;

/// One client: a few connections, and one shopper after another behind them.
pub struct Client {
    world: Arc<World>,
    number: u16,
    random: Random,
    /// Two for each instance, for double clicks.
    connections: Vec<[Connection; 2]>,
    remembered: VecDeque<Remembered>,
    pub operations: Vec<Operation>,
}

#[derive(Clone, Copy)]
struct Remembered {
    order: i64,
    user: u32,
    sale: u8,
    key: u32,
}

impl Client {
    pub fn new(world: &Arc<World>, number: u16) -> Self {
        let connections = world.addresses.iter();
        Self {
            world: world.clone(),
            number,
            random: Random::of(world.seed, "client", u64::from(number)),
            connections: connections
                .map(|address| [Connection::new(*address), Connection::new(*address)])
                .collect(),
            remembered: VecDeque::new(),
            operations: Vec::new(),
        }
    }

    /// One shopper after another until the world stops.
    pub async fn run(mut self) -> Vec<Operation> {
        while !self.world.is_stopping() {
            self.session().await;
        }
        self.operations
    }

    /// The same, but no longer than until then.
    pub async fn run_until(mut self, until: Instant) -> Vec<Operation> {
        while !self.world.is_stopping() && Instant::now() < until {
            self.session().await;
        }
        self.operations
    }

    async fn session(&mut self) {
        let sale = self.choose_sale();
        // Most come once; some come again, for the same sale or another.
        let user = match self.remembered.back() {
            Some(known) if self.random.chance(0.15) => known.user,
            _ => self.world.new_user(),
        };
        let key = if self.random.chance(0.6) {
            self.world.new_key()
        } else {
            NO_KEY
        };
        let mut shopper = Shopper {
            user,
            sale,
            key,
            token: self.world.token(user),
        };
        let order = match self.random.below(100) {
            0..8 => self.click_twice(&shopper).await,
            8..12 => {
                self.hang_up(&shopper).await;
                self.buy(&mut shopper).await
            }
            _ => self.buy(&mut shopper).await,
        };
        if let Some(order) = order {
            self.world.show(order, sale, user);
            self.decide(&shopper, order).await;
            if self.remembered.len() == REMEMBERED {
                self.remembered.pop_front();
            }
            self.remembered.push_back(Remembered {
                order,
                user,
                sale,
                key: shopper.key,
            });
        }
        if self.random.chance(0.25) {
            self.look_back().await;
        }
        if self.random.chance(0.1) {
            self.pry(&shopper).await;
        }
    }

    fn choose_sale(&mut self) -> u8 {
        let sales = &self.world.sales;
        let all: u64 = sales.iter().map(|sale| sale.habits.popularity).sum();
        let mut drawn = self.random.below(all.max(1));
        for (sale, index) in sales.iter().zip(0..) {
            if drawn < sale.habits.popularity {
                return index;
            }
            drawn -= sale.habits.popularity;
        }
        0
    }

    /// Buys, and asks again while the answer is unclear. Answers which order it became.
    async fn buy(&mut self, shopper: &mut Shopper) -> Option<i64> {
        for _ in 0..RETRIES {
            let instance = self.random.index(self.connections.len());
            let (answer, order) = self.ask(shopper, Kind::Buy, NO_ORDER, instance).await;
            match answer {
                Answer::Accepted | Answer::Replayed => return Some(order),
                Answer::Unknown | Answer::Unavailable | Answer::RateLimited | Answer::NeverSent => {
                    if self.world.is_stopping() {
                        return None;
                    }
                    // Short: a crowd does not wait as long as it is told to.
                    let pause = self.random.millis(10..60);
                    tokio::time::sleep(pause).await;
                }
                _ => return None,
            }
        }
        None
    }

    /// The same purchase on two connections at once, often at two instances.
    async fn click_twice(&mut self, shopper: &Shopper) -> Option<i64> {
        let [first, second] = [0, 1].map(|_| self.random.index(self.connections.len()));
        let mut left = self.take(first, 0);
        let mut right = self.take(second, 1);
        let asked = shopper.request(&self.world, Kind::Buy, NO_ORDER);
        let invoked = self.world.now();
        let (one, other) = tokio::join!(
            timed(&self.world, left.call(&asked, PATIENCE)),
            timed(&self.world, right.call(&asked, PATIENCE)),
        );
        self.connections[first][0] = left;
        self.connections[second][1] = right;
        let mut bought = None;
        for (instance, (ended, completed)) in [(first, one), (second, other)] {
            let (answer, order) = self.note(shopper, BUY, instance, (invoked, completed), ended);
            if answer.is_accepted() {
                bought = Some(order);
            }
        }
        bought
    }

    async fn hang_up(&mut self, shopper: &Shopper) {
        let instance = self.random.index(self.connections.len());
        let asked = shopper.request(&self.world, Kind::Buy, NO_ORDER);
        let invoked = self.world.now();
        let ended = self.connections[instance][0]
            .call_and_hang_up(&asked, PATIENCE)
            .await;
        let completed = self.world.now();
        self.note(shopper, BUY, instance, (invoked, completed), ended);
    }

    /// Looks at the order; pays it, cancels it, or lets it lapse.
    async fn decide(&mut self, shopper: &Shopper, order: i64) {
        let habits = self.world.sales[usize::from(shopper.sale)].habits;
        let dice = self.random.below(1_000) as f64 / 1_000.0;
        let kind = if dice < habits.pay {
            Kind::Pay
        } else if dice < habits.pay + habits.cancel {
            Kind::Cancel
        } else if self.random.chance(0.3) {
            Kind::Read
        } else {
            return;
        };
        for _ in 0..RETRIES {
            let instance = self.random.index(self.connections.len());
            let (answer, _) = self.ask(shopper, kind, order, instance).await;
            let again = match answer {
                // Too early: it is not written yet.
                Answer::Conflict => true,
                Answer::Unknown | Answer::Unavailable | Answer::RateLimited | Answer::NeverSent => {
                    true
                }
                _ => false,
            };
            if !again || self.world.is_stopping() {
                return;
            }
            let pause = self.random.millis(5..40);
            tokio::time::sleep(pause).await;
        }
    }

    /// A look at an older order of one's own, or a late retry of its purchase.
    async fn look_back(&mut self) {
        if self.remembered.is_empty() {
            return;
        }
        let at = self.random.index(self.remembered.len());
        let known = self.remembered[at];
        let shopper = Shopper {
            user: known.user,
            sale: known.sale,
            key: known.key,
            token: self.world.token(known.user),
        };
        let instance = self.random.index(self.connections.len());
        if known.key != NO_KEY && self.random.chance(0.3) {
            self.ask(&shopper, Kind::Buy, NO_ORDER, instance).await;
        } else {
            self.ask(&shopper, Kind::Read, known.order, instance).await;
        }
    }

    async fn pry(&mut self, shopper: &Shopper) {
        let dice = self.random.next();
        let Some((order, sale, owner)) = self.world.order_of_another(shopper.user, dice) else {
            return;
        };
        let token = match self.world.swaps_tokens {
            true => self.world.token(owner),
            false => shopper.token.clone(),
        };
        let prying = Shopper {
            sale,
            token,
            ..*shopper
        };
        let instance = self.random.index(self.connections.len());
        self.ask(&prying, Kind::Pry, order, instance).await;
    }

    fn take(&mut self, instance: usize, which: usize) -> Connection {
        let address = self.world.addresses[instance];
        std::mem::replace(
            &mut self.connections[instance][which],
            Connection::new(address),
        )
    }

    /// One operation from invocation to completion: the answer, and the order that it is about.
    pub async fn ask(
        &mut self,
        shopper: &Shopper,
        kind: Kind,
        order: i64,
        instance: usize,
    ) -> (Answer, i64) {
        let asked = shopper.request(&self.world, kind, order);
        let invoked = self.world.now();
        let ended = self.connections[instance][0].call(&asked, PATIENCE).await;
        let completed = self.world.now();
        self.note(
            shopper,
            (kind, order),
            instance,
            (invoked, completed),
            ended,
        )
    }

    fn note(
        &mut self,
        shopper: &Shopper,
        (kind, order): (Kind, i64),
        instance: usize,
        (invoked, completed): (u64, u64),
        ended: Ended,
    ) -> (Answer, i64) {
        let answer = understand(kind, &ended);
        let order = match (&ended, kind) {
            (Ended::Answered(response), Kind::Buy) => {
                response.text("order_id").parse().unwrap_or(NO_ORDER)
            }
            _ => order,
        };
        if answer == Answer::Accepted {
            self.world.accepted[instance].fetch_add(1, Relaxed);
        }
        self.operations.push(Operation {
            invoked,
            completed,
            order,
            user: shopper.user,
            key: if kind == Kind::Buy {
                shopper.key
            } else {
                NO_KEY
            },
            client: self.number,
            instance: u8::try_from(instance).unwrap_or(u8::MAX),
            sale: shopper.sale,
            kind,
            answer,
        });
        (answer, order)
    }
}

async fn timed(world: &World, call: impl Future<Output = Ended>) -> (Ended, u64) {
    let ended = call.await;
    (ended, world.now())
}

/// Somebody who wants something of a sale.
pub struct Shopper {
    pub user: u32,
    pub sale: u8,
    pub key: u32,
    pub token: String,
}

impl Shopper {
    fn request(&self, world: &World, kind: Kind, order: i64) -> Vec<u8> {
        let sale = world.sales[usize::from(self.sale)].id;
        let headers = match (kind, self.key) {
            (Kind::Buy, key) if key != NO_KEY => format!("Idempotency-Key: k{key}\r\n"),
            _ => String::new(),
        };
        let (method, path) = match kind {
            Kind::Buy => ("POST", format!("/api/v1/sales/{sale}/orders")),
            Kind::Pay => ("POST", format!("/api/v1/orders/{order}/pay")),
            Kind::Cancel => ("POST", format!("/api/v1/orders/{order}/cancel")),
            _ => ("GET", format!("/api/v1/orders/{order}")),
        };
        request(method, &path, &self.token, &headers, "")
    }
}

/// What an ending means for this kind of question.
pub fn understand(kind: Kind, ended: &Ended) -> Answer {
    match ended {
        Ended::NeverSent => Answer::NeverSent,
        Ended::Unknown => Answer::Unknown,
        Ended::Answered(response) => answer_of(kind, response),
    }
}

fn answer_of(kind: Kind, response: &Response) -> Answer {
    let about_order = matches!(kind, Kind::Read | Kind::Pry | Kind::Pay | Kind::Cancel);
    match (response.status, response.text("code")) {
        (202, _) if kind == Kind::Buy => {
            if response.replayed {
                Answer::Replayed
            } else {
                Answer::Accepted
            }
        }
        (200, _) if about_order => match response.text("status").parse::<OrderStatus>() {
            Ok(status) => Answer::Order(status),
            Err(()) => Answer::Undocumented(200),
        },
        (200, _) if kind != Kind::Buy => Answer::Done,
        (404, "order_not_found") if about_order => Answer::OrderNotFound,
        (409, "already_ordered") if kind == Kind::Buy => Answer::AlreadyOrdered,
        (409, "sold_out") if kind == Kind::Buy => Answer::SoldOut,
        (409, "not_open") if kind == Kind::Buy => Answer::NotOpen,
        (409, "paused") if kind == Kind::Buy => Answer::Paused,
        (409, "ended") if kind == Kind::Buy => Answer::Ended,
        (409, "still_queued" | "not_payable" | "not_cancellable" | "not_enough_remaining")
            if kind != Kind::Buy =>
        {
            Answer::Conflict
        }
        (429, "rate_limited") => Answer::RateLimited,
        (503, "unavailable") => Answer::Unavailable,
        (status, _) => Answer::Undocumented(status),
    }
}
