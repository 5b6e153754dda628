//! Orders that cannot be written, and more orders than can be written: neither stops the others.

use crate::support::{
    app::{Options, TestApp, eventually},
    load::{Winner, assert_shed, crowd},
};
use flash_sale::{
    domain::{Admission, OrderId, SaleId, UserId},
    redis::Keys,
    sale::{
        ShopError,
        log::{AcceptedBatch, AcceptedOrder},
        orders::Expect,
    },
    worker::writer,
};
use serde_json::json;
use std::time::{Duration, Instant};
use time::OffsetDateTime;

/// An order as Redis might say that it had accepted it.
#[derive(Clone, Copy)]
struct Planted {
    user: UserId,
    id: i64,
    slot: u8,
}

impl Planted {
    /// One that nothing is wrong with. The number keeps it apart from the generator's ids, which
    /// begin each day at 1.
    fn sound(number: u32) -> Self {
        let second = OffsetDateTime::now_utc().unix_timestamp()
            - time::macros::datetime!(2025-01-01 00:00 UTC).unix_timestamp();
        Self {
            user: UserId::random(),
            id: (second << 32) + 4_000_000_000 + i64::from(number),
            slot: 0,
        }
    }

    /// slot, id, no idempotency key: as in a buyer's record.
    fn record(&self) -> Vec<u8> {
        let mut bytes = vec![self.slot];
        bytes.extend(self.id.to_be_bytes());
        bytes.extend([0; 8]);
        bytes
    }

    /// user, id, no idempotency key, slot: as in a log entry.
    fn logged(&self) -> Vec<u8> {
        let mut bytes = self.user.as_bytes().to_vec();
        bytes.extend(self.id.to_be_bytes());
        bytes.extend([0; 8]);
        bytes.push(self.slot);
        bytes
    }
}

/// What the admission function does for a batch, in one step, without asking whether it may.
async fn plant(app: &TestApp, sale: &str, created_ms: i64, orders: &[Planted]) {
    let (keys, id): (_, SaleId) = (Keys::new(&app.prefix), sale.parse().expect("an id"));
    let mut redis = app.redis().await;
    let epoch: i64 = redis::cmd("HGET")
        .arg(keys.state(id))
        .arg("epoch")
        .query_async(&mut redis)
        .await
        .expect("the state");
    let count = i64::try_from(orders.len()).expect("a few");
    let mut pipeline = redis::pipe();
    pipeline.atomic();
    pipeline
        .cmd("XADD")
        .arg(keys.log(id))
        .arg("*")
        .arg("m")
        .arg(format!("{epoch} {created_ms} 0"))
        .arg("o")
        .arg(orders.iter().flat_map(Planted::logged).collect::<Vec<u8>>())
        .ignore();
    for order in orders {
        let buyers = keys.buyers(id, epoch);
        let user = &order.user.as_bytes()[..];
        let before: Option<Vec<u8>> = redis::cmd("HGET")
            .arg(&buyers)
            .arg(user)
            .query_async(&mut redis)
            .await
            .expect("the record");
        let record = [before.unwrap_or_default(), order.record()].concat();
        pipeline.hset(buyers, user, record).ignore();
    }
    for (field, add) in [
        ("pending", count),
        ("admitted", count),
        ("remaining", -count),
        ("change", 1),
    ] {
        pipeline.hincr(keys.state(id), field, add).ignore();
    }
    pipeline.exec_async(&mut redis).await.expect("planted");
}

/// Nothing that this program does leaves such an entry, and nobody acknowledges it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_of_an_epoch_that_has_ended_is_written_and_drained() {
    let app = TestApp::start().await;
    let sale = app.sale(10, json!({})).await;
    let id: SaleId = sale.parse().expect("an id");
    let (keys, order) = (Keys::new(&app.prefix), Planted::sound(1));
    redis::pipe()
        .atomic()
        .cmd("XADD")
        .arg(keys.log(id))
        .arg("*")
        .arg("m")
        .arg(format!("0 {} 0", now_ms()))
        .arg("o")
        .arg(order.logged())
        .hincr(keys.state(id), "pending", 1)
        .exec_async(&mut app.redis().await)
        .await
        .expect("planted");
    super::until_rebuilt(&app, &sale, 1).await;
    let audit = app.assert_sound(&sale).await;
    assert_eq!((audit.live, audit.redis.stream), (1, Some(0)), "{audit:#?}");
    let found = format!("SELECT count(*) FROM orders WHERE id = {}", order.id);
    assert_eq!(app.number(&found).await, 1);
    app.finish().await;
}

