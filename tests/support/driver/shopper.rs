//! Shoppers who buy, retry, hang up, pay, cancel, look and pry; the last buyers; the operator.

use super::client::{Buyer, Client};
use super::*;
use std::collections::VecDeque;

const RETRIES: usize = 12;
const REMEMBERED: usize = 64;
const SOLD_OFF_WITHIN: Duration = Duration::from_secs(60);
const LAPSED_AFTER: Duration = Duration::from_secs(4);

pub struct Shopper {
    client: Client,
    place: Option<(u8, usize)>,
    remembered: VecDeque<(Buyer, i64)>,
}

fn is_unclear(answer: Answer) -> bool {
    use Answer::{NeverSent, RateLimited, Unavailable, Unknown};
    matches!(answer, Unknown | Unavailable | RateLimited | NeverSent)
}

impl Shopper {
    pub fn new(world: &Arc<World>, number: u16, place: Option<(u8, usize)>) -> Self {
        Self { client: Client::new(world, number), place, remembered: VecDeque::new() }
    }

    pub async fn run(mut self, until: Option<Instant>) {
        let is_over = || until.is_some_and(|until| Instant::now() >= until);
        while !self.client.world.is_stopping() && !is_over() {
            self.session().await;
            tokio::time::sleep(self.client.world.pause).await;
        }
    }

    async fn session(&mut self) {
        let world = self.client.world.clone();
        let sale = self.choose_sale();
        let user = match self.remembered.back() {
            Some((known, _)) if self.client.random.chance(0.15) => known.user,
            _ => world.new_number(),
        };
        let key = if self.client.random.chance(0.6) { world.new_number() } else { NO_KEY };
        let buyer = Buyer::known(&world, user, sale, key);
        let order = match self.client.random.below(100) {
            0..8 => {
                let at = [0, 1].map(|_| self.choose_instance());
                self.client.click_twice(&buyer, at).await
            }
            8..12 => {
                let instance = self.choose_instance();
                self.client.hang_up(&buyer, instance).await;
                self.buy(&buyer).await
            }
            _ => self.buy(&buyer).await,
        };
        if let Some(order) = order {
            self.decide(&buyer, order).await;
            if self.remembered.len() == REMEMBERED {
                self.remembered.pop_front();
            }
            self.remembered.push_back((buyer.clone(), order));
        }
        if self.client.random.chance(0.25) {
            self.look_back().await;
        }
        if self.client.random.chance(0.1) {
            self.pry(&buyer).await;
        }
    }

    fn choose_sale(&mut self) -> u8 {
        if let Some((sale, _)) = self.place {
            return sale;
        }
        let sales = &self.client.world.sales;
        let all: u64 = sales.iter().map(|sale| sale.habits.popularity).sum();
        let mut drawn = self.client.random.below(all.max(1));
        for (sale, index) in sales.iter().zip(0..) {
            if drawn < sale.habits.popularity {
                return index;
            }
            drawn -= sale.habits.popularity;
        }
        0
    }

    fn choose_instance(&mut self) -> usize {
        self.place.map_or_else(|| self.client.any_instance(), |(_, instance)| instance)
    }

    async fn ask(&mut self, buyer: &Buyer, kind: Kind, order: i64) -> (Answer, i64) {
        let instance = self.choose_instance();
        self.client.ask(buyer, kind, order, instance).await
    }

    async fn asks_again(&mut self, is_unclear: bool, millis: Range<u64>) -> bool {
        if !is_unclear || self.client.world.is_stopping() {
            return false;
        }
        tokio::time::sleep(self.client.random.millis(millis)).await;
        true
    }

    async fn buy(&mut self, buyer: &Buyer) -> Option<i64> {
        for _ in 0..RETRIES {
            let (answer, order) = self.ask(buyer, Kind::Buy, NO_ORDER).await;
            if answer.is_accepted() {
                return Some(order);
            }
            if !self.asks_again(is_unclear(answer), 10..60).await {
                return None;
            }
        }
        None
    }

