//! Orders that cannot be written, and more orders than can be written: neither stops the others.

use super::*;
use flash_sale::redis::functions::record::Held;

fn logged(order: &AcceptedOrder) -> Vec<u8> {
    let mut bytes = order.user.as_bytes().to_vec();
    bytes.extend(order.id.get().to_be_bytes());
    bytes.extend([0; 8]);
    bytes.push(order.slot);
    bytes
}

/// What the admission function does for a batch, in one step, without asking whether it may.
async fn plant(app: &TestApp, sale: &str, created_ms: i64, orders: &[AcceptedOrder]) {
    let (keys, id) = keys_of(app, sale);
    let mut redis = app.redis().await;
    let epoch = state(app, sale, "epoch").await;
    let header = format!("{epoch} {created_ms} 0").into_bytes();
    let body: Vec<u8> = orders.iter().flat_map(logged).collect();
    let mut pipeline = redis::pipe();
    pipeline.atomic();
    pipeline.xadd(keys.log(id), "*", &[("m", header), ("o", body)]).ignore();
    for order in orders {
        let (buyers, user) = (keys.buyers(id, epoch), &order.user.as_bytes()[..]);
        let before: Option<Vec<u8>> = app.in_redis(redis::cmd("HGET").arg(&buyers).arg(user)).await;
        let AcceptedOrder { id: order_id, slot, key, .. } = *order;
        let held = Held { slot, returned: false, order_id, key }.encode();
        pipeline.hset(buyers, user, [&before.unwrap_or_default(), &held[..]].concat()).ignore();
    }
    let count = i64::try_from(orders.len()).expect("a few");
    let counts = [("pending", count), ("admitted", count), ("remaining", -count), ("change", 1)];
    for (field, add) in counts {
        pipeline.hincr(keys.state(id), field, add).ignore();
    }
    pipeline.exec_async(&mut redis).await.expect("planted");
}

