//! The admission path: crowds, double clicks, retries, and the script against a model of it.

use crate::support::{
    Servers,
    app::{Options, TestApp, all_at_once},
};
use flash_sale::{
    domain::{Admission, Door, IdempotencyKey, OrderId, Sale, SaleId, UserId},
    redis::{
        Keys,
        functions::{self, AdmitOptions, Buyer, Installed, Verdict},
    },
    sale::ShopError,
};
use futures_util::StreamExt;
use proptest::{prelude::*, test_runner::TestRunner};
use reqwest::StatusCode;
use serde_json::json;
use std::{
    collections::{HashMap, HashSet},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};
use time::macros::datetime;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_buyers_on_ten_units_make_exactly_ten_orders() {
    let app = TestApp::start().await;
    let sale = app.sale(10, json!({})).await;
    let shoppers: Vec<_> = (0..2_000).map(|_| app.shopper()).collect();
    let replies = TestApp::all_buy(shoppers.clone(), &sale).await;

    let winners: Vec<_> = shoppers
        .iter()
        .zip(&replies)
        .filter(|(_, reply)| reply.is_accepted())
        .collect();
    assert_eq!(winners.len(), 10);
    for reply in replies.iter().filter(|reply| !reply.is_accepted()) {
        reply.assert_problem(409, "sold_out");
    }
    let ids: HashSet<&str> = winners
        .iter()
        .map(|(_, reply)| reply.text("order_id"))
        .collect();
    assert_eq!(ids.len(), 10, "order ids are unique");
    let audit = app.assert_sound(&sale).await;
    assert_eq!(
        (audit.live, audit.remaining, audit.postgres.taken),
        (10, 0, 10)
    );
    for (shopper, reply) in winners {
        let id = reply.text("order_id");
        shopper.until(id, "pending_payment").await;
        // Sold out or not: a winner who asks again hears of their own order.
        let again = shopper.refused(&sale, "already_ordered").await;
        assert_eq!(again.text("order_id"), id);
    }
    app.finish().await;
}

/// A function of Redis passes 8,000 values on at most: what a large batch writes is cut into slices.
#[tokio::test]
async fn the_largest_batch_is_admitted_at_once() {
    const CROWD: u16 = 4_096;
    let app = TestApp::start_with(Options {
        batch_limit: CROWD,
        ..Options::default()
    })
    .await;
    let sale = app.sale(CROWD.into(), json!({})).await;
    let sale_id: SaleId = sale.parse().expect("an id");
    let users = (0..CROWD).map(|_| UserId::random());
    let purchases = users.map(|user| app.shop.purchase(sale_id, user, None));
    // On one thread, and without a pause: all are waiting before the gate can run.
    let answers = futures_util::future::join_all(purchases);
    for answer in tokio::task::unconstrained(answers).await {
        assert!(
            matches!(answer, Ok(Admission::Accepted { .. })),
            "{answer:?}"
        );
    }
    assert_eq!(app.assert_sound(&sale).await.live, i64::from(CROWD));
    app.finish().await;
}

/// Who joins the queue first is judged first, within a batch too: with less stock than people it is the
/// first who win, and their order ids are in the order in which they came.
#[tokio::test]
async fn first_come_first_served() {
    let app = TestApp::start().await;
    let sale = app.sale(100, json!({})).await;
    let sale_id: SaleId = sale.parse().expect("an id");
    let users: Vec<UserId> = (0..400).map(|_| UserId::random()).collect();
    let purchases: Vec<_> = users
        .iter()
        .map(|user| app.shop.purchase(sale_id, *user, None))
        .collect();
    // On one thread, and polled in this order: so they join in this order, before the gate can run.
    let answers = futures_util::future::join_all(purchases).await;
    let mut winners = Vec::new();
    for (place, answer) in answers.into_iter().enumerate() {
        match answer.expect("an answer") {
            Admission::Accepted { order_id, .. } => {
                assert!(
                    place < 100,
                    "number {place} was served before somebody who came first"
                );
                winners.push(order_id);
            }
            other => assert_eq!((other, place >= 100), (Admission::SoldOut, true)),
        }
    }
    assert_eq!(winners.len(), 100);
    assert!(winners.is_sorted(), "ids in the order of arrival");
    app.assert_sound(&sale).await;
    app.finish().await;
}

