//! The admission path: crowds, double clicks, retries, and the functions of Redis against a model.

use crate::support::prelude::*;
use flash_sale::catalog::changes::NewSale;
use flash_sale::domain::{IdempotencyKey, RoomSettings};
use flash_sale::http::access_policy::AccessPolicies;
use flash_sale::redis::functions::{self, AdmitOptions, Admitted, Buyer, Fenced, Verdict};
use proptest::prelude::*;
use proptest::test_runner::{TestCaseResult, TestRunner};
use redis::RedisResult;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_buyers_on_ten_units_make_exactly_ten_orders() {
    let (app, sale) = TestApp::selling(10, json!({})).await;
    let told = all_told(app.shoppers(2_000), &sale).await;
    let (winners, losers): (Vec<_>, Vec<_>) =
        told.iter().partition(|(_, reply)| reply.order().is_some());
    assert_eq!(winners.len(), 10);
    for (_, reply) in losers {
        reply.assert_problem(409, "sold_out");
    }
    let ids: HashSet<&str> = winners.iter().map(|(_, reply)| reply.text("order_id")).collect();
    assert_eq!(ids.len(), 10, "order ids are unique");
    let audit = app.assert_sound(&sale).await;
    assert_eq!((audit.live, audit.remaining, audit.postgres.taken), (10, 0, 10));
    for (shopper, reply) in winners {
        let id = reply.text("order_id");
        shopper.until(id, "pending_payment").await;
        assert_eq!(shopper.refused(&sale, "already_ordered").await.text("order_id"), id);
    }
}

/// A function of Redis passes on 8,000 values at most: what a large batch writes is cut.
#[tokio::test]
async fn the_largest_batch_is_admitted_at_once_and_first_come_first_served() {
    const CROWD: u16 = 4_096;
    const STOCK: usize = 4_050;
    let app = TestApp::start_with(Options { batch_limit: Some(CROWD), ..Options::default() }).await;
    let sale = app.sale(STOCK as i64, json!({})).await;
    let id: SaleId = sale.parse().expect("an id");
    let users = (0..CROWD).map(|_| UserId::random());
    let purchases = users.map(|user| app.services.admission.purchase(id, user, None));
    let answers = tokio::task::unconstrained(join_all(purchases)).await;
    let mut winners = Vec::new();
    for (place, answer) in answers.into_iter().enumerate() {
        match answer.expect("an answer") {
            PurchaseResult::Accepted { order_id, .. } if place < STOCK => winners.push(order_id),
            PurchaseResult::SoldOut if place >= STOCK => {}
            other => panic!("number {place}: {other:?}"),
        }
    }
    assert!(winners.is_sorted(), "ids in the order of arrival");
    assert_eq!((winners.len(), app.assert_sound(&sale).await.live), (STOCK, STOCK as i64));
    app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_is_one_order_and_three_orders_are_a_limit_of_three() {
    let (app, second) = TestApp::pair().await;
    let sale = app.sale(50, json!({"per_user_limit": 3})).await;
    let shopper = app.shopper();
    let both = [&shopper, &shopper.at(&second)];
    let buy = |number: usize| both[number % 2].buy_with_key(&sale, "the one key");
    let replies = join_all((0..200).map(buy)).await;
    let mut ids: HashSet<String> = replies.iter().map(|one| one.text("order_id").into()).collect();
    assert_eq!(ids.len(), 1);
    let is_first = |reply: &&Reply| reply.header("idempotent-replayed").is_empty();
    assert_eq!(replies.iter().filter(is_first).count(), 1, "all but one are replays");
    let more = join_all((0..30).map(async |number| match number % 2 {
        0 => shopper.buy(&sale).await,
        _ => shopper.buy_with_key(&sale, &format!("key {number}")).await,
    }));
    let (accepted, refused): (Vec<_>, Vec<_>) =
        more.await.into_iter().partition(Reply::is_accepted);
    ids.extend(accepted.iter().map(|reply| reply.text("order_id").to_owned()));
    assert_eq!((accepted.len(), refused.len(), ids.len()), (2, 28, 3));
    for reply in refused {
        reply.assert_problem(409, "already_ordered");
        assert!(ids.contains(reply.text("order_id")));
    }
    let replay = shopper.buy_with_key(&sale, "the one key").await;
    assert_eq!(replay.text("order_id"), replies[0].text("order_id"));
    let mut own = Vec::from_iter(ids);
    for id in &mut own {
        shopper.until(id, "pending_payment").await;
        shopper.cancel(id).await.assert(200);
        wait_for!(app.number("SELECT count(*) FROM releases").await == 0);
        *id = shopper.order_to_pay(&sale).await;
        shopper.refused(&sale, "already_ordered").await;
    }
    for id in &own {
        shopper.pay(id).await.assert(200);
    }
    let members = json!({"paid": 3, "cancelled": 3, "remaining": 47, "duplicate_users": 0});
    app.assert_sound_with(&sale, members).await;
    assert_eq!(app.audit(&sale).await.redis.buyers, Some(1));
}

/// A unit came back and was sold elsewhere, to one of a crowd that is taken to be too late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_buyer_is_not_taken_for_one_of_the_crowd_that_came_too_late() {
    let (app, other) = TestApp::pair().await;
    let points = &app.services.fail_points;
    for _ in 0..3 {
        let sale = app.sale(1, json!({})).await;
        let (holder, held) = app.buyer(&sale).await;
        app.shopper().refused(&sale, "sold_out").await;
        // A batch of one is held up after its answer, so that the crowd becomes the next batch.
        let (buyer, mut crowd) = (app.shopper(), app.shoppers(60));
        let fired = points.fired("admission.admitted");
        // Much less than the two seconds that a purchase may wait.
        points.set("admission.admitted=pause:800").expect("a point");
        let (early, its_sale) = (app.shopper(), sale.clone());
        let early = tokio::spawn(async move { early.buy_with_key(&its_sale, "early").await });
        wait_for!(points.fired("admission.admitted") > fired);
        holder.at(&other).cancel(&held).await.assert(200);
        let bought = wait_for!("the unit has come back", {
            let reply = buyer.at(&other).buy_with_key(&sale, "mine").await;
            reply.is_accepted().then(|| reply.text("order_id").to_owned())
        });
        crowd[30] = buyer;
        let buying = async |one: &Shopper| one.buy_with_key(&sale, "mine").await;
        let told = crowd.iter().map(|one| until_told(async || buying(one).await));
        let replies = join_all(told).await;
        early.await.expect("no panic").assert_problem(409, "sold_out");
        for (number, reply) in replies.iter().enumerate() {
            match number {
                30 => assert_eq!((reply.is_accepted(), reply.text("order_id")), (true, &*bought)),
                _ => reply.assert_problem(409, "sold_out"),
            }
        }
        app.assert_sound(&sale).await;
    }
}