/// Nothing that this program does leaves such an entry, and nobody acknowledges it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_of_an_epoch_that_has_ended_is_written_and_drained() {
    let (app, sale) = TestApp::selling(10, json!({})).await;
    let (keys, id) = keys_of(&app, &sale);
    let order = new_order(1);
    let header = format!("0 {} 0", now_ms()).into_bytes();
    let mut entry = redis::pipe();
    entry.atomic().xadd(keys.log(id), "*", &[("m", header), ("o", logged(&order))]);
    entry.hincr(keys.state(id), "pending", 1);
    entry.exec_async(&mut app.redis().await).await.expect("planted");
    until_rebuilt(&app, &sale, 1).await;
    let audit = app.assert_sound(&sale).await;
    assert_eq!((audit.live, audit.redis.stream), (1, Some(0)), "{audit:#?}");
    assert_eq!(count(&app, &order, "pending_payment").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_kind_of_poison_is_isolated_among_its_neighbours() {
    // Nobody writes until everything is planted: one pass gets it all in one batch.
    let app = TestApp::start_with(Options::without_writer()).await;
    let (sale, before) = sold(&app, 100, 3).await;
    let (holder, their_order) = &before[0];
    let neighbours: Vec<AcceptedOrder> = (1..=8).map(new_order).collect();
    let [mut beyond, mut again, mut stolen, mut zero, mut negative] =
        [20, 21, 22, 23, 24].map(new_order);
    beyond.slot = 100;
    again.user = holder.user;
    stolen.id = their_order.parse().expect("an id");
    zero.id = OrderId::from_i64(0);
    negative.id = OrderId::from_i64(-7);
    let near = |number: usize| neighbours[number];
    for batch in [
        &[near(0), beyond, near(1), again, near(2)][..],
        &[near(3), stolen, near(4)],
        &[near(5), zero, negative, near(6)],
    ] {
        plant(&app, &sale, now_ms(), batch).await;
    }
    // About 5950 years before Christ, and Postgres begins in 4713.
    plant(&app, &sale, -250_000_000_000_000, &[new_order(25)]).await;
    plant(&app, &sale, now_ms(), &[near(7)]).await;
    let writer = app.another(Options::default()).await;
    for order in &neighbours {
        wait_for!(count(&app, order, "pending_payment").await == 1);
    }
    let audit = app.until_sound(&sale).await;
    assert_eq!(audit.live, 3 + 8, "{audit:#?}");
    for poison in [&beyond, &again] {
        assert_eq!(count(&app, poison, "rejected").await, 1, "explicit and queryable");
    }
    assert_all_pending(&app, &sale, &before).await;
    // Every unit that nobody got can be bought.
    crowd(&writer, &sale, 100).await;
    assert_eq!(app.assert_sound(&sale).await.live, 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_of_a_sale_that_does_not_exist_does_not_stop_its_batch() {
    let (app, sale) = TestApp::selling(10, json!({})).await;
    let id: SaleId = sale.parse().expect("an id");
    let nowhere = SaleId::from_i64(id.get() + 1_000_000);
    let batches = [batch_of(nowhere, 1, new_order(31)), batch_of(id, 1, new_order(32))];
    app.services.orders.persist(&batches, Expect::New).await.expect("settled");
    assert_eq!(app.number(&format!("SELECT count(*) FROM orders WHERE sale_id = {sale}")).await, 1);
}

/// As many as may wait, and batches beside each other do not let one more in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_backlog_sheds_before_stock_is_taken_and_recovers_at_once() {
    let limits = Options { backlog_limit: Some(20), batch_limit: Some(4), ..Options::default() };
    let (app, sale) = TestApp::selling_with(limits, 1_000, json!({})).await;
    app.shopper().must_buy(&sale).await;
    app.assert_sound(&sale).await;
    app.allow_connections(false).await;
    let shoppers = app.shoppers(100);
    let replies = TestApp::all_buy(shoppers.clone(), &sale).await;
    replies.iter().filter(|reply| !reply.is_accepted()).for_each(assert_shed);
    let order = |(shopper, reply): (Shopper, Reply)| Some((shopper, reply.order()?));
    let mut winners: Vec<Winner> = shoppers.into_iter().zip(replies).filter_map(order).collect();
    assert_eq!((winners.len(), state(&app, &sale, "remaining").await), (20, 1_000 - 1 - 20));
    app.allow_connections(true).await;
    winners.extend(all_order([app.shopper()], &sale).await);
    app.database.assert_kept(&sale, &winners).await;
    assert_eq!(app.assert_sound(&sale).await.live, 22);
}

/// More people than the queue of a sale holds (65,536).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_buyer_who_finds_the_queue_full_hears_so_at_once() {
    const CROWD: usize = 70_000;
    const QUEUE: usize = 65_536;
    /// Who has a place is refused no sooner: a batch's limit, less the pause of its last retry.
    const NO_SOONER: Duration = Duration::from_millis(2_000 - 20);
    let (app, sale) = TestApp::selling(100, json!({})).await;
    let id: SaleId = sale.parse().expect("an id");
    let buy = || {
        let admission = app.services.admission.clone();
        async move {
            let since = Instant::now();
            (admission.purchase(id, UserId::random(), None).await, since.elapsed())
        }
    };
    arm(&app, "admission.batched=pause:600000");
    let mut asking = tokio::task::JoinSet::new();
    // A batch of their own: the queue is empty when the crowd comes.
    asking.spawn(buy());
    wait_for!(fired(&app, "admission.batched") == 1);
    (1..CROWD).for_each(|_| drop(asking.spawn(buy())));
    // Before the queue moves again, those are answered who found no place in it.
    for _ in 1..CROWD - QUEUE {
        let answered = tokio::time::timeout(2 * TEST_TIMEOUT, asking.join_next()).await;
        let (answered, _) =
            answered.expect("answered at once").expect("somebody").expect("no panic");
        assert!(matches!(answered, Err(ServiceError::Unavailable { .. })), "{answered:?}");
    }
    app.services.fail_points.resume();
    let (mut sold, mut refused) = (0, 0);
    while let Some(answered) = asking.join_next().await {
        match answered.expect("no panic") {
            (Err(ServiceError::Unavailable { .. }), waited) if waited >= NO_SOONER => refused += 1,
            (Ok(PurchaseResult::SoldOut), _) => {}
            (Ok(PurchaseResult::Accepted { .. }), _) => sold += 1,
            other => panic!("{other:?}"),
        }
    }
    // Of the batch that was in flight, who is refused may have an order all the same.
    let told = sold + crowd(&app, &sale, 150).await.len();
    assert!(told <= 100 && told + refused >= 100, "{told} told, {refused} refused");
    assert_eq!(app.assert_sound(&sale).await.live, 100);
}