/// Many look at orders at once, and share queries: everybody sees their own and nobody another's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_looks_at_orders_sees_each_its_own() {
    let app = TestApp::start().await;
    let sale = app.sale(300, json!({})).await;
    let sale_id: SaleId = sale.parse().expect("an id");
    let mut owners = Vec::new();
    for _ in 0..60 {
        let user = UserId::random();
        let bought = app.shop.purchase(sale_id, user, None).await;
        let Ok(Admission::Accepted { order_id, .. }) = bought else {
            panic!("{bought:?}");
        };
        owners.push((user, order_id));
    }
    // Each looks at their own and at the next one's, many times; some orders are not written yet, and
    // what is not in Postgres is looked for in Redis, one by one: more at once may be told to come again.
    let looks = (0..3_000).map(|number| {
        let (shop, owners) = (app.shop.clone(), owners.clone());
        async move {
            let (user, own) = owners[number % 60];
            let (_, other) = owners[(number + 1) % 60];
            let seen = shop.order(user, own).await.expect("one's own order");
            assert_eq!((seen.user_id, seen.id), (user, own));
            let strange = shop.order(user, other).await;
            assert!(
                matches!(strange, Err(ShopError::OrderNotFound)),
                "{strange:?}"
            );
        }
    });
    futures_util::stream::iter(looks)
        .buffer_unordered(256)
        .collect::<Vec<()>>()
        .await;
    app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_idempotency_key_from_many_tasks_is_one_order_and_one_answer() {
    let app = TestApp::start().await;
    let second = app.another(Options::default()).await;
    let sale = app.sale(100, json!({"per_user_limit": 5})).await;
    let shopper = app.shopper();
    let elsewhere = second.as_shopper(&shopper);
    let replies = all_at_once((0..200).map(|number| {
        let shopper = if number % 2 == 0 {
            shopper.clone()
        } else {
            elsewhere.clone()
        };
        let sale = sale.clone();
        async move { shopper.buy_with_key(&sale, "the one key").await }
    }))
    .await;
    let ids: HashSet<&str> = replies.iter().map(|reply| reply.text("order_id")).collect();
    assert_eq!(ids.len(), 1);
    let first_answers = replies
        .iter()
        .filter(|reply| reply.header("idempotent-replayed").is_empty())
        .count();
    assert_eq!(first_answers, 1, "all but one are marked as replays");
    // Another key is another intent, up to the limit.
    for number in 1..5 {
        shopper
            .buy_with_key(&sale, &format!("key {number}"))
            .await
            .assert(StatusCode::ACCEPTED);
    }
    shopper
        .buy_with_key(&sale, "one too many")
        .await
        .assert_problem(409, "already_ordered");
    let replay = shopper.buy_with_key(&sale, "the one key").await;
    assert!(ids.contains(replay.text("order_id")));
    assert_eq!(app.assert_sound(&sale).await.live, 5);
    second.stop().await;
    app.finish().await;
}