fn buyer(user: UserId, order: i64, key: Option<IdempotencyKey>) -> Buyer {
    Buyer { user, order_id: OrderId::from_i64(order), key }
}

#[tokio::test]
async fn an_attempt_is_accepted_once_and_never_where_a_key_is_of_another_type() {
    let mut bench = ScriptBench::new(&services("once:").await, 10, 1).await;
    let (shard, log) = (bench.keys.buyers(bench.sale, 1), bench.keys.log(bench.sale));
    let before = bench.state().await;
    let buyers = [buyer(UserId::random(), 7, None)];
    let () = bench.connection.set(&shard, "not a hash").await.expect("SET");
    bench.try_admit(&buyers).await.expect_err("WRONGTYPE");
    assert_eq!(bench.state().await, before, "no unit was taken");
    let _: () = bench.connection.del(&shard).await.expect("DEL");
    let () = bench.connection.set(&log, "not a stream").await.expect("SET");
    let outcome = bench.try_admit(&buyers).await.expect("an answer");
    assert_eq!(outcome.expect_err("refused"), Fenced::Corrupt);
    assert_eq!(bench.state().await, before, "no unit was taken");
    let _: () = bench.connection.del(&log).await.expect("DEL");
    for verdict in [Verdict::Accepted { slot: 0 }, Verdict::AcceptedBefore { slot: Some(0) }] {
        assert_eq!(bench.admit(&buyers).await, vec![verdict]);
    }
    let state = bench.state().await;
    assert_eq!((state["remaining"], state["pending"]), (9, 1));
}

#[tokio::test]
async fn a_waiting_room_that_fails_does_not_hold_up_another() {
    let services = services("rooms:").await;
    for _ in 0..2 {
        let (title, waiting_room) = ("a thing".to_owned(), Some(RoomSettings::default()));
        let sale = NewSale { title, stock: 1, waiting_room, ..NewSale::default() };
        services.catalog.create_sale(sale).await.expect("a sale");
    }
    let tokens = TokenSigner::new(SECRET.as_bytes()).expect("long enough");
    let rooms = AccessPolicies::new(&services, &tokens, None).rooms;
    services.fail_points.set("room.advanced=error*always").expect("a point");
    rooms.step().await.expect_err("injected at both");
    assert_eq!(services.fail_points.fired("room.advanced"), 2);
}

struct ScriptBench {
    keys: Keys,
    sale: SaleId,
    connection: MultiplexedConnection,
}

async fn services(prefix: &str) -> Services {
    let servers = Servers::shared().await;
    let database = servers.database().await;
    let (services, _) = services_without_tasks(&database, &servers.redis.url(), prefix);
    services.rebuild.step(&mut HashSet::new()).await.expect("approved");
    services
}

impl ScriptBench {
    async fn new(services: &Services, stock: i64, limit: i64) -> Self {
        let sale = new_sale(services, stock, Some(limit)).await;
        let connection = redis_connection(&Servers::shared().await.redis.url()).await;
        Self { keys: services.databases.redis.keys.clone(), sale, connection }
    }

    async fn try_admit(&self, buyers: &[Buyer]) -> RedisResult<Result<Admitted, Fenced>> {
        let options = AdmitOptions { high_water: 1_000_000, own_writer: true, readmitted: None };
        let redis = &mut self.connection.clone();
        functions::admit(redis, &self.keys, self.sale, 1, options, buyers).await
    }

