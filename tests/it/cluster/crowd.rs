//! People who buy, ask again with their key when the answer is unclear, look at their orders, pay or cancel
//! them; and what each of them was told.

use super::evidence::{self, Judged};
use crate::support::{
    app::{PATIENCE, Reply, TestApp, eventually},
    checkers::Snapshot,
    history::{Answer, Kind, Micros, NO_KEY, NO_ORDER, Operation, user_id},
    random::Random,
    redis_servers::KeyHolder,
};
use flash_sale::domain::OrderStatus;
use reqwest::Method;
use std::{
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use time::OffsetDateTime;
use tokio::task::JoinHandle;

/// How long an order may be paid. Short, so that what nobody was told of comes to its end.
pub const PAYMENT_SECS: u32 = 3;

/// How often somebody asks again when the answer is unclear, and when.
const RETRIES: usize = 40;
const RETRY: Duration = Duration::from_millis(50);
/// The next customer of a lane comes this much later.
const BREATH: Duration = Duration::from_millis(10);
/// One way in.
#[derive(Clone)]
struct Door {
    base: String,
    client: reqwest::Client,
}

/// What everybody in the crowd knows.
pub struct World {
    pub seed: u64,
    began: Instant,
    /// The wall clock at that moment, in microseconds since 1970.
    pub began_at: i64,
    pub sales: Vec<String>,
    doors: Vec<Door>,
    tokens: Box<dyn Fn(u32) -> String + Send + Sync>,
    /// How many have come in by each door.
    visitors: Vec<AtomicU32>,
    /// Accepted purchases of each sale.
    accepted: Vec<AtomicUsize>,
    stop: AtomicBool,
    /// Nobody takes snapshots any more.
    pub is_over: AtomicBool,
    pub operations: Mutex<Vec<Operation>>,
}

impl World {
    pub fn now(&self) -> Micros {
        Micros::try_from(self.began.elapsed().as_micros()).expect("not so long")
    }

    /// Asks, and notes what was answered.
    async fn ask(&self, user: u32, sale: usize, key: u32, kind: Kind, order: i64) -> (Answer, i64) {
        let instance = user as usize % self.doors.len();
        let door = &self.doors[instance];
        let (method, path) = match kind {
            Kind::Buy => (Method::POST, format!("sales/{}/orders", self.sales[sale])),
            Kind::Pay => (Method::POST, format!("orders/{order}/pay")),
            Kind::Cancel => (Method::POST, format!("orders/{order}/cancel")),
            _ => (Method::GET, format!("orders/{order}")),
        };
        let mut request = door
            .client
            .request(method, format!("{}/api/v1/{path}", door.base))
            .bearer_auth((self.tokens)(user));
        if kind == Kind::Buy && key != NO_KEY {
            request = request.header("Idempotency-Key", format!("k{key}"));
        }
        let invoked = self.now();
        let reply = Reply::of(request.send().await.expect("the instances live")).await;
        let answer = understand(kind, &reply);
        let named = reply.body["order_id"]
            .as_str()
            .and_then(|id| id.parse().ok());
        let one = Operation {
            invoked,
            completed: self.now(),
            order: named.unwrap_or(order),
            user,
            key,
            client: 0,
            instance: u8::try_from(instance).expect("few"),
            sale: u8::try_from(sale).expect("few"),
            kind,
            answer,
        };
        self.operations
            .lock()
            .expect("nobody panics with it")
            .push(one);
        if answer == Answer::Accepted {
            self.accepted[sale].fetch_add(1, Relaxed);
        }
        (answer, one.order)
    }

    /// Somebody new at this door; [`World::ask`] finds it again from the number.
    fn visitor(&self, door: usize) -> u32 {
        let [doors, door] =
            [self.doors.len(), door].map(|number| u32::try_from(number).expect("few"));
        (self.visitors[door as usize].fetch_add(1, Relaxed) + 1) * doors + door
    }

    /// One customer, from the purchase to the end of the order. What they were told of the purchase.
    async fn customer(&self, sale: usize, door: usize, random: &mut Random, pays: bool) -> Answer {
        let user = self.visitor(door);
        let key = if random.chance(0.8) { user } else { NO_KEY };
        let (mut answer, mut order) = (Answer::Unknown, NO_ORDER);
        for _ in 0..RETRIES {
            (answer, order) = self.ask(user, sale, key, Kind::Buy, NO_ORDER).await;
            if answer != Answer::Unavailable {
                break;
            }
            tokio::time::sleep(RETRY).await;
        }
        let bought =
            answer.is_accepted() || (answer == Answer::AlreadyOrdered && order != NO_ORDER);
        if !bought {
            return answer;
        }
        self.ask(user, sale, NO_KEY, Kind::Read, order).await;
        let kind = if pays || random.chance(0.8) {
            Kind::Pay
        } else {
            Kind::Cancel
        };
        // Queued until it is written; unpaid, it lapses.
        for _ in 0..RETRIES {
            let (ended, _) = self.ask(user, sale, NO_KEY, kind, order).await;
            if matches!(ended, Answer::Order(_)) {
                break;
            }
            if let (Answer::Order(status), _) =
                self.ask(user, sale, NO_KEY, Kind::Read, order).await
                && status.is_terminal()
            {
                break;
            }
            tokio::time::sleep(RETRY).await;
        }
        answer
    }
}

fn understand(kind: Kind, reply: &Reply) -> Answer {
    let is_buy = kind == Kind::Buy;
    match (reply.status.as_u16(), reply.code()) {
        (202, _) if is_buy && reply.header("idempotent-replayed") == "true" => Answer::Replayed,
        (202, _) if is_buy => Answer::Accepted,
        (200, _) if !is_buy => reply
            .text("status")
            .parse::<OrderStatus>()
            .map_or(Answer::Undocumented(200), Answer::Order),
        (404, "order_not_found") if !is_buy => Answer::OrderNotFound,
        (409, "already_ordered") if is_buy => Answer::AlreadyOrdered,
        (409, "sold_out") if is_buy => Answer::SoldOut,
        (409, "still_queued" | "not_payable" | "not_cancellable") if !is_buy => Answer::Conflict,
        (503, "unavailable") => Answer::Unavailable,
        (status, _) => Answer::Undocumented(status),
    }
}

/// A crowd at some instances, and somebody who takes snapshots.
pub struct Crowd {
    world: Arc<World>,
    lanes: Vec<JoinHandle<()>>,
    snapshots: JoinHandle<Vec<Snapshot>>,
}

impl Crowd {
    /// `lanes` customers at a time for each of these sales; each lane stays at one instance.
    pub fn start(apps: &[TestApp], sales: &[String], lanes: usize) -> Self {
        let seed = 2_026;
        let until = OffsetDateTime::now_utc() + time::Duration::WEEK;
        let signer = apps[0].entrance();
        let world = Arc::new(World {
            seed,
            began: Instant::now(),
            began_at: i64::try_from(OffsetDateTime::now_utc().unix_timestamp_nanos() / 1_000)
                .expect("a time"),
            sales: sales.to_vec(),
            doors: apps
                .iter()
                .map(|app| Door {
                    base: app.base.clone(),
                    client: app.client.clone(),
                })
                .collect(),
            tokens: Box::new(move |user| signer.mint(user_id(seed, user), until)),
            visitors: apps.iter().map(|_| AtomicU32::new(0)).collect(),
            accepted: sales.iter().map(|_| AtomicUsize::new(0)).collect(),
            stop: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            operations: Mutex::default(),
        });
        let lane = |number: usize| {
            let world = world.clone();
            tokio::spawn(async move {
                let mut random = Random::of(seed, "lane", number as u64);
                let sale = number % world.sales.len();
                let door = number / world.sales.len() % world.doors.len();
                while !world.stop.load(Relaxed) {
                    world.customer(sale, door, &mut random, false).await;
                    tokio::time::sleep(BREATH).await;
                }
            })
        };
        Self {
            lanes: (0..lanes * sales.len()).map(lane).collect(),
            snapshots: tokio::spawn(evidence::take_snapshots(
                world.clone(),
                apps[0].database.clone(),
            )),
            world,
        }
    }

    /// Accepted purchases of a sale so far.
    pub fn accepted(&self, sale: usize) -> usize {
        self.world.accepted[sale].load(Relaxed)
    }

    /// Waits until so many more were accepted in each of these sales.
    pub async fn until_accepted(&self, sales: &[usize], more: usize) {
        let wanted: Vec<usize> = sales
            .iter()
            .map(|sale| self.accepted(*sale) + more)
            .collect();
        let deadline = Instant::now() + PATIENCE;
        while sales
            .iter()
            .zip(&wanted)
            .any(|(sale, wanted)| self.accepted(*sale) < *wanted)
        {
            assert!(
                !self.lanes.iter().any(JoinHandle::is_finished),
                "somebody of the crowd fell over"
            );
            assert!(
                Instant::now() < deadline,
                "in vain: {more} more purchases of sales {sales:?}, {:?} so far",
                self.world.accepted
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// People buy at one instance, one after the other, and do nothing else; until it is sold out, three
    /// in a row were told to come again, or there were so many. What the last was told.
    pub async fn rush(&self, instance: usize, sale: usize, most: usize) -> Answer {
        let (mut last, mut in_vain) = (Answer::Unknown, 0);
        for _ in 0..most {
            let user = self.world.visitor(instance);
            (last, _) = self.world.ask(user, sale, user, Kind::Buy, NO_ORDER).await;
            in_vain = if last == Answer::Unavailable {
                in_vain + 1
            } else {
                0
            };
            if in_vain == 3 || last == Answer::SoldOut {
                break;
            }
        }
        last
    }

    /// People buy at one instance, one after the other, until they are told that nothing is left.
    pub async fn sell_out(&self, instance: usize, sale: usize) {
        eventually("the sale is sold out", async || {
            let last = self.rush(instance, sale, usize::MAX).await;
            (last == Answer::SoldOut).then_some(())
        })
        .await;
    }

    /// The time now, by the clock of the history.
    pub fn now(&self) -> Micros {
        self.world.now()
    }

    /// Orders of a sale that an instance accepted from somebody who asked between these times.
    pub fn accepted_by(&self, instance: usize, sale: usize, asked: Range<Micros>) -> Vec<i64> {
        let operations = self.world.operations.lock().expect("nobody panics with it");
        let is_wanted = |one: &&Operation| {
            usize::from(one.sale) == sale
                && usize::from(one.instance) == instance
                && one.answer == Answer::Accepted
                && asked.contains(&one.invoked)
        };
        operations
            .iter()
            .filter(is_wanted)
            .map(|one| one.order)
            .collect()
    }

    /// Waits until an instance has accepted so many orders of a sale, of people who asked after this time.
    pub async fn until_accepted_by(
        &self,
        instance: usize,
        sale: usize,
        since: Micros,
        count: usize,
    ) {
        let what = format!("{count} orders of sale {sale} at instance {instance}");
        eventually(&what, async || {
            let accepted = self.accepted_by(instance, sale, since..self.now());
            (accepted.len() >= count).then_some(())
        })
        .await;
    }

    /// How often somebody was told 503 in this sale.
    pub fn shed(&self, sale: usize) -> usize {
        let operations = self.world.operations.lock().expect("nobody panics with it");
        let shed =
            |one: &&Operation| usize::from(one.sale) == sale && one.answer == Answer::Unavailable;
        operations.iter().filter(shed).count()
    }

    /// The longest time in which nothing was accepted in this sale.
    pub fn longest_pause(&self, sale: usize) -> Duration {
        let operations = self.world.operations.lock().expect("nobody panics with it");
        let accepted = operations
            .iter()
            .filter(|one| usize::from(one.sale) == sale && one.answer == Answer::Accepted);
        let mut times: Vec<Micros> = accepted.map(|one| one.completed).collect();
        times.sort_unstable();
        let longest = times.windows(2).map(|pair| pair[1] - pair[0]).max();
        Duration::from_micros(longest.unwrap_or(0))
    }

    /// Nobody new comes. Waits for rest, sells the first sale off if `sells_off`, and hands everything to the
    /// checkers. `lost_data`: Redis has lost something that it had acknowledged.
    pub async fn judge(
        self,
        app: &TestApp,
        servers: &impl KeyHolder,
        sells_off: bool,
        lost_data: bool,
    ) -> Judged {
        self.world.stop.store(true, Relaxed);
        for lane in self.lanes {
            lane.await.expect("nobody of the crowd fell over");
        }
        let world = self.world;
        let mut settled = evidence::settle(app, servers, &world).await;
        if sells_off && settled.after.is_some() {
            let mut random = Random::of(world.seed, "rest", 0);
            let mut doors = (0..world.doors.len()).cycle();
            while let Some(door) = doors.next()
                && world.customer(0, door, &mut random, true).await != Answer::SoldOut
            {}
            settled = evidence::settle(app, servers, &world).await;
        }
        world.is_over.store(true, Relaxed);
        let snapshots = self.snapshots.await.expect("somebody looked");
        Judged::of(
            app,
            servers,
            &world,
            snapshots,
            settled,
            (sells_off, lost_data),
        )
        .await
    }
}