fn now_ms() -> i64 {
    OffsetDateTime::now_utc().unix_timestamp() * 1_000
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_kind_of_poison_is_isolated_among_its_neighbours() {
    // Nobody writes until everything is planted: one pass gets it all in one batch.
    let app = TestApp::start_with(Options::without_writer()).await;
    let sale = app.sale(100, json!({})).await;
    let before: Vec<Winner> = crowd(&app, &sale, 3).await;
    let holder = &before[0];
    let their_id: i64 = holder.1.parse().expect("an id");

    let neighbours: Vec<Planted> = (1..=8).map(Planted::sound).collect();
    let wrong = |number, spoil: fn(&mut Planted)| {
        let mut planted = Planted::sound(number);
        spoil(&mut planted);
        planted
    };
    let beyond = wrong(20, |planted| planted.slot = 100);
    let (mut again, mut stolen) = (Planted::sound(21), Planted::sound(22));
    (again.user, stolen.id) = (holder.0.user, their_id);
    let zero = wrong(23, |planted| planted.id = 0);
    let negative = wrong(24, |planted| planted.id = -7);
    let ancient = Planted::sound(25);
    for batch in [
        &[neighbours[0], beyond, neighbours[1], again, neighbours[2]][..],
        &[neighbours[3], stolen, neighbours[4]],
        &[neighbours[5], zero, negative, neighbours[6]],
    ] {
        plant(&app, &sale, now_ms(), batch).await;
    }
    // About 5950 years before Christ, and Postgres begins in 4713.
    plant(&app, &sale, -250_000_000_000_000, &[ancient]).await;
    plant(&app, &sale, now_ms(), &[neighbours[7]]).await;

    let writer = app.another(Options::default()).await;
    let status = async |id: i64, user: UserId| {
        app.number(&format!(
            "SELECT count(*) FROM orders WHERE id = {id} AND user_id = '{user}'
             AND status = 'pending_payment'"
        ))
        .await
    };
    for order in &neighbours {
        wait_for!(status(order.id, order.user).await == 1);
    }
    // `ok` once everything is settled: no unit is missing, nobody holds what nobody has.
    let audit = eventually("all poison is settled", async || {
        let audit = app.audit(&sale).await;
        (audit.ok && audit.conserved == Some(true)).then_some(audit)
    })
    .await;
    assert_eq!(audit.live, 3 + 8, "{audit:#?}");
    for poison in [beyond, again] {
        let found = format!(
            "SELECT count(*) FROM orders WHERE id = {} AND status = 'rejected'",
            poison.id
        );
        assert_eq!(app.number(&found).await, 1, "explicit and queryable");
    }
    assert_eq!(
        status(their_id, holder.0.user).await,
        1,
        "the owner keeps the order"
    );
    app.assert_kept(&sale, &before).await;
    // Every unit that nobody got can be bought.
    crowd(&writer, &sale, 100).await;
    assert_eq!(app.assert_sound(&sale).await.live, 100);
    writer.stop().await;
    app.finish().await;
}

#[tokio::test]
async fn an_entry_of_a_sale_that_does_not_exist_does_not_stop_its_batch() {
    let app = TestApp::start().await;
    let sale = app.sale(10, json!({})).await;
    let id: SaleId = sale.parse().expect("an id");
    let order = |number| {
        let planted = Planted::sound(number);
        AcceptedOrder {
            id: OrderId::from_i64(planted.id),
            user: planted.user,
            slot: 0,
            key: None,
        }
    };
    let batch = |sale, number| AcceptedBatch {
        sale,
        epoch: 1,
        entry: "1-1".to_owned(),
        created_ms: now_ms(),
        own_writer: true,
        orders: vec![order(number)],
        traced: Vec::new(),
    };
    let nowhere = SaleId::from_i64(id.get() + 1_000_000);
    let batches = [batch(nowhere, 31), batch(id, 32)];
    writer::persist(&app.shop, &batches, Expect::New)
        .await
        .expect("settled");
    let found = format!("SELECT count(*) FROM orders WHERE sale_id = {sale}");
    assert_eq!(app.number(&found).await, 1);
    app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_backlog_sheds_before_stock_is_taken_and_recovers_at_once() {
    let app = TestApp::start_with(Options {
        backlog_limit: 20,
        batch_limit: 4,
        ..Options::default()
    })
    .await;
    let sale = app.sale(1_000, json!({})).await;
    app.shopper().must_buy(&sale).await;
    app.assert_sound(&sale).await;
    app.allow_connections(false).await;

    let shoppers: Vec<_> = (0..100).map(|_| app.shopper()).collect();
    let replies = TestApp::all_buy(shoppers.clone(), &sale).await;
    let mut winners = Vec::new();
    for (shopper, reply) in shoppers.into_iter().zip(&replies) {
        if reply.status == reqwest::StatusCode::ACCEPTED {
            winners.push((shopper, reply.text("order_id").to_owned()));
        } else {
            assert_shed(reply);
        }
    }
    assert_eq!(winners.len(), 20, "as many as may wait");
    let keys = Keys::new(&app.prefix);
    let remaining: i64 = app
        .in_redis(
            redis::cmd("HGET")
                .arg(keys.state(sale.parse().expect("an id")))
                .arg("remaining"),
        )
        .await;
    assert_eq!(remaining, 1_000 - 1 - 20, "who is shed has taken nothing");

    app.allow_connections(true).await;
    let began = Instant::now();
    let newcomer = app.shopper();
    let id = eventually("purchases go on", async || {
        let reply = newcomer.buy(&sale).await;
        (reply.status == reqwest::StatusCode::ACCEPTED).then(|| reply.text("order_id").to_owned())
    })
    .await;
    println!(
        "selling again {:?} after postgres was back",
        began.elapsed()
    );
    winners.push((newcomer, id));
    app.assert_kept(&sale, &winners).await;
    assert_eq!(app.assert_sound(&sale).await.live, 22);
    app.finish().await;
}

/// More people than the queue of a sale holds (65,536).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_finds_the_queue_full_hears_so_at_once() {
    const CROWD: usize = 70_000;
    const QUEUE: usize = 65_536;
    const FIRST_BATCH: usize = 512;
    const PAUSE: Duration = Duration::from_secs(6);
    let app = TestApp::start().await;
    let sale = app.sale(100, json!({})).await;
    let id: SaleId = sale.parse().expect("an id");
    // The first batch stands still, so that everybody else has to queue.
    let armed = format!("gate.batched=pause:{}", PAUSE.as_millis());
    app.shop.fail_points.set(&armed).expect("a point");
    let began = Instant::now();
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..CROWD {
        let shop = app.shop.clone();
        asking.spawn(async move { shop.purchase(id, UserId::random(), None).await });
    }
    let (mut shed_at_once, mut sold) = (0, 0);
    while let Some(answered) = asking.join_next().await {
        match answered.expect("no panic") {
            // Before the gate moves again nobody who found a place in the queue is answered.
            Err(ShopError::Unavailable { .. }) if began.elapsed() < PAUSE => shed_at_once += 1,
            Err(ShopError::Unavailable { .. }) => {}
            Ok(Admission::Accepted { .. }) => sold += 1,
            Ok(Admission::SoldOut) => {}
            other => panic!("{other:?}"),
        }
    }
    println!("{sold} sold, {shed_at_once} shed at once");
    assert_eq!(app.shop.fail_points.fired("gate.batched"), 1);
    assert!(
        (CROWD - QUEUE - FIRST_BATCH..=CROWD - QUEUE).contains(&shed_at_once),
        "{shed_at_once}"
    );
    // It recovers when the crowd has gone, and what is left is sold.
    assert_eq!(crowd(&app, &sale, 150).await.len(), 100 - sold);
    assert_eq!(app.assert_sound(&sale).await.live, 100);
    app.finish().await;
}
