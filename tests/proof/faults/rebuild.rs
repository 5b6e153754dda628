//! A rebuild may die anywhere, and the next one finishes its work; and how long one takes.

use super::*;
use flash_sale::{fail_point::POINTS, redis::functions::record};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_die_in_a_rebuild_one_after_the_other_leave_nothing_behind() {
    let servers = Servers::own().await;
    let app = TestApp::start_on(&servers, Options::without_writer()).await;
    let (sale, winners) = sold(&app, 40, 20).await;
    let prefix = app.prefix.clone();
    // Only then: while it is stopping it would still rebuild, and leave nothing to do.
    let database = app.stop().await;
    database.connect().await.execute(DISOWN).await.expect("postgres");
    let home = Home::on(&servers, &database, &prefix);
    for point in POINTS.iter().filter(|point| point.starts_with("rebuild.")) {
        let armed = format!("{point}=exit");
        let serve = home.command(&format!("serve FAIL_POINTS={armed}"));
        let mut program = Program::spawn(&home, serve);
        assert_eq!(program.end().await, None, "{armed}: {}", program.stderr());
        assert!(program.stderr().contains(point), "{armed}: {}", program.stderr());
        if *point == "rebuild.approved" {
            break; // it is approved: the next one has nothing to do
        }
    }
    let app = TestApp::launch(database, servers.redis.url(), prefix, Options::default()).await;
    assert_all_pending(&app, &sale, &winners).await;
    assert_eq!(crowd(&app, &sale, 30).await.len(), 20);
    assert_eq!(app.assert_sound(&sale).await.live, 40);
}

async fn keys_of_buyers(app: &TestApp, sale: &str) -> Vec<String> {
    let (keys, id) = keys_of(app, sale);
    app.in_redis(redis::cmd("KEYS").arg(format!("{}:*:buyers", keys.state(id)))).await
}

