//! The scripts of several buckets against a model of them, on any sequence: buyers, returned units, loans whose
//! steps come late, twice, or never.

use crate::support::Servers;
use flash_sale::{
    domain::{Bucket, OrderId, Sale, SaleId, UserId},
    redis::{
        Keys,
        loans::{self, Books, Lent, Loan},
        scripts::{self, AdmitOptions, Buyer, Installed, Judged},
    },
};
use proptest::{prelude::*, test_runner::TestRunner};
use redis::aio::MultiplexedConnection;
use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};
use time::macros::datetime;

const BUCKETS: u16 = 3;
const B: usize = BUCKETS as usize;

#[derive(Debug, Clone)]
enum Step {
    /// So many strangers ask in a bucket.
    Buy(usize, usize),
    /// The nth order ever accepted is returned.
    Return(prop::sample::Index),
    /// Lender, borrower, units wanted.
    Lend(usize, usize, i64),
    /// The nth loan ever begun is received, or settled; perhaps again, perhaps long after it was settled.
    Receive(prop::sample::Index),
    Settle(prop::sample::Index),
}

/// What the scripts should do, written the obvious way.
struct Model {
    stock: i64,
    remaining: [i64; B],
    live: i64,
    /// (lender, borrower) → the loans of this pair, in order.
    loans: HashMap<(usize, usize), Vec<Entry>>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    amount: i64,
    received: bool,
    settled: bool,
}

impl Model {
    fn in_flight(&self) -> i64 {
        let all = self.loans.values().flatten();
        all.filter(|loan| !loan.received)
            .map(|loan| loan.amount)
            .sum()
    }

    fn lent(&self, lender: usize) -> i64 {
        let own = self.loans.iter().filter(|((from, _), _)| *from == lender);
        own.flat_map(|(_, loans)| loans)
            .filter(|loan| !loan.settled)
            .map(|loan| loan.amount)
            .sum()
    }
}

struct Bench {
    keys: Keys,
    sale: Sale,
    redis: MultiplexedConnection,
}

impl Bench {
    async fn new(prefix: &str, stock: i32) -> Self {
        let servers = Servers::shared().await;
        let client = redis::Client::open(servers.redis.url()).expect("url");
        let mut redis = client
            .get_multiplexed_async_connection()
            .await
            .expect("redis");
        let keys = Keys::new(prefix);
        let sale = Sale {
            id: SaleId::from_i64(1),
            title: "thing".into(),
            description: String::new(),
            image_url: String::new(),
            currency: "USD".into(),
            price_cents: 1,
            original_price_cents: None,
            stock,
            per_user_limit: 1,
            opens_at: datetime!(2020-01-01 00:00 UTC),
            closes_at: datetime!(2090-01-01 00:00 UTC),
            payment_timeout_secs: 60,
            paused: false,
            closed: false,
            epoch: 1,
            version: 1,
            buyer_shards: 1,
            buckets: BUCKETS.cast_signed(),
            former_buckets: BUCKETS.cast_signed(),
            door: flash_sale::domain::Door::default(),
        };
        for bucket in sale.all_buckets() {
            scripts::seal(&mut redis, &keys, bucket, 1, 1)
                .await
                .expect("seal");
            let share = bucket.part.share(i64::from(stock));
            let installed = scripts::install(&mut redis, &keys, &sale, bucket.part, share, 0);
            assert_eq!(installed.await.expect("install"), Installed::Open);
        }
        Self { keys, sale, redis }
    }

    fn bucket(&self, index: usize) -> Bucket {
        self.sale.all_buckets().nth(index).expect("in range")
    }

    async fn fields(&self, index: usize) -> HashMap<String, Vec<u8>> {
        redis::cmd("HGETALL")
            .arg(self.keys.state(self.bucket(index)))
            .query_async(&mut self.redis.clone())
            .await
            .expect("HGETALL")
    }
}

fn number(fields: &HashMap<String, Vec<u8>>, name: &str) -> i64 {
    fields.get(name).map_or(0, |value| {
        std::str::from_utf8(value)
            .expect("text")
            .parse()
            .expect("a number")
    })
}

