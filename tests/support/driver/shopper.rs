//! Shoppers who buy, retry, hang up, pay, cancel, look and pry; the last buyers; the operator.

use super::client::{Buyer, Client};
use super::*;
use std::{collections::VecDeque, convert::Infallible, iter::repeat_n};

const RETRIES: usize = 12;
const REMEMBERED: usize = 64;
const SOLD_OFF_WITHIN: Duration = Duration::from_secs(60);
const LAPSED_AFTER: Duration = Duration::from_secs(4);

pub struct Shopper {
    client: Client,
    place: Option<(u8, usize)>,
    remembered: VecDeque<(Buyer, i64)>,
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
        let sales = self.client.world.sales.iter().zip(0..);
        let drawn_from = sales.flat_map(|(sale, index)| repeat_n(index, sale.habits.popularity));
        let drawn_from: Vec<u8> = drawn_from.collect();
        drawn_from[self.client.random.index(drawn_from.len())]
    }

    fn choose_instance(&mut self) -> usize {
        self.place.map_or_else(|| self.client.any_instance(), |(_, instance)| instance)
    }

    async fn ask(&mut self, buyer: &Buyer, kind: Kind, order: i64) -> (Answer, i64) {
        let instance = self.choose_instance();
        self.client.ask(buyer, kind, order, instance).await
    }

    /// Asks again and again until the answer is clear; the last one.
    async fn insist(
        &mut self,
        buyer: &Buyer,
        kind: Kind,
        order: i64,
        pause: Range<u64>,
    ) -> (Answer, i64) {
        use Answer::{Conflict, NeverSent, RateLimited, Unavailable, Unknown};
        let mut told = (Unknown, NO_ORDER);
        for _ in 0..RETRIES {
            told = self.ask(buyer, kind, order).await;
            // A conflict: too early, it is not written yet.
            let is_unclear =
                matches!(told.0, Unknown | Unavailable | RateLimited | NeverSent | Conflict);
            if !is_unclear || self.client.world.is_stopping() {
                break;
            }
            tokio::time::sleep(self.client.random.millis(pause.clone())).await;
        }
        told
    }

    async fn buy(&mut self, buyer: &Buyer) -> Option<i64> {
        let (answer, order) = self.insist(buyer, Kind::Buy, NO_ORDER, 10..60).await;
        answer.is_accepted().then_some(order)
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
        self.insist(buyer, kind, order, 5..40).await;
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
    let sales = world.sales.iter().zip(0u8..).filter(|(sale, _)| sale.habits.is_sold_off);
    let lanes = sales.flat_map(|(_, sale)| (0..8).map(move |number| (sale, number)));
    let buyers = lanes.map(|(sale, number)| {
        let client = Client::new(world, 10_000 + u16::from(sale) * 100 + number);
        buy_until_sold_out(client, sale)
    });
    join_all(buyers).await.into_iter().all(|heard| heard)
}

async fn buy_until_sold_out(mut client: Client, sale: u8) -> bool {
    let mut buyer = Buyer::with_key(&client.world, sale);
    let sold_out = poll::<_, Infallible>(SOLD_OFF_WITHIN, 20, async || {
        let instance = client.any_instance();
        let (answer, order) = client.ask(&buyer, Kind::Buy, NO_ORDER, instance).await;
        if order != NO_ORDER {
            let paid = poll::<_, Infallible>(LAPSED_AFTER, 10, async || {
                let (paid, _) = client.ask(&buyer, Kind::Pay, order, instance).await;
                Ok(matches!(paid, Answer::Order(_)).then_some(()))
            });
            paid.await.ok();
            buyer = Buyer::with_key(&client.world, sale);
        }
        Ok((answer == Answer::SoldOut).then_some(()))
    });
    sold_out.await.is_ok_and(|heard| heard.is_some())
}

/// Pauses, resumes and restocks, as the sales' habits are, until the world stops.
pub async fn operate(world: Arc<World>) {
    let mut operator = Client::new(&world, u16::MAX);
    while !world.is_stopping() {
        for (sale, number) in world.sales.iter().zip(0u8..) {
            if sale.habits.is_paused_often {
                operator.steer(number, Kind::Pause).await;
                tokio::time::sleep(operator.random.millis(20..150)).await;
                // One that stays paused would end the run of its buyers.
                for _ in 0..600 {
                    if operator.steer(number, Kind::Resume).await == Answer::Done {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
            if sale.habits.stock_changes && operator.random.chance(0.3) {
                let add = operator.random.below(12) as i16 - 4;
                if add != 0 {
                    operator.steer(number, Kind::AddStock(add)).await;
                }
            }
        }
        tokio::time::sleep(operator.random.millis(20..200)).await;
    }
}