async fn until_only_the_live_epochs_buyers_are_left(app: &TestApp, sale: &str) {
    let live = async || [live_keys(app, sale).await.buyers];
    wait_for!(keys_of_buyers(app, sale).await == live().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rebuilds_that_fail_one_after_the_other_do_not_pile_up_buyers() {
    let servers = Servers::own().await;
    for everything_is_lost in [false, true] {
        let app = TestApp::start_on(&servers, Options::default()).await;
        let (sale, winners) = sold(&app, 100, 20).await;
        app.assert_sound(&sale).await;
        let (before, live) = (epoch(&app, &sale).await, live_keys(&app, &sale).await);
        arm(&app, "rebuild.buyers_written=error*always");
        if everything_is_lost {
            flush(&app).await;
        }
        app.execute(DISOWN).await;
        let failed = fired(&app, "rebuild.buyers_written");
        wait_for!(fired(&app, "rebuild.buyers_written") >= failed + 4);
        let found = keys_of_buyers(&app, &sale).await;
        let was_live = found.contains(&live.buyers);
        assert_eq!(was_live, !everything_is_lost, "{found:?}");
        assert!(found.len() <= 1 + usize::from(was_live), "{found:?}");
        app.services.fail_points.clear();
        until_rebuilt(&app, &sale, before).await;
        until_only_the_live_epochs_buyers_are_left(&app, &sale).await;
        app.database.assert_kept(&sale, &winners).await;
        assert_eq!(app.assert_sound(&sale).await.live, 20);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuild_that_was_overtaken_takes_its_buyers_with_it() {
    let (_servers, [app, other]) = own_pair().await;
    let (sale, winners) = sold(&app, 20, 8).await;
    app.assert_sound(&sale).await;
    let before = epoch(&app, &sale).await;
    arm(&app, "rebuild.recomputed=pause:600000;rebuild.buyers_written=pause:0");
    arm(&other, "rebuild.elected=error*always");
    app.execute(DISOWN).await;
    wait_for!(fired(&app, "rebuild.recomputed") > 0);
    other.services.fail_points.clear();
    let end = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE granted
               AND locktype = 'advisory'
               AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    app.execute(end).await;
    until_rebuilt(&other, &sale, before + 1).await;
    app.services.fail_points.resume();
    until_only_the_live_epochs_buyers_are_left(&app, &sale).await;
    app.database.assert_kept(&sale, &winners).await;
    assert_eq!(app.assert_sound(&sale).await.live, 8);
}

fn unreadable(sale: &str) -> String {
    format!(
        "ALTER TABLE orders RENAME TO stored;
         CREATE FUNCTION readable(sale bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
             IF sale = {sale} THEN
                 RAISE EXCEPTION 'invalid page' USING ERRCODE = 'data_corrupted';
             END IF;
             RETURN true;
         END $$;
         CREATE VIEW orders AS SELECT * FROM stored WHERE readable(sale_id);"
    )
}

const READABLE_AGAIN: &str =
    "DROP VIEW orders; DROP FUNCTION readable(bigint); ALTER TABLE stored RENAME TO orders;";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_whose_orders_cannot_be_read_keeps_no_other_one_shut() {
    let app = TestApp::start().await;
    let mut sales = Vec::new();
    for _ in 0..3 {
        let (sale, winners) = sold(&app, 20, 5).await;
        app.assert_sound(&sale).await;
        sales.push((sale, winners));
    }
    // Not the last: the newest order has to be readable, above which order numbers go on.
    let bad = sales[1].0.clone();
    let before = epoch(&app, &bad).await;
    app.execute(&unreadable(&bad)).await;
    app.execute(DISOWN).await;
    for (sale, winners) in sales.iter_mut().filter(|(sale, _)| *sale != bad) {
        until_rebuilt(&app, sale, before).await;
        let again = winners[0].0.refused(sale, "already_ordered").await;
        assert_eq!(again.text("order_id"), winners[0].1);
        winners.extend(crowd(&app, sale, 5).await);
        assert_eq!(winners.len(), 10, "its neighbours sell");
    }
    app.shopper().buy(&bad).await.assert(503);
    let before = epoch(&app, &bad).await;
    app.execute(READABLE_AGAIN).await;
    until_rebuilt(&app, &bad, before - 1).await;
    for (sale, winners) in &sales {
        assert_all_pending(&app, sale, winners).await;
        app.assert_sound(sale).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuild_restores_the_newest_closed_orders_of_each_user_and_no_more() {
    let (app, sale) = TestApp::selling(20, json!({})).await;
    let users = [UserId::random(), UserId::random()];
    for (user, ids) in users.iter().zip(["1, 12", "13, 15"]) {
        app.execute(&format!(
            "INSERT INTO orders (id, sale_id, user_id, status, price_cents, idempotency_hash,
                                 created_at, pay_by, closed_at)
             SELECT n, {sale}, '{user}', 'cancelled', 100, n, now(), now(), now()
             FROM generate_series({ids}) AS n"
        ))
        .await;
    }
    rebuilt_by(&app, &sale, app.execute(DISOWN)).await;
    let buyers = live_keys(&app, &sale).await.buyers;
    for (user, expected) in users.into_iter().zip([5..=12, 13..=15]) {
        let mut record = redis::cmd("HGET");
        let found: Vec<u8> = app.in_redis(record.arg(&buyers).arg(&user.as_bytes()[..])).await;
        let returned = record::decode(&found).filter(|held| held.returned);
        let held: Vec<i64> = returned.map(|held| held.order_id.get()).collect();
        assert_eq!(held, expected.collect::<Vec<_>>(), "the newest eight");
    }
}

/// For a rebuild that is under way they wait as long as they like, and are told so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_rebuilds_a_sale_and_waits_to_rebuild_everything() {
    let servers = Servers::shared().await;
    let app = TestApp::start_with(Options::without_writer()).await;
    let ((one, bought), (other, others)) = (sold(&app, 20, 8).await, sold(&app, 20, 8).await);
    let mut winners = [bought, others];
    let (prefix, mut redis) = (app.prefix.clone(), app.redis().await);
    let database = app.stop().await;
    let home = Home::on(servers, &database, &prefix);
    let launch = async |options| {
        let (database, prefix) = (database.clone(), prefix.clone());
        TestApp::launch(database, servers.redis.url(), prefix, options).await
    };
    let (keys, id) = (Keys::new(&prefix), one.parse().expect("an id"));
    let mut damage = redis::pipe();
    damage.set(keys.buyers(id, 1), "nonsense").hdel(keys.state(id), "remaining");
    damage.exec_async(&mut redis).await.expect("damaged");
    home.run(&format!("rebuild --sale {one}")).await.assert_done();
    let app = launch(Options::without_writer()).await;
    assert_eq!((epoch(&app, &one).await, epoch(&app, &other).await), (2, 1));
    app.database.assert_kept(&one, &winners[0]).await;
    assert_eq!(app.assert_sound(&one).await.live, 8);
    assert_eq!(app.audit(&other).await.backlog, 8);
    winners[1].extend(crowd(&app, &other, 2).await);
    app.stop().await;
    let mut rival = database.connect().await;
    let election = "SELECT pg_backend_pid() FROM pg_advisory_lock(
                        x'666c6173685f7262'::bigint # hashtext(current_schema())::bigint)";
    let backend: i32 = sqlx::query_scalar(election).fetch_one(&mut rival).await.expect("its lock");
    let mut program = Program::spawn(&home, home.command("rebuild"));
    let says = |words: &str| program.stderr().contains(words);
    wait_for!(says("another rebuild is under way") && says(&backend.to_string()));
    let waiting = "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
                   WHERE NOT granted AND datname = current_database()";
    let waiting: i64 = sqlx::query_scalar(waiting).fetch_one(&mut rival).await.expect("a number");
    assert_eq!(waiting, 0, "no statement of it waits: those are ended after a minute");
    drop(rival);
    assert_eq!(program.end().await, Some(0), "{}", program.stderr());
    let app = launch(Options::default()).await;
    assert_eq!((epoch(&app, &one).await, epoch(&app, &other).await), (3, 2));
    for (sale, winners) in [&one, &other].into_iter().zip(&winners) {
        assert_all_pending(&app, sale, winners).await;
        crowd(&app, sale, 30).await;
        assert_eq!(app.assert_sound(sale).await.live, 20);
    }
}

async fn is_approved(app: &TestApp) -> bool {
    let Ok(live) = app.services.databases.redis.processes().await else { return false };
    let catalog = &app.services.catalog;
    let approved = catalog.approved_processes().await.unwrap_or_default();
    approved == live.into_iter().collect() && catalog.sells_something().await.is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_catalogue_is_rebuilt() {
    let (sales, buyers) = match std::env::var("SCALE").as_deref() {
        Ok("full") => (1_000, 1_000_000),
        _ => (100, 20_000),
    };
    let (_servers, [app, _other]) = own_pair().await;
    let each = buyers / sales;
    // As if all sales sold at once, an order each in turn.
    app.execute(&format!(
        "INSERT INTO sales (title, price_cents, stock, taken, opens_at, closes_at,
                            payment_timeout_secs)
             SELECT 'sale ' || n, 100, 2 * {each}, {each}, now(), now() + interval '1 day', 86400
             FROM generate_series(1, {sales}) AS n;
         INSERT INTO orders (id, sale_id, user_id, slot, status, price_cents, created_at, pay_by)
             SELECT row_number() OVER (ORDER BY n, sales.id), sales.id, gen_random_uuid(), 0,
                    'pending_payment', 100, now(), now() + interval '1 day'
             FROM sales, generate_series(1, {each}) AS n ORDER BY n, sales.id;"
    ))
    .await;
    // Only what this process knows of can be missing in Redis.
    wait_for!(app.services.catalog.cache.cached_sales().len() == sales);
    flush(&app).await;
    let (began, before) = (Instant::now(), calls_of(&app, "fcall").await);
    app.execute(DISOWN).await;
    // The last thing that a rebuild does is to approve the process, after all sales.
    while !is_approved(&app).await {
        assert!(began.elapsed() < 10 * TEST_TIMEOUT, "nobody rebuilds");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (took, calls) = (began.elapsed(), calls_of(&app, "fcall").await - before);
    println!("{sales} sales and {buyers} buyers were rebuilt in {took:?}, with {calls} calls");
    assert!(calls <= 8 * sales as u64, "{calls} calls for {sales} sales");
    for sale in [1, sales / 2, sales] {
        let sale = sale.to_string();
        assert!(epoch(&app, &sale).await > 1, "sale {sale} was rebuilt");
        // The other instance may have done it, and this one follows at its next look.
        wait_for!(!crowd(&app, &sale, 1).await.is_empty());
        assert_eq!(app.assert_sound(&sale).await.live, each as i64 + 1);
    }
}

/// The keys and the commands of a rebuild are as many for a stock of one as for the largest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_stock_that_nobody_bought_costs_no_more_to_rebuild() {
    let (_servers, app) = TestApp::on_own_servers().await;
    let keys = async || app.in_redis::<i64>(&mut redis::cmd("DBSIZE")).await;
    let mut costs = Vec::new();
    for stock in [1, 100_000_000] {
        let sale: SaleId = app.sale(stock, json!({})).await.parse().expect("an id");
        let before = keys().await;
        app.in_redis::<()>(redis::cmd("CONFIG").arg("RESETSTAT")).await;
        assert_eq!(app.services.rebuild.by_hand(Some(sale)).await.expect("rebuilt"), 1);
        let (written, after) = (calls_of(&app, "hset").await, keys().await);
        costs.push((after - before, written));
    }
    assert!(costs[0] == costs[1] && costs[0].1 > 0, "{costs:?}");
}