/// One instance takes a sale to be sold out, and asks Redis about one of a crowd. Meanwhile a unit came back and
/// another instance sold it: whoever has it is in that crowd with their key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_buyer_is_not_taken_for_one_of_the_crowd_that_came_too_late() {
    let app = TestApp::start().await;
    let other = app.another(Options::default()).await;
    let points = &app.shop.fail_points;
    for round in 0..3 {
        let sale = app.sale(1, json!({})).await;
        let holder = app.shopper();
        let held = holder.order_to_pay(&sale).await;
        app.shopper().refused(&sale, "sold_out").await;

        // A batch of one is held up after Redis has answered it, so that the crowd becomes one batch, and the first
        // since the unit was sold again.
        let fired = points.fired("gate.admitted");
        points.set("gate.admitted=pause:1500").expect("a point");
        let (early, its_sale) = (app.shopper(), sale.clone());
        let early = tokio::spawn(async move { early.buy_with_key(&its_sale, "early").await });
        while points.fired("gate.admitted") == fired {
            tokio::task::yield_now().await;
        }
        holder.at(&other).cancel(&held).await.assert(StatusCode::OK);
        let buyer = app.shopper();
        let elsewhere = buyer.at(&other);
        let bought = loop {
            let reply = elsewhere.buy_with_key(&sale, "mine").await;
            if reply.is_accepted() {
                break reply.text("order_id").to_owned();
            }
            reply.assert_problem(409, "sold_out"); // not returned yet
        };
        let crowd: Vec<_> = (0..60)
            .map(|number| {
                if number == 30 {
                    buyer.clone()
                } else {
                    app.shopper()
                }
            })
            .collect();
        let replies = all_at_once(crowd.into_iter().map(|shopper| {
            let sale = sale.clone();
            async move { shopper.buy_with_key(&sale, "mine").await }
        }))
        .await;
        let early = early.await.expect("no panic");
        early.assert_problem(409, "sold_out");
        for (number, reply) in replies.iter().enumerate() {
            if number == 30 {
                let found = (reply.status, reply.text("order_id"));
                let expected = (StatusCode::ACCEPTED, bought.as_str());
                assert_eq!(found, expected, "round {round}");
            } else {
                reply.assert_problem(409, "sold_out");
            }
        }
        app.assert_sound(&sale).await;
    }
    other.stop().await;
    app.finish().await;
}

#[tokio::test]
async fn a_key_of_another_type_stops_the_function_before_it_writes_anything() {
    let bench = ScriptBench::new("corrupt:", 10, 1).await;
    let mut connection = bench.connection.clone();
    let user = UserId::random();
    let shard = bench.keys.buyers(bench.sale.id, 1);
    let _: () = redis::cmd("SET")
        .arg(&shard)
        .arg("not a hash")
        .query_async(&mut connection)
        .await
        .expect("SET");
    let before = bench.state().await;
    let buyers = [Buyer {
        user,
        order_id: OrderId::from_i64(1),
        key: None,
    }];
    bench.try_admit(&buyers).await.expect_err("WRONGTYPE");
    assert_eq!(bench.state().await, before, "no unit was taken");
    let _: () = redis::cmd("DEL")
        .arg(&shard)
        .query_async(&mut connection)
        .await
        .expect("DEL");

    let log = bench.keys.log(bench.sale.id);
    let _: () = redis::cmd("SET")
        .arg(&log)
        .arg("not a stream")
        .query_async(&mut connection)
        .await
        .expect("SET");
    let outcome = bench.try_admit(&buyers).await.expect("an answer");
    assert_eq!(outcome.expect_err("refused"), functions::Fenced::Corrupt);
    assert_eq!(bench.state().await, before, "no unit was taken");
}

#[tokio::test]
async fn the_same_attempt_asked_twice_is_accepted_once() {
    let bench = ScriptBench::new("twice:", 10, 1).await;
    let buyers = [Buyer {
        user: UserId::random(),
        order_id: OrderId::from_i64(7),
        key: None,
    }];
    assert_eq!(
        bench.admit(&buyers).await,
        vec![Verdict::Accepted { slot: 0 }]
    );
    assert_eq!(
        bench.admit(&buyers).await,
        vec![Verdict::AcceptedBefore { slot: Some(0) }]
    );
    assert_eq!(bench.state().await["remaining"], 9);
    assert_eq!(bench.state().await["pending"], 1);
}

/// One sale's keys in a real Redis, driven by the typed wrappers alone.
struct ScriptBench {
    keys: Keys,
    sale: Sale,
    connection: redis::aio::MultiplexedConnection,
}