    async fn decide(&mut self, buyer: &Buyer, order: i64) {
        let habits = self.client.world.sales[usize::from(buyer.sale)].habits;
        let dice = self.client.random.below(1_000) as f64 / 1_000.0;
        let kind = if dice < habits.pay {
            Kind::Pay
        } else if dice < habits.pay + habits.cancel {
            Kind::Cancel
        } else if self.client.random.chance(0.3) {
            Kind::Read
        } else {
            return;
        };
        for _ in 0..RETRIES {
            let (answer, _) = self.ask(buyer, kind, order).await;
            // A conflict: too early, it is not written yet.
            if !self.asks_again(is_unclear(answer) || answer == Answer::Conflict, 5..40).await {
                return;
            }
        }
    }

    async fn look_back(&mut self) {
        if self.remembered.is_empty() {
            return;
        }
        let at = self.client.random.index(self.remembered.len());
        let (buyer, order) = self.remembered[at].clone();
        if buyer.key != NO_KEY && self.client.random.chance(0.3) {
            self.ask(&buyer, Kind::Buy, NO_ORDER).await;
        } else {
            self.ask(&buyer, Kind::Read, order).await;
        }
    }

    async fn pry(&mut self, buyer: &Buyer) {
        let world = self.client.world.clone();
        let bought = world.purchase_of_another(buyer.user, &mut self.client.random);
        let Some(bought) = bought else { return };
        let user = if world.swaps_tokens { bought.user } else { buyer.user };
        let prying = Buyer { sale: bought.sale, token: world.token(user), ..*buyer };
        self.ask(&prying, Kind::Pry, bought.order).await;
    }
}

/// Buys and pays what is left; whether all of these sales ended with "sold out".
pub async fn sell_off(world: &Arc<World>) -> bool {
    let mut buyers: JoinSet<bool> = JoinSet::new();
    let sales = world.sales.iter().zip(0u8..);
    for (_, sale) in sales.filter(|(sale, _)| sale.habits.is_sold_off) {
        for number in 0..8 {
            let client = Client::new(world, 10_000 + u16::from(sale) * 100 + number);
            buyers.spawn(buy_until_sold_out(client, sale));
        }
    }
    buyers.join_all().await.into_iter().all(|heard| heard)
}

async fn buy_until_sold_out(mut client: Client, sale: u8) -> bool {
    let deadline = Instant::now() + SOLD_OFF_WITHIN;
    let mut buyer = Buyer::with_key(&client.world, sale);
    while Instant::now() < deadline {
        let instance = client.any_instance();
        let (answer, order) = client.ask(&buyer, Kind::Buy, NO_ORDER, instance).await;
        if answer == Answer::SoldOut {
            return true;
        }
        let lapsed = Instant::now() + LAPSED_AFTER;
        while order != NO_ORDER && Instant::now() < lapsed {
            let (paid, _) = client.ask(&buyer, Kind::Pay, order, instance).await;
            if matches!(paid, Answer::Order(_)) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        if order == NO_ORDER {
            tokio::time::sleep(Duration::from_millis(20)).await;
        } else {
            buyer = Buyer::with_key(&client.world, sale);
        }
    }
    false
}

pub struct Operator(Client);

impl Operator {
    pub fn new(world: &Arc<World>) -> Self {
        Self(Client::new(world, u16::MAX))
    }

    pub async fn run(mut self) {
        let world = self.0.world.clone();
        while !world.is_stopping() {
            for (sale, number) in world.sales.iter().zip(0u8..) {
                if sale.habits.is_paused_often {
                    self.ask(number, Kind::Pause).await;
                    self.wait(20..150).await;
                    // One that stays paused would end the run of its buyers.
                    for _ in 0..600 {
                        if self.ask(number, Kind::Resume).await == Answer::Done {
                            break;
                        }
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
                if sale.habits.stock_changes && self.0.random.chance(0.3) {
                    let add = self.0.random.below(12) as i16 - 4;
                    if add != 0 {
                        self.ask(number, Kind::AddStock(add)).await;
                    }
                }
            }
            self.wait(20..200).await;
        }
    }

    async fn wait(&mut self, millis: Range<u64>) {
        tokio::time::sleep(self.0.random.millis(millis)).await;
    }

    async fn ask(&mut self, sale: u8, kind: Kind) -> Answer {
        let instance = self.0.any_instance();
        self.ask_at(sale, kind, instance).await
    }

    pub async fn ask_at(&self, sale: u8, kind: Kind, instance: usize) -> Answer {
        (self.0.ask(&Buyer::operator(sale), kind, NO_ORDER, instance).await).0
    }
}
