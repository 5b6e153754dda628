//! Log entries of dead writers, and unknown orders.

use crate::{audit::state_of, support::prelude::*};
use flash_sale::{admission::ids, orders::log_recovery};

async fn without_their_writer(app: &TestApp, sales: &[String], at_once: usize) -> Services {
    let (services, _) = app.approved_services().await;
    for some in sales.chunks(at_once) {
        let buying = |sale: &String| must_accept(&services, sale.parse().expect("an id"));
        join_all(some.iter().map(buying)).await;
    }
    services
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_of_a_dead_writer_are_left_alone_for_the_grace_period_and_then_written() {
    let (app, sale) = TestApp::selling_with(Options::without_writer(), 10, json!({})).await;
    let id = sale.parse().expect("an id");
    let accepted = Instant::now();
    let services = without_their_writer(&app, &vec![sale.clone(); 5], 1).await;
    let mut settled = 0;
    wait_for!("all orders are left behind", {
        // On a busy machine the first ones are old enough a pass before the last.
        services.catalog.refresh(id).await.expect("the sale");
        settled += services.orders.recover_step().await.expect("a pass");
        assert!(settled == 0 || accepted.elapsed() >= log_recovery::GRACE, "written too early");
        (settled >= 5).then_some(())
    });
    assert_eq!(settled, 5, "each once");
    assert_eq!(app.assert_sound(&sale).await.live, 5);
}

/// While this process' own writer is behind, its older orders are not left behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_of_many_sales_are_recovered_in_one_transaction_once_nobody_writes_them() {
    const SALES: usize = 40;
    let app = TestApp::start_with(Options::without_writer()).await;
    let sales = join_all((0..SALES).map(|_| app.sale(10, json!({})))).await;
    let services = without_their_writer(&app, &sales, SALES).await;
    let read = services.catalog.read_snapshots(&services.catalog.cache.cached_sales()).await;
    read.expect("snapshots");
    let last = Instant::now();
    services.orders.set_oldest_in_hand(1); // since 1970
    wait_for!("all are older than the grace", {
        assert_eq!(services.orders.recover_step().await.expect("a pass"), 0);
        (last.elapsed() > log_recovery::GRACE + Duration::from_millis(200)).then_some(())
    });
    services.orders.set_oldest_in_hand(0);
    let asked = || services.metrics.round_trips.postgres.load(Relaxed);
    let before = asked();
    assert_eq!(services.orders.recover_step().await.expect("a pass"), SALES);
    let round_trips = asked() - before;
    assert!(round_trips < 10, "{round_trips} questions to Postgres");
    for sale in &sales {
        assert_eq!(app.assert_sound(sale).await.live, 1);
    }
}

/// An id says when it was made: a sale that was not open by then cannot have that order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_order_is_only_in_doubt_if_a_sale_of_its_time_is() {
    let (app, open) = TestApp::selling(10, json!({})).await;
    let next = app.sale(10, json!({"opens_at": in_secs(3_600)})).await;
    // No rebuild repairs what the test breaks.
    app.services.fail_points.set("rebuild.elected=error*always").expect("a point");
    let shopper = app.shopper();
    let unknown = |hours: i64| {
        let time = OffsetDateTime::now_utc() + time::Duration::hours(hours);
        ids::encode(time.unix_timestamp(), 4_000_000_001).expect("an id")
    };
    let break_sale = async |sale: &str| {
        let () = app.redis().await.hset(state_of(&app, sale), "epoch", 7).await.expect("HSET");
    };
    let ask = async |hours| shopper.order(&unknown(hours).to_string()).await;
    ask(0).await.assert(404);
    break_sale(&next).await;
    ask(0).await.assert(404);
    ask(2).await.assert(503);
    break_sale(&open).await;
    ask(0).await.assert(503);
}