impl ScriptBench {
    async fn new(prefix: &str, stock: i32, limit: i16) -> Self {
        let servers = Servers::shared().await;
        let client = redis::Client::open(servers.redis.url()).expect("url");
        let mut connection = client
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
            per_user_limit: limit,
            opens_at: datetime!(2020-01-01 00:00 UTC),
            closes_at: datetime!(2090-01-01 00:00 UTC),
            payment_timeout_secs: 60,
            paused: false,
            closed: false,
            epoch: 1,
            version: 1,
            door: Door::default(),
        };
        functions::seal(&mut connection, &keys, sale.id, sale.epoch)
            .await
            .expect("seal");
        let installed = functions::install(&mut connection, &keys, &sale, i64::from(stock), 0, 0)
            .await
            .expect("install");
        assert_eq!(installed, Installed::Open);
        Self {
            keys,
            sale,
            connection,
        }
    }

    async fn try_admit(
        &self,
        buyers: &[Buyer],
    ) -> Result<Result<functions::Admitted, functions::Fenced>, redis::RedisError> {
        let options = AdmitOptions {
            high_water: 1_000_000,
            own_writer: true,
            readmitted: None,
        };
        let mut connection = self.connection.clone();
        functions::admit(
            &mut connection,
            &self.keys,
            self.sale.id,
            1,
            options,
            buyers,
        )
        .await
    }

    async fn admit(&self, buyers: &[Buyer]) -> Vec<Verdict> {
        self.try_admit(buyers)
            .await
            .expect("an answer")
            .expect("judged")
            .verdicts
    }

    async fn release(&self, orders: &[(UserId, OrderId)]) -> i64 {
        let mut connection = self.connection.clone();
        functions::release(&mut connection, &self.keys, self.sale.id, 1, orders)
            .await
            .expect("an answer")
            .expect("released")
            .returned
    }

    async fn state(&self) -> HashMap<String, i64> {
        let mut connection = self.connection.clone();
        let mut state: HashMap<String, String> = redis::cmd("HGETALL")
            .arg(self.keys.state(self.sale.id))
            .query_async(&mut connection)
            .await
            .expect("HGETALL");
        state.remove("approved");
        let numbers = state.into_iter();
        numbers
            .map(|(field, value)| (field, value.parse().expect("a number")))
            .collect()
    }
}

/// What `admit` and `release` should do, written the obvious way.
struct Model {
    remaining: i64,
    limit: usize,
    /// user → (order, key, live)
    held: HashMap<u8, Vec<(i64, u64, bool)>>,
}

impl Model {
    fn admit(&mut self, user: u8, order: i64, key: u64) -> Verdict {
        let held = self.held.entry(user).or_default();
        if let Some(replayed) = held
            .iter()
            .find(|(_, stored, _)| key != 0 && *stored == key)
        {
            return Verdict::Replay(OrderId::from_i64(replayed.0));
        }
        let live: Vec<_> = held.iter().filter(|(_, _, live)| *live).collect();
        if live.len() >= self.limit {
            return Verdict::AlreadyOrdered(OrderId::from_i64(live[live.len() - 1].0));
        }
        if self.remaining == 0 {
            return Verdict::SoldOut;
        }
        self.remaining -= 1;
        held.push((order, key, true));
        Verdict::Accepted { slot: 0 } // slots are compared apart
    }

