//! A crowd of the shared driver, each lane at one instance and in one sale: people who buy, ask
//! again when they are told 503, look at their orders, pay or cancel them.

use crate::support::app::{PATIENCE, TestApp};
use crate::support::checkers::{self, Evidence, Snapshot, Violation};
use crate::support::driver::client::{Buyer, Client};
use crate::support::driver::{Error, Habits, ORDINARY, Sale, World};
use crate::support::history::{Answer, Kind, Micros, NO_ORDER, Operation};
use crate::support::redis_servers::KeyHolder;
use crate::support::stores::{Stores, evidence, settle, take_snapshots};
use flash_sale::domain::OrderStatus;
use redis::aio::MultiplexedConnection;
use serde_json::json;
use sqlx::PgConnection;
use std::ops::Range;
use std::sync::{Arc, Mutex, atomic::Ordering::Relaxed};
use std::time::Duration;
use tokio::task::JoinHandle;

/// How long an order may be paid. Short, so that what nobody was told of comes to its end.
const PAYMENT_SECS: u32 = 3;
/// How often somebody asks again when the answer is unclear, and when.
const RETRIES: usize = 40;
const RETRY: Duration = Duration::from_millis(50);
/// The next customer of a lane comes this much later.
const BREATH: Duration = Duration::from_millis(10);
/// Within this time after the last purchase everything is at rest.
const REST: Duration = Duration::from_secs(20);

/// A sale for a crowd.
pub async fn sale(app: &TestApp, stock: i64) -> Sale {
    let id = app.sale(stock, json!({"payment_timeout_secs": PAYMENT_SECS})).await;
    let habits = Habits { stock, ..ORDINARY };
    Sale { id: id.parse().expect("an id"), habits }
}

/// What a buyer was told, and of which order.
type Told = (Answer, i64);

/// Asks an instance that lives, which answers.
async fn ask(client: &mut Client, buyer: &Buyer, kind: Kind, order: i64, at: usize) -> Told {
    let (answer, order) = client.ask(buyer, kind, order, at).await;
    let is_answered = !matches!(answer, Answer::Unknown | Answer::NeverSent);
    assert!(is_answered, "the instances live: {kind:?} was {answer:?}");
    (answer, order)
}

/// One customer, from the purchase to the end of the order. What they were told of the purchase.
async fn customer(client: &mut Client, sale: u8, at: usize, pays: bool) -> Answer {
    let mut buyer = Buyer::new(&client.world, sale);
    if client.random.chance(0.8) {
        buyer.key = buyer.user;
    }
    let (mut answer, mut order) = (Answer::Unknown, NO_ORDER);
    for _ in 0..RETRIES {
        (answer, order) = ask(client, &buyer, Kind::Buy, NO_ORDER, at).await;
        if answer != Answer::Unavailable {
            break;
        }
        tokio::time::sleep(RETRY).await;
    }
    if !answer.is_accepted() && (answer != Answer::AlreadyOrdered || order == NO_ORDER) {
        return answer;
    }
    ask(client, &buyer, Kind::Read, order, at).await;
    let pays = pays || client.random.chance(0.8);
    let kind = if pays { Kind::Pay } else { Kind::Cancel };
    // Queued until it is written; unpaid, it lapses.
    for _ in 0..RETRIES {
        if let (Answer::Order(_), _) = ask(client, &buyer, kind, order, at).await {
            break;
        }
        let (read, _) = ask(client, &buyer, Kind::Read, order, at).await;
        if matches!(read, Answer::Order(status) if status.is_terminal()) {
            break;
        }
        tokio::time::sleep(RETRY).await;
    }
    answer
}

/// A crowd at some instances, and the snapshots that are taken meanwhile.
pub struct Crowd {
    world: Arc<World>,
    lanes: Vec<JoinHandle<()>>,
    snapshots: JoinHandle<Vec<Snapshot>>,
}

