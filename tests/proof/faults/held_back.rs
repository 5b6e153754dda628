//! Orders of an ended epoch that only one living process has: Redis lost them, no row has them.

use super::*;

/// Its writer holds them back, and Redis has lost everything and was rebuilt without them.
async fn six_held_back(holder: &TestApp) -> (String, Vec<Winner>) {
    arm(holder, "writer.received=error*always");
    let (sale, late) = sold(holder, 10, 6).await;
    rebuilt_by(holder, &sale, flush(holder)).await;
    assert_eq!(rows(holder).await, 0, "nobody wrote them");
    (sale, late)
}

async fn rows(app: &TestApp) -> i64 {
    app.number("SELECT count(*) FROM orders").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_that_falls_silent_when_late_orders_are_looked_up() {
    let (servers, app) = TestApp::on_own_servers().await;
    let proxy = Proxy::start(Address::of_postgres(servers.postgres.address())).await;
    let database = app.database.clone().through(proxy.address);
    let (url, prefix) = (app.redis_url.clone(), app.prefix.clone());
    let holder = TestApp::launch(database, url, prefix, Options::default()).await;
    let (sale, late) = six_held_back(&holder).await;
    proxy.set(Fault::SilentTo("SELECT id FROM orders WHERE id = ANY")).await;
    holder.services.fail_points.clear();
    wait_for!(proxy.counts().swallowed_bytes > 0);
    proxy.set(Fault::None).await;
    assert_all_pending(&app, &sale, &late).await;
    assert_eq!(app.assert_sound(&sale).await.live, 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_orders_survive_that_redis_is_lost_again_after_it_took_them_back() {
    let (_servers, [app, holder]) = own_pair().await;
    let (sale, late) = six_held_back(&holder).await;
    // They are in the log again, from where only the writer that has them may take them.
    [&app, &holder].iter().for_each(|instance| arm(instance, "recovery.read=error*always"));
    arm(&holder, "writer.readmitted=error*always;writer.received=error*0");
    wait_for!(fired(&holder, "writer.readmitted") > 0);
    // Those that the writer took in hand; the others are in its channel.
    let again = app.audit(&sale).await.backlog;
    assert!((1..=6).contains(&again), "{again} are in the log");
    assert_eq!(rows(&app).await, 0);
    rebuilt_by(&app, &sale, flush(&app)).await;
    assert_eq!(rows(&app).await, 0, "the rebuild had nothing to write");
    [&app, &holder].iter().for_each(|instance| instance.services.fail_points.clear());
    assert_all_pending(&app, &sale, &late).await;
    assert_eq!(app.assert_sound(&sale).await.live, 6);
}

/// After a loss the log begins anew, by the clock of the new Redis: an id may come twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_order_does_not_acknowledge_a_new_one_whose_entry_has_the_same_id() {
    let servers = Servers::own().await;
    let app = TestApp::start_on(&servers, Options::without_writer()).await;
    let sale = app.sale(10, json!({})).await;
    let id = sale.parse().expect("an id");
    let (services, mut accepted) = app.approved_services().await;
    let mut buy = async || {
        services.admission.purchase(id, UserId::random(), None).await.expect("an answer");
        accepted.recv().await.expect("accepted")
    };
    let old = buy().await;
    rebuilt_by(&app, &sale, flush(&app)).await;
    let new = buy().await;
    assert!(new.epoch > old.epoch);
    let old = [AcceptedBatch { entry: new.entry.clone(), ..old }];
    services.orders.persist(&old, Expect::PerhapsWritten).await.expect("a place in the new epoch");
    let audit = app.audit(&sale).await;
    assert_eq!((audit.live, audit.backlog), (1, 1), "{audit:#?}");
    assert_eq!(audit.redis.stream, Some(1), "the new order is in the log");
    services.orders.persist(&[new], Expect::New).await.expect("written");
    let audit = app.assert_sound(&sale).await;
    assert_eq!((audit.live, audit.redis.stream), (2, Some(0)));
}

/// What a paused process still holds when it wakes up in a world that was rebuilt without it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_that_a_paused_writer_held_through_a_rebuild_find_their_units_sold() {
    let (_servers, [first, second]) = own_pair().await;
    arm(&second, "writer.received=pause:600000");
    let (sale, late) = sold(&second, 10, 10).await;
    rebuilt_by(&first, &sale, flush(&first)).await;
    // Neither the log nor Postgres knew of them: the units are sold again, to others.
    let others = crowd(&first, &sale, 30).await;
    assert_eq!(others.len(), 10, "no unit is lost, and none sold thrice");
    assert!(fired(&second, "writer.received") > 0);
    second.services.fail_points.resume();
    let rejected = first.database.assert_kept(&sale, &late).await;
    assert_eq!(rejected["rejected"], 10, "{rejected:?}");
    for (shopper, id) in &late {
        let order = shopper.order(id).await.must_be(200);
        assert_eq!(order.text("status"), "rejected", "explicit, and queryable");
    }
    assert_all_pending(&first, &sale, &others).await;
    let audit = first.assert_sound(&sale).await;
    assert_eq!((audit.live, audit.rejected, audit.oversold), (10, 10, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_was_paused_through_a_rebuild_is_judged_in_the_new_epoch() {
    let (_servers, [first, second]) = own_pair().await;
    let (sale, _) = sold(&second, 10, 4).await;
    first.assert_sound(&sale).await;
    // These have their ids, and the epoch that they believe in, and have not asked yet.
    arm(&second, "admission.asking=pause:600000");
    let people = second.shoppers(10);
    let paused = TestApp::all_buy(people.clone(), &sale);
    let rebuilt = async {
        wait_for!(fired(&second, "admission.asking") > 0);
        rebuilt_by(&first, &sale, flush(&first)).await;
        let others = crowd(&first, &sale, 3).await;
        second.services.fail_points.resume();
        others
    };
    let (told, others) = tokio::join!(paused, rebuilt);
    assert_eq!(others.len(), 3);
    let order = |(person, reply): (Shopper, Reply)| Some((person, reply.order()?));
    let mut winners: Vec<Winner> = people.into_iter().zip(told).filter_map(order).collect();
    winners.extend(others);
    first.database.assert_kept(&sale, &winners).await;
    let live = first.assert_sound(&sale).await.live;
    assert!((4 + winners.len() as i64..=10).contains(&live), "{live}");
    crowd(&second, &sale, 20).await;
    assert_eq!(first.assert_sound(&sale).await.live, 10);
}
