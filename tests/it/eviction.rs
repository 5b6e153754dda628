//! Sales that are long over leave Redis, and come back if an operator extends them.

use crate::support::prelude::*;
use flash_sale::catalog::eviction;

const HOUR: i64 = 3_600;

async fn old_sale() -> (TestApp, String, Shopper, String) {
    let (app, sale) = TestApp::selling(5, json!({"opens_at": in_secs(-48 * HOUR)})).await;
    let (buyer, order) = app.buyer(&sale).await;
    app.assert_sound(&sale).await;
    (app, sale, buyer, order)
}

async fn close_at(app: &TestApp, sale: &str, hours: i64) -> Reply {
    app.change(sale, json!({"closes_at": in_secs(hours * HOUR)})).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_that_is_long_over_leaves_redis_and_comes_back_if_it_is_extended() {
    let (app, sale, buyer, order) = old_sale().await;
    let evicted = async || eviction::step(&app.services.catalog).await.expect("a pass");
    let keys = async || -> Vec<String> {
        app.redis().await.keys(format!("{}{{sale:{sale}}}*", app.prefix)).await.expect("KEYS")
    };
    // Over, but not for long enough: a retry must still get its first answer.
    close_at(&app, &sale, -23).await.assert(200);
    assert_eq!(evicted().await, 0);
    assert!(!keys().await.is_empty());
    let cached = app.services.catalog.cache.get(sale.parse().expect("an id")).expect("cached");
    assert_eq!(cached.buyers.len(), 1);
    close_at(&app, &sale, -25).await.assert(200);
    wait_for!(cached.buyers.is_empty());
    let times = json!({"opens_at": in_secs(-48 * HOUR), "closes_at": in_secs(-25 * HOUR)});
    app.sale(1, times).await;
    app.services.fail_points.set("eviction.deciding=error").expect("a point");
    eviction::step(&app.services.catalog).await.expect_err("injected at one of the two");
    assert_eq!(evicted().await, 1, "the other one was evicted by then");
    assert_eq!(keys().await, Vec::<String>::new());
    app.shopper().refused(&sale, "ended").await;
    assert_eq!(app.audit(&sale).await.problems, [""; 0]);
    close_at(&app, &sale, 1).await;
    let late = app.shopper();
    wait_for!(late.told(&sale).await.order().is_some());
    assert_eq!(buyer.buy(&sale).await.text("order_id"), order);
    app.assert_sound(&sale).await;
}

/// Between being found over and leaving Redis; without `reaches_redis` only Postgres has it.
async fn extended_while_it_is_retired(reaches_redis: bool) {
    let (app, sale, buyer, order) = old_sale().await;
    close_at(&app, &sale, -25).await.assert(200);
    let points = &app.services.fail_points;
    points.set("eviction.deciding=pause:600000").expect("a point");
    let extending = async {
        wait_for!(points.fired("eviction.deciding") > 0);
        if !reaches_redis {
            points.set("sale.changed=error*always").expect("a point");
        }
        let reply = close_at(&app, &sale, 1).await;
        assert_eq!(reply.status.is_server_error(), !reaches_redis, "{:#}", reply.body);
        points.resume();
    };
    let (removed, ()) = tokio::join!(eviction::step(&app.services.catalog), extending);
    assert_eq!(removed.expect("a pass"), usize::from(!reaches_redis));
    points.clear();
    let late = app.shopper();
    wait_for!(late.told(&sale).await.order().is_some());
    assert_eq!(buyer.refused(&sale, "already_ordered").await.text("order_id"), order);
    assert_eq!(app.assert_sound(&sale).await.live, 2);
    let was_rebuilt = app.number(&format!("SELECT epoch FROM sales WHERE id = {sale}")).await > 1;
    assert_eq!(was_rebuilt, !reaches_redis, "only if it was taken out");
}

cases! { extended_while_it_is_retired:
    a_sale_that_is_extended_while_it_is_retired_stays => true,
    or_is_rebuilt_with_its_buyers => false,
}