impl Crowd {
    /// `lanes` customers at a time for each sale, each at one instance. The first sale sells out.
    pub fn start(apps: &[TestApp], sales: &[Sale], lanes: usize) -> Self {
        let address = |app: &TestApp| app.base.trim_start_matches("http://").parse();
        let addresses = apps.iter().map(|app| address(app).expect("an address"));
        let mut sales = sales.to_vec();
        sales[0].habits.is_sold_off = true;
        let mut world = World::new(2_026, addresses.collect(), sales);
        world.timeout = 2 * PATIENCE;
        let world = Arc::new(world);
        let lane = |number: usize| {
            let mut client = Client::new(&world, u16::try_from(number).expect("few"));
            let (sale, at) = (number % world.sales.len(), number / world.sales.len() % apps.len());
            tokio::spawn(async move {
                while !client.world.is_stopping() {
                    customer(&mut client, u8::try_from(sale).expect("few"), at, false).await;
                    tokio::time::sleep(BREATH).await;
                }
            })
        };
        let primary = Arc::new(Mutex::new(apps[0].database.direct_options()));
        Self {
            lanes: (0..lanes * world.sales.len()).map(lane).collect(),
            snapshots: tokio::spawn(take_snapshots(world.clone(), primary)),
            world,
        }
    }

    /// What was asked in this sale and answered so.
    fn told(&self, sale: usize, answer: Answer) -> Vec<Operation> {
        let operations = self.world.operations();
        let is_it = |one: &&Operation| usize::from(one.sale) == sale && one.answer == answer;
        operations.iter().filter(is_it).copied().collect()
    }

    /// Waits until so many more were accepted in each of these sales.
    pub async fn until_accepted(&self, sales: &[usize], more: usize) {
        let count = |sale: usize| self.told(sale, Answer::Accepted).len();
        let wanted = Vec::from_iter(sales.iter().map(|sale| (*sale, count(*sale) + more)));
        wait_for!(&format!("{more} more purchases of sales {sales:?}"), {
            let fell_over = self.lanes.iter().any(JoinHandle::is_finished);
            assert!(!fell_over, "somebody of the crowd fell over");
            wanted.iter().all(|(sale, wanted)| count(*sale) >= *wanted).then_some(())
        });
    }

    /// People buy at one instance, one after the other, and do nothing else; until one of them is
    /// not accepted, or there were so many. What the last was told.
    pub async fn rush(&self, instance: usize, sale: usize, most: usize) -> Answer {
        let mut client = Client::new(&self.world, u16::MAX);
        let (mut last, mut in_vain) = (Answer::Unknown, 0);
        for _ in 0..most {
            let mut buyer = Buyer::new(&self.world, u8::try_from(sale).expect("few"));
            buyer.key = buyer.user;
            (last, _) = ask(&mut client, &buyer, Kind::Buy, NO_ORDER, instance).await;
            in_vain = if last == Answer::Unavailable { in_vain + 1 } else { 0 };
            if in_vain == 3 || last == Answer::SoldOut {
                break;
            }
        }
        last
    }

    /// People buy at one instance until they are told that nothing is left.
    pub async fn sell_out(&self, instance: usize, sale: usize) {
        let rush = async || self.rush(instance, sale, usize::MAX).await;
        wait_for!(rush().await == Answer::SoldOut);
    }

    /// The time now, by the clock of the history.
    pub fn now(&self) -> Micros {
        self.world.now()
    }

    /// Orders of a sale that an instance accepted from people who asked between these times.
    pub fn accepted_by(&self, instance: usize, sale: usize, asked: Range<Micros>) -> Vec<i64> {
        let accepted = self.told(sale, Answer::Accepted).into_iter();
        let here = accepted.filter(|one| usize::from(one.instance) == instance);
        here.filter(|one| asked.contains(&one.invoked)).map(|one| one.order).collect()
    }

    /// Waits until an instance has accepted so many orders of people who asked after this time.
    pub async fn until_accepted_by(&self, at: usize, sale: usize, since: Micros, most: usize) {
        wait_for!(&format!("{most} orders of sale {sale} at instance {at}"), {
            let accepted = self.accepted_by(at, sale, since..self.now());
            (accepted.len() >= most).then_some(())
        });
    }