    fn release(&mut self, user: u8, order: i64) -> i64 {
        let held = self.held.entry(user).or_default();
        let Some(found) = held.iter_mut().find(|(id, _, live)| *id == order && *live) else {
            return 0;
        };
        found.2 = false;
        self.remaining += 1;
        // Spent orders are kept for their key's sake, the newest eight of them.
        held.retain(|(_, key, live)| *live || *key != 0);
        let spent = held.iter().filter(|(_, _, live)| !live).count();
        let mut surplus = spent.saturating_sub(8);
        held.retain(|(_, _, live)| {
            let drop = !live && surplus > 0;
            surplus -= usize::from(drop);
            !drop
        });
        1
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// (user, key; 0 is none)
    Batch(Vec<(u8, u8)>),
    /// The nth order ever accepted.
    Release(prop::sample::Index),
}

#[test]
fn the_scripts_agree_with_a_model_on_any_sequence() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let batch = prop::collection::vec((0u8..4, 0u8..4), 1..12).prop_map(Step::Batch);
    let step = prop_oneof![3 => batch, 2 => any::<prop::sample::Index>().prop_map(Step::Release)];
    let strategy = (0i32..8, 1i16..4, prop::collection::vec(step, 1..40));
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let number = AtomicU64::new(0);
    runner
        .run(&strategy, |(stock, limit, steps)| {
            let prefix = format!("model{}:", number.fetch_add(1, Relaxed));
            runtime.block_on(agree(&prefix, stock, limit, steps))
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

async fn agree(
    prefix: &str,
    stock: i32,
    limit: i16,
    steps: Vec<Step>,
) -> Result<(), TestCaseError> {
    let bench = ScriptBench::new(prefix, stock, limit).await;
    let users: Vec<UserId> = (0..4).map(|_| UserId::random()).collect();
    let mut model = Model {
        remaining: i64::from(stock),
        limit: usize::try_from(limit).unwrap_or(1),
        held: HashMap::new(),
    };
    let mut accepted: Vec<(u8, i64)> = Vec::new();
    let mut next_order = 1;
    for step in steps {
        match step {
            Step::Batch(clicks) => {
                let buyers: Vec<Buyer> = clicks
                    .iter()
                    .map(|(user, key)| {
                        let key = (*key != 0).then(|| IdempotencyKey::from_stored(i64::from(*key)));
                        let order_id = OrderId::from_i64(next_order);
                        next_order += 1;
                        Buyer {
                            user: users[usize::from(*user)],
                            order_id,
                            key,
                        }
                    })
                    .collect();
                let verdicts = bench.admit(&buyers).await;
                for ((verdict, buyer), (user, key)) in verdicts.iter().zip(&buyers).zip(&clicks) {
                    let expected = model.admit(*user, buyer.order_id.get(), u64::from(*key));
                    let seen = match verdict {
                        Verdict::Accepted { .. } => Verdict::Accepted { slot: 0 },
                        other => *other,
                    };
                    prop_assert_eq!(seen, expected);
                    if seen == (Verdict::Accepted { slot: 0 }) {
                        accepted.push((*user, buyer.order_id.get()));
                    }
                }
            }
            Step::Release(which) if !accepted.is_empty() => {
                let (user, order) = accepted[which.index(accepted.len())];
                let released = bench
                    .release(&[(users[usize::from(user)], OrderId::from_i64(order))])
                    .await;
                prop_assert_eq!(released, model.release(user, order));
            }
            Step::Release(_) => {}
        }
        let state = bench.state().await;
        prop_assert_eq!(state["remaining"], model.remaining);
        let live: usize = model
            .held
            .values()
            .flatten()
            .filter(|(_, _, live)| *live)
            .count();
        prop_assert_eq!(
            state["remaining"] + i64::try_from(live).unwrap_or(0),
            i64::from(stock),
            "conservation"
        );
    }
    let mut connection = bench.connection.clone();
    let shard = bench.keys.buyers(bench.sale.id, 1);
    let records: HashMap<Vec<u8>, Vec<u8>> = redis::cmd("HGETALL")
        .arg(shard)
        .query_async(&mut connection)
        .await
        .expect("HGETALL");
    for record in records.values() {
        let slots: Vec<u8> = functions::record::decode(record)
            .filter(|held| !held.returned)
            .map(|held| held.slot)
            .collect();
        let distinct: HashSet<&u8> = slots.iter().collect();
        prop_assert_eq!(
            distinct.len(),
            slots.len(),
            "live orders of a user take different slots"
        );
        prop_assert!(slots.iter().all(|slot| i16::from(*slot) < limit));
    }
    Ok(())
}
