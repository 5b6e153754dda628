//! A crowd of the shared driver, each lane at one instance and in one sale, and its judgement.

use crate::support::checkers::{self, Evidence, Snapshot};
use crate::support::driver::client::{Buyer, Client};
use crate::support::driver::{Error, Habits, ORDINARY, Sale, World, shopper::Shopper};
use crate::support::history::{Answer, Kind, Micros, NO_ORDER, Operation};
use crate::support::stores::{Stores, settle_and_read, take_snapshots};
use crate::support::{prelude::*, redis_servers::KeyHolder};

/// Longer than any test takes: no unit may come back because its buyer could not pay in time.
const PAYMENT_SECS: u32 = 3_600;
/// Then what nobody was told of lapses; meanwhile nobody writes an order with the longer time.
const LAPSE: &str = "BEGIN; LOCK TABLE sales IN ACCESS EXCLUSIVE MODE;
    UPDATE sales SET payment_timeout_secs = 3;
    UPDATE orders SET pay_by = now() + interval '3 s' WHERE status = 'pending_payment'; COMMIT";
const PAUSE: Duration = Duration::from_millis(10);
const REST: Duration = Duration::from_secs(60);

pub async fn sale(app: &TestApp, stock: i64) -> Sale {
    let id = app.sale(stock, json!({"payment_timeout_secs": PAYMENT_SECS})).await;
    let habits = Habits { stock, pay: 0.8, cancel: 0.2, ..ORDINARY };
    Sale { id: id.parse().expect("an id"), habits }
}

pub struct Crowd {
    pub world: Arc<World>,
    lanes: JoinSet<()>,
    snapshots: JoinHandle<Vec<Snapshot>>,
}

impl Crowd {
    /// `lanes` shoppers at a time for each sale, each at one instance. The first sale sells out.
    pub fn start(apps: &[TestApp], sales: &[Sale], lanes: usize) -> Self {
        let address = |app: &TestApp| app.base.trim_start_matches("http://").parse();
        let addresses = apps.iter().map(|app| address(app).expect("an address"));
        let mut sales = sales.to_vec();
        sales[0].habits.is_sold_off = true;
        let mut world = World::new(2_026, addresses.collect(), sales);
        (world.timeout, world.pause) = (2 * TEST_TIMEOUT, PAUSE);
        let world = Arc::new(world);
        let mut shopping = JoinSet::new();
        for number in 0..lanes * world.sales.len() {
            let (sale, at) = (number % world.sales.len(), number / world.sales.len() % apps.len());
            let place = (u8::try_from(sale).expect("few"), at);
            let number = u16::try_from(number).expect("few");
            shopping.spawn(Shopper::new(&world, number, Some(place)).run(None));
        }
        let primary = Arc::new(Mutex::new(apps[0].database.direct_options()));
        let snapshots = tokio::spawn(take_snapshots(world.clone(), primary));
        Self { world, lanes: shopping, snapshots }
    }

    fn told(&self, sale: usize, answer: Answer) -> Vec<Operation> {
        let operations = self.world.operations();
        let is_it = |one: &&Operation| usize::from(one.sale) == sale && one.answer == answer;
        operations.iter().filter(is_it).copied().collect()
    }

    pub async fn until_accepted(&self, sales: &[usize], more: usize) {
        let count = |sale: usize| self.told(sale, Answer::Accepted).len();
        let wanted = Vec::from_iter(sales.iter().map(|sale| (*sale, count(*sale) + more)));
        wait_for!(
            &format!("{more} more purchases of sales {sales:?}"),
            wanted.iter().all(|(sale, wanted)| count(*sale) >= *wanted).then_some(())
        );
    }

    /// One buyer after the other at one instance, until one is not accepted; its answer.
    pub async fn rush(&self, instance: usize, sale: usize, most: usize) -> Answer {
        let client = Client::new(&self.world, u16::MAX);
        let (mut last, mut in_vain) = (Answer::Unknown, 0);
        for _ in 0..most {
            let buyer = Buyer::with_key(&self.world, u8::try_from(sale).expect("few"));
            (last, _) = client.ask(&buyer, Kind::Buy, NO_ORDER, instance).await;
            in_vain = if last == Answer::Unavailable { in_vain + 1 } else { 0 };
            if in_vain == 3 || last == Answer::SoldOut {
                break;
            }
        }
        last
    }

    pub fn accepted_by(&self, instance: usize, sale: usize, asked: Range<Micros>) -> Vec<i64> {
        let accepted = self.told(sale, Answer::Accepted).into_iter();
        let here = accepted.filter(|one| usize::from(one.instance) == instance);
        here.filter(|one| asked.contains(&one.invoked)).map(|one| one.order).collect()
    }

    /// People buy there until it has accepted so many orders of those who asked after this time.
    pub async fn until_accepted_by(&self, at: usize, sale: usize, since: Micros, most: usize) {
        wait_for!(&format!("{most} orders of sale {sale} at instance {at}"), {
            self.rush(at, sale, most).await;
            (self.accepted_by(at, sale, since..self.world.now()).len() >= most).then_some(())
        });
    }

    pub fn shed(&self, sale: usize) -> usize {
        self.told(sale, Answer::Unavailable).len()
    }

    pub fn longest_pause(&self, sale: usize) -> Duration {
        let accepted = self.told(sale, Answer::Accepted);
        let mut times: Vec<Micros> = accepted.iter().map(|one| one.completed).collect();
        times.sort_unstable();
        let longest = times.windows(2).map(|pair| pair[1] - pair[0]).max();
        Duration::from_micros(longest.unwrap_or(0))
    }

    /// All lapses or sells off, and the checkers judge. `lost_data`: of Redis, after its answer.
    pub async fn judge(self, app: &TestApp, servers: &impl KeyHolder, lost_data: bool) -> Judged {
        self.world.stop.store(true, Relaxed);
        self.lanes.join_all().await;
        app.execute(LAPSE).await;
        let evidence =
            settle_and_read(&View(app, servers), &self.world, self.snapshots, REST).await;
        let mut evidence = evidence.expect("the stores answer");
        evidence.late_effects = Duration::from_secs(5);
        evidence.redis_lost_data = lost_data;
        Judged { evidence }
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

pub struct Judged {
    evidence: Evidence,
}

impl Judged {
    pub fn with(&self, status: OrderStatus) -> impl Iterator<Item = i64> {
        self.evidence.rows.iter().filter(move |row| row.status == status).map(|row| row.id)
    }

    pub fn assert_kept(&self, what: &str) {
        use Answer::{Accepted, NeverSent, Unavailable, Unknown};
        let told = |wanted: Answer| self.evidence.history.count(|one| one.answer == wanted);
        let (accepted, shed) = (told(Accepted), told(Unavailable));
        let ends = OrderStatus::ALL.map(|end| format!("{} {end:?}", self.with(end).count()));
        let (snapshots, rest) = (self.evidence.snapshots.len(), self.evidence.settled.after);
        println!(
            "{what}: {accepted} told 202, {shed} told 503; {}; {snapshots} snapshots, at rest \
             after {rest:?}",
            ends.join(", ")
        );
        let found: Vec<String> =
            checkers::check(&self.evidence).iter().map(ToString::to_string).collect();
        assert!(found.is_empty(), "{what}:\n{}", found.join("\n"));
        assert_eq!(told(Unknown) + told(NeverSent), 0, "instances that live answer");
        assert!(accepted > 50, "too little happened");
        assert!(snapshots > 0, "nobody looked");
    }
}