#[test]
fn the_scripts_of_several_buckets_agree_with_a_model_on_any_sequence() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let index = any::<prop::sample::Index>;
    let step = prop_oneof![
        3 => (0..B, 1..5usize).prop_map(|(bucket, buyers)| Step::Buy(bucket, buyers)),
        2 => index().prop_map(Step::Return),
        4 => (0..B, 0..B, 1..6i64).prop_map(|(from, to, wanted)| Step::Lend(from, to, wanted)),
        4 => index().prop_map(Step::Receive),
        3 => index().prop_map(Step::Settle),
    ];
    let strategy = (0i32..24, prop::collection::vec(step, 1..60));
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 150,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let cases = AtomicU64::new(0);
    runner
        .run(&strategy, |(stock, steps)| {
            let prefix = format!("loans{}:", cases.fetch_add(1, Relaxed));
            runtime.block_on(agree(&prefix, stock, steps))
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

async fn agree(prefix: &str, stock: i32, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let bench = Bench::new(prefix, stock).await;
    let (keys, mut redis) = (&bench.keys, bench.redis.clone());
    let mut model = Model {
        stock: i64::from(stock),
        remaining: std::array::from_fn(|at| bench.bucket(at).part.share(i64::from(stock))),
        live: 0,
        loans: HashMap::new(),
    };
    let mut next_order = 1;
    let mut accepted: Vec<(usize, UserId, OrderId)> = Vec::new();
    let mut begun: Vec<(usize, usize, Loan)> = Vec::new();
    for step in steps {
        match step {
            Step::Buy(at, count) => {
                let buyers: Vec<Buyer> = (0..count)
                    .map(|_| {
                        next_order += 1;
                        Buyer {
                            user: UserId::random(),
                            order_id: OrderId::from_i64(next_order),
                            key: None,
                        }
                    })
                    .collect();
                let options = AdmitOptions {
                    high_water: 1_000,
                    own_writer: true,
                    late: None,
                };
                let bucket = bench.bucket(at);
                let judged = scripts::admit(&mut redis, keys, bucket, 1, 1, options, &buyers)
                    .await
                    .expect("an answer")
                    .expect("judged");
                for (buyer, verdict) in buyers.iter().zip(&judged.verdicts) {
                    if model.remaining[at] > 0 {
                        prop_assert_eq!(*verdict, Judged::Accepted { slot: 0 });
                        model.remaining[at] -= 1;
                        model.live += 1;
                        accepted.push((at, buyer.user, buyer.order_id));
                    } else {
                        prop_assert_eq!(*verdict, Judged::SoldOut);
                    }
                }
            }
            Step::Return(which) if !accepted.is_empty() => {
                let (at, user, order) = accepted.swap_remove(which.index(accepted.len()));
                let bucket = bench.bucket(at);
                scripts::release(&mut redis, keys, bucket, 1, 1, &[(user, order)])
                    .await
                    .expect("an answer")
                    .expect("released");
                model.remaining[at] += 1;
                model.live -= 1;
            }
            Step::Lend(from, to, wanted) if from != to => {
                let lent = loans::lend(&mut redis, keys, bench.bucket(from), 1, to as u16, wanted);
                let lent = lent.await.expect("an answer").expect("not fenced");
                let of_pair = model.loans.entry((from, to)).or_default();
                let open = of_pair.last().filter(|loan| !loan.settled);
                match (lent, open) {
                    (Lent::Open(loan, _), Some(open)) => prop_assert_eq!(loan.amount, open.amount),
                    (Lent::Dry(_), None) => prop_assert_eq!(model.remaining[from], 0),
                    (Lent::Taken(loan, left), None) => {
                        let had = model.remaining[from];
                        let half = had / 2 + had % 2;
                        prop_assert_eq!(loan.amount, half.max(wanted.min(had)));
                        prop_assert_eq!(loan.number, of_pair.len() as i64 + 1);
                        model.remaining[from] -= loan.amount;
                        prop_assert_eq!(left.remaining, model.remaining[from]);
                        of_pair.push(Entry {
                            amount: loan.amount,
                            received: false,
                            settled: false,
                        });
                        begun.push((from, to, loan));
                    }
                    (lent, open) => prop_assert!(false, "{:?} while {:?} is open", lent, open),
                }
            }
            Step::Receive(which) if !begun.is_empty() => {
                let (from, to, loan) = begun[which.index(begun.len())];
                let received =
                    loans::receive(&mut redis, keys, bench.bucket(to), 1, from as u16, loan);
                let (is_new, _) = received.await.expect("an answer").expect("not fenced");
                let place = usize::try_from(loan.number - 1).expect("from 1");
                let entry = &mut model.loans.entry((from, to)).or_default()[place];
                prop_assert_eq!(is_new, !entry.received);
                if is_new {
                    entry.received = true;
                    model.remaining[to] += loan.amount;
                }
            }
            Step::Settle(which) if !begun.is_empty() => {
                // Only what was received is settled: that is the caller's part of the protocol.
                let (from, to, loan) = begun[which.index(begun.len())];
                let place = usize::try_from(loan.number - 1).expect("from 1");
                let entry = &mut model.loans.entry((from, to)).or_default()[place];
                if entry.received {
                    let bucket = bench.bucket(from);
                    loans::settle(&mut redis, keys, bucket, 1, to as u16, loan.number)
                        .await
                        .expect("an answer")
                        .expect("not fenced");
                    entry.settled = true;
                }
            }
            Step::Return(_) | Step::Lend(..) | Step::Receive(_) | Step::Settle(_) => {}
        }
        let mut books: Vec<Books> = Vec::new();
        for at in 0..B {
            let fields = bench.fields(at).await;
            prop_assert_eq!(number(&fields, "remaining"), model.remaining[at]);
            prop_assert_eq!(number(&fields, "lent"), model.lent(at));
            books.push(Books::read(&fields));
        }
        prop_assert_eq!(loans::in_flight(&books), model.in_flight());
        let left: i64 = model.remaining.iter().sum();
        prop_assert_eq!(left + model.live + model.in_flight(), model.stock);
    }
    Ok(())
}