    async fn admit(&self, buyers: &[Buyer]) -> Vec<Verdict> {
        self.try_admit(buyers).await.expect("an answer").expect("decided").verdicts
    }

    async fn release(&self, orders: &[(UserId, OrderId)]) -> i64 {
        let redis = &mut self.connection.clone();
        let released = functions::release(redis, &self.keys, self.sale, 1, orders).await;
        released.expect("an answer").expect("released").returned
    }

    async fn state(&self) -> HashMap<String, i64> {
        let key = self.keys.state(self.sale);
        let state: Result<HashMap<String, String>, _> = self.connection.clone().hgetall(key).await;
        let number = |(field, value): (String, String)| Some((field, value.parse().ok()?));
        state.expect("HGETALL").into_iter().filter_map(number).collect()
    }
}

struct Model {
    remaining: i64,
    limit: usize,
    /// user → (order, key, live)
    held: HashMap<u8, Vec<(i64, u64, bool)>>,
}

impl Model {
    fn admit(&mut self, user: u8, order: i64, key: u64) -> Verdict {
        let held = self.held.entry(user).or_default();
        let is_replay = |(_, stored, _): &&(i64, u64, bool)| key != 0 && *stored == key;
        if let Some(replayed) = held.iter().find(is_replay) {
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
        // Spent orders are kept for their key's sake, the newest eight; one is new at most.
        held.retain(|(_, key, live)| *live || *key != 0);
        let spent: Vec<usize> = (0..held.len()).filter(|place| !held[*place].2).collect();
        if spent.len() > 8 {
            held.remove(spent[0]);
        }
        1
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// (user, key; 0 is none)
    Batch(Vec<(u8, u8)>),
    Release(prop::sample::Index),
}

#[test]
fn the_scripts_agree_with_a_model_on_any_sequence() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let services = runtime.block_on(services("model:"));
    let batch = prop::collection::vec((0u8..4, 0u8..4), 1..12).prop_map(Step::Batch);
    let step = prop_oneof![3 => batch, 2 => any::<prop::sample::Index>().prop_map(Step::Release)];
    let strategy = (1i64..8, 1i64..4, prop::collection::vec(step, 1..40));
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) };
    let agree = |(stock, limit, steps)| runtime.block_on(agree(&services, stock, limit, steps));
    TestRunner::new(config).run(&strategy, agree).unwrap_or_else(|failure| panic!("{failure}"));
}

async fn agree(services: &Services, stock: i64, limit: i64, steps: Vec<Step>) -> TestCaseResult {
    let bench = ScriptBench::new(services, stock, limit).await;
    let users: Vec<UserId> = (0..4).map(|_| UserId::random()).collect();
    let mut model = Model { remaining: stock, limit: limit as usize, held: HashMap::new() };
    let mut accepted: Vec<(u8, i64)> = Vec::new();
    let mut next_order = 1;
    for step in steps {
        match step {
            Step::Batch(clicks) => {
                let clicked = |((user, key), order): (&(u8, u8), i64)| {
                    let key = (*key != 0).then(|| IdempotencyKey::from_i64(i64::from(*key)));
                    buyer(users[usize::from(*user)], order, key)
                };
                let buyers: Vec<Buyer> = clicks.iter().zip(next_order..).map(clicked).collect();
                next_order += clicks.len() as i64;
                let verdicts = bench.admit(&buyers).await;
                for ((verdict, buyer), (user, key)) in verdicts.iter().zip(&buyers).zip(&clicks) {
                    let expected = model.admit(*user, buyer.order_id.get(), u64::from(*key));
                    if let Verdict::Accepted { .. } = verdict {
                        prop_assert_eq!(Verdict::Accepted { slot: 0 }, expected);
                        accepted.push((*user, buyer.order_id.get()));
                    } else {
                        prop_assert_eq!(*verdict, expected);
                    }
                }
            }
            Step::Release(which) if !accepted.is_empty() => {
                let (user, order) = accepted[which.index(accepted.len())];
                let orders = [(users[usize::from(user)], OrderId::from_i64(order))];
                prop_assert_eq!(bench.release(&orders).await, model.release(user, order));
            }
            Step::Release(_) => {}
        }
        let state = bench.state().await;
        prop_assert_eq!(state["remaining"], model.remaining);
        let live = model.held.values().flatten().filter(|(_, _, live)| *live).count() as i64;
        prop_assert_eq!(state["remaining"] + live, stock, "conservation");
    }
    let shard = bench.keys.buyers(bench.sale, 1);
    let records: Vec<Vec<u8>> = bench.connection.clone().hvals(shard).await.expect("HVALS");
    for record in &records {
        let live = functions::record::decode(record).filter(|held| !held.returned);
        let slots: Vec<u8> = live.map(|held| held.slot).collect();
        let distinct = slots.iter().collect::<HashSet<_>>().len();
        prop_assert_eq!(distinct, slots.len(), "two live orders take one slot");
        prop_assert!(slots.iter().all(|slot| i64::from(*slot) < limit));
    }
    Ok(())
}