    /// How often people were told 503 in this sale.
    pub fn shed(&self, sale: usize) -> usize {
        self.told(sale, Answer::Unavailable).len()
    }

    /// The longest time in which nothing was accepted in this sale.
    pub fn longest_pause(&self, sale: usize) -> Duration {
        let accepted = self.told(sale, Answer::Accepted);
        let mut times: Vec<Micros> = accepted.iter().map(|one| one.completed).collect();
        times.sort_unstable();
        let longest = times.windows(2).map(|pair| pair[1] - pair[0]).max();
        Duration::from_micros(longest.unwrap_or(0))
    }

    /// Nobody new comes. Waits for rest, sells the first sale off, and hands everything to the
    /// checkers. `lost_data`: Redis has lost something that it had acknowledged.
    pub async fn judge(self, app: &TestApp, servers: &impl KeyHolder, lost_data: bool) -> Judged {
        self.world.stop.store(true, Relaxed);
        for lane in self.lanes {
            lane.await.expect("nobody of the crowd fell over");
        }
        let (stores, world) = (View(app, servers), self.world);
        let mut settled = settle(&stores, REST).await;
        let sells_off = settled.after.is_some();
        if sells_off {
            let mut client = Client::new(&world, u16::MAX - 1);
            let mut instances = (0..world.addresses.len()).cycle();
            while let Some(at) = instances.next()
                && customer(&mut client, 0, at, true).await != Answer::SoldOut
            {}
            settled = settle(&stores, REST).await;
        }
        world.is_over.store(true, Relaxed);
        let snapshots = self.snapshots.await.expect("somebody looked");
        let evidence = evidence(&stores, &world, snapshots, settled, sells_off).await;
        let mut evidence = evidence.expect("the stores answer");
        evidence.late_effects = Duration::from_secs(5);
        evidence.redis_lost_data = lost_data;
        Judged { violations: checkers::check(&evidence), evidence }
    }
}

struct View<'a, S>(&'a TestApp, &'a S);

impl<S: KeyHolder> Stores for View<'_, S> {
    async fn postgres(&self) -> Result<PgConnection, Error> {
        Ok(self.0.database.connect().await)
    }

    async fn redis(&self, key: &str) -> Result<MultiplexedConnection, Error> {
        Ok(self.1.holder(key).await.connection().await?)
    }

    /// Each sale's epoch tells: it rises with the approval of its server.
    async fn is_approved(&self) -> Result<bool, Error> {
        Ok(true)
    }
}

/// The verdict, and what it is about.
pub struct Judged {
    violations: Vec<Violation>,
    evidence: Evidence,
}

impl Judged {
    fn with(&self, status: OrderStatus) -> impl Iterator<Item = i64> {
        let rows = self.evidence.rows.iter().filter(move |row| row.status == status);
        rows.map(|row| row.id)
    }

    /// How many of these orders ended as `rejected`.
    pub fn rejected_of(&self, orders: &[i64]) -> usize {
        self.with(OrderStatus::Rejected).filter(|id| orders.contains(id)).count()
    }

    /// Every promise was kept, and there was something to judge. Prints what there was.
    pub fn assert_kept(&self, what: &str) {
        use OrderStatus::{Cancelled, Expired, Paid, Rejected};
        let history = &self.evidence.history;
        let [accepted, shed] = [Answer::Accepted, Answer::Unavailable]
            .map(|answer| history.count(|one| one.kind == Kind::Buy && one.answer == answer));
        let ends = [Paid, Cancelled, Expired, Rejected];
        let ends = ends.map(|status| format!("{} {status:?}", self.with(status).count()));
        let (snapshots, rest) = (self.evidence.snapshots.len(), self.evidence.settled.after);
        println!(
            "{what}: {accepted} told 202, {shed} told 503; {}; {snapshots} snapshots, at rest \
             after {rest:?}",
            ends.join(", ")
        );
        let found: Vec<String> = self.violations.iter().map(ToString::to_string).collect();
        assert!(found.is_empty(), "{what}:\n{}", found.join("\n"));
        assert!(accepted > 50, "too little happened");
        assert!(snapshots > 0, "nobody looked");
    }
}
