//! Orders of sales that are long over move into the archive: each stays visible to its owner and to nobody
//! else, none is lost or doubled whenever it is stopped, and a sale with anything open is left alone.

use crate::{
    cli::{Home, Program, settings_of},
    support::{
        Servers,
        app::{Options, Shopper, TestApp, eventually},
        load::crowd,
    },
};
use flash_sale::{
    domain::SaleId,
    sale::archive::{Candidate, LEAST_AGE},
    worker::{rebuild, retire},
};
use futures_util::future::join_all;
use nix::sys::signal::Signal;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

fn ago(hours: i64) -> String {
    let time = OffsetDateTime::now_utc() - time::Duration::hours(hours);
    time.format(&Rfc3339).expect("a time")
}

/// Somebody, their order, and what became of it.
type Past = (Shopper, String, &'static str);

fn id_of(sale: &str) -> SaleId {
    sale.parse().expect("an id")
}

/// Sells to `count` people; half of them pay, a quarter cancels, the others let it lapse.
async fn sell(app: &TestApp, sale: &str, count: usize) -> Vec<Past> {
    let mut people = Vec::new();
    for (number, (shopper, id)) in crowd(app, sale, count).await.into_iter().enumerate() {
        shopper.until(&id, "pending_payment").await;
        let end = ["paid", "paid", "cancelled", "expired"][number % 4];
        match end {
            "paid" => shopper.pay(&id).await.assert(StatusCode::OK),
            "cancelled" => shopper.cancel(&id).await.assert(StatusCode::OK),
            _ => {}
        }
        people.push((shopper, id, end));
    }
    assert_eq!(people.len(), count, "everybody has bought");
    for (shopper, id, end) in &people {
        shopper.until(id, end).await;
    }
    people
}

/// Ends a sale as if that had been long ago, and takes it out of Redis.
async fn end(app: &TestApp, sale: &str) {
    let path = format!("/api/v1/admin/sales/{sale}");
    let change = json!({"closes_at": ago(30)});
    let changed = app.admin(Method::PATCH, &path, Some(change)).await;
    changed.assert(StatusCode::OK);
    app.shop.release_all().await.expect("releases");
    eventually("it is out of redis", async || {
        retire::step(&app.shop).await.ok()?;
        app.audit(sale).await.redis.epoch.is_none().then_some(())
    })
    .await;
}

/// A sale that is long over, and who bought there.
async fn past_sale(app: &TestApp, count: usize) -> (String, Vec<Past>) {
    let members = json!({"opens_at": ago(48), "payment_timeout_secs": 5});
    let sale = app.sale(1_000, members).await;
    let people = sell(app, &sale, count).await;
    end(app, &sale).await;
    (sale, people)
}

/// What everybody sees of their order: alone and in their list, each once, as it ended.
async fn seen_wrongly(people: &[Past]) -> Vec<String> {
    let look = async |(shopper, id, end): &Past| {
        let alone = shopper.order(id).await;
        let list = shopper.get("/api/v1/orders").await;
        let listed: Vec<(&Value, &Value)> = list.body["orders"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|order| (&order["order_id"], &order["status"]))
            .collect();
        let wrong = alone.status != StatusCode::OK
            || alone.body["status"] != *end
            || listed != [(&json!(id), &json!(end))];
        wrong.then(|| format!("{id} {end}: {:?} {listed:?}", alone.body))
    };
    join_all(people.iter().map(look))
        .await
        .into_iter()
        .flatten()
        .collect()
}

async fn rows(app: &TestApp, table: &str, sale: &str) -> i64 {
    app.number(&format!(
        "SELECT count(*) FROM {table} WHERE sale_id = {sale}"
    ))
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_move_under_the_eyes_of_their_owners() {
    let servers = Servers::own().await;
    let app = TestApp::start_on(&servers, Options::default()).await;
    let (sale, people) = past_sale(&app, 40).await;
    let people = Arc::new(people);
    let before = app.audit(&sale).await;
    assert!(before.ok, "{before:#?}");

    // Somebody looks all the time, from before the first batch until after the last.
    let enough = Arc::new(AtomicBool::new(false));
    let watching = tokio::spawn({
        let (people, enough) = (people.clone(), enough.clone());
        async move {
            let (mut looks, mut wrong) = (0, Vec::new());
            while !enough.load(Relaxed) || looks == 0 {
                wrong.extend(seen_wrongly(&people).await);
                looks += 1;
            }
            (looks, wrong)
        }
    });
    let mut batches = Vec::new();
    let shop = app.shop.clone();
    let moved = shop
        .archive_sale(id_of(&sale), LEAST_AGE, 3, |count| batches.push(count))
        .await
        .expect("archives");
    enough.store(true, Relaxed);
    let (looks, wrong) = watching.await.expect("no panic");
    assert_eq!(wrong, Vec::<String>::new(), "in {looks} looks");
    assert_eq!((moved, batches.len()), (Some(40), 14), "{batches:?}");

    // All of it is there, and nothing where it was.
    assert_eq!(rows(&app, "orders", &sale).await, 0);
    assert_eq!(rows(&app, "orders_archive", &sale).await, 40);
    assert_eq!(app.number("SELECT count(*) FROM payments").await, 0);
    assert_eq!(
        app.number("SELECT count(*) FROM payments_archive").await,
        20
    );
    let audit = app.assert_sound(&sale).await;
    assert_eq!(
        (
            audit.archived,
            audit.paid,
            audit.cancelled,
            audit.expired,
            audit.postgres.taken
        ),
        (40, 20, 10, 10, 20)
    );
    assert_eq!(audit.remaining, before.remaining);

    // Their owners can do with it what they could before; others and the operator, too.
    let (shopper, paid, _) = &people[0];
    assert_eq!(shopper.pay(paid).await.text("status"), "paid");
    shopper
        .cancel(paid)
        .await
        .assert_problem(409, "not_cancellable");
    let (shopper, cancelled, _) = &people[2];
    shopper
        .pay(cancelled)
        .await
        .assert_problem(409, "not_payable");
    assert_eq!(shopper.cancel(cancelled).await.text("status"), "cancelled");
    let stranger = app.shopper();
    stranger
        .order(paid)
        .await
        .assert_problem(404, "order_not_found");
    let listed = stranger.get("/api/v1/orders").await;
    assert_eq!(listed.body["orders"], json!([]));
    let path = format!("/api/v1/admin/sales/{sale}/orders?limit=100");
    let listed = app.admin(Method::GET, &path, None).await;
    let ids: Vec<i64> = listed.body["orders"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|order| {
            order["order_id"]
                .as_str()
                .expect("text")
                .parse()
                .expect("an id")
        })
        .collect();
    assert_eq!(ids.len(), 40);
    assert!(ids.is_sorted_by(|a, b| a > b), "newest first");

    // It is over for good: an operator cannot open it again, and no rebuild brings it back.
    let path = format!("/api/v1/admin/sales/{sale}");
    let longer = json!({"closes_at": ago(-5)});
    let refused = app.admin(Method::PATCH, &path, Some(longer)).await;
    refused.assert_problem(422, "invalid");
    let rebuilt = rebuild::by_hand(&app.shop, Some(id_of(&sale))).await;
    assert_eq!(rebuilt.expect("nothing to do"), 0);
    redis::cmd("FLUSHALL")
        .exec_async(&mut app.redis().await)
        .await
        .expect("FLUSHALL");
    let open = app.sale(10, json!({})).await;
    eventually("redis is rebuilt", async || {
        (app.shopper().buy(&open).await.status == StatusCode::ACCEPTED).then_some(())
    })
    .await;
    let audit = app.assert_sound(&sale).await;
    assert_eq!((audit.archived, audit.redis.epoch), (40, None));
    assert_eq!(seen_wrongly(&people).await, Vec::<String>::new());

    // Again: nothing is left to do.
    let again = app.shop.archive_candidates(LEAST_AGE, None).await;
    assert_eq!(again.expect("candidates"), []);
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_open_is_left_alone() {
    let servers = Servers::own().await;
    let app = TestApp::start_on(&servers, Options::default()).await;
    let obstacle = async |sale: &str| -> Option<Option<&'static str>> {
        let found = app
            .shop
            .archive_candidates(LEAST_AGE, Some(id_of(sale)))
            .await;
        let found: Vec<Candidate> = found.expect("candidates");
        found.into_iter().next().map(|candidate| candidate.obstacle)
    };
    let archive = async |sale: &str| {
        let archived = app
            .shop
            .archive_sale(id_of(sale), LEAST_AGE, 10, |_| {})
            .await;
        archived.expect("an answer")
    };

    // Not over for long enough.
    let young = app.sale(10, json!({"opens_at": ago(48)})).await;
    let (shopper, id) = crowd(&app, &young, 1).await.pop().expect("a purchase");
    shopper.until(&id, "pending_payment").await;
    let path = format!("/api/v1/admin/sales/{young}");
    app.admin(Method::PATCH, &path, Some(json!({"closes_at": ago(24)})))
        .await
        .assert(StatusCode::OK);
    assert_eq!(obstacle(&young).await, None);
    assert_eq!(archive(&young).await, None);

    // Old enough, but Redis still has it; then an order waits for payment.
    app.admin(Method::PATCH, &path, Some(json!({"closes_at": ago(30)})))
        .await
        .assert(StatusCode::OK);
    assert_eq!(
        obstacle(&young).await,
        Some(Some("orders wait for payment"))
    );
    assert_eq!(archive(&young).await, None);
    end(&app, &young).await;
    assert_eq!(archive(&young).await, None);
    shopper.pay(&id).await.assert(StatusCode::OK);

    // Then a unit waits to be returned.
    app.execute(&format!(
        "INSERT INTO releases (order_id, sale_id, user_id, created_at)
         SELECT id, sale_id, user_id, now() FROM orders WHERE id = {id}"
    ))
    .await;
    let found = obstacle(&young).await;
    // The release loop of the running application may be faster than this look.
    assert!(
        matches!(found, Some(None | Some("units wait to be returned"))),
        "{found:?}"
    );
    let audit = app.audit(&young).await;
    assert_eq!((audit.archived, audit.paid), (0, 1));
    assert_eq!(rows(&app, "orders_archive", &young).await, 0);

    eventually("nothing is open", async || archive(&young).await).await;
    app.assert_sound(&young).await;
    assert_eq!(rows(&app, "orders_archive", &young).await, 1);
    app.stop().await;
}

/// The audit and the looks of the owners can tell when something was lost or doubled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_is_lost_or_doubled_is_noticed() {
    let servers = Servers::own().await;
    let app = TestApp::start_on(&servers, Options::default()).await;
    let (sale, people) = past_sale(&app, 8).await;
    let archived = app
        .shop
        .archive_sale(id_of(&sale), LEAST_AGE, 3, |_| {})
        .await;
    assert_eq!(archived.expect("archives"), Some(8));
    app.assert_sound(&sale).await;

    let columns = "id, sale_id, user_id, slot, status, price_cents, idempotency_hash, created_at, pay_by, paid_at, closed_at";
    let (_, id, _) = &people[0];
    app.execute(&format!(
        "INSERT INTO orders ({columns}) SELECT {columns} FROM orders_archive WHERE id = {id}"
    ))
    .await;
    assert_eq!(seen_wrongly(&people).await.len(), 1, "it is there twice");
    assert!(!app.audit(&sale).await.ok);
    app.execute(&format!("DELETE FROM orders WHERE id = {id}"))
        .await;
    assert!(app.audit(&sale).await.ok);

    // A cancelled one, which no counter of the sale knows of.
    let (_, id, _) = &people[2];
    app.execute(&format!("DELETE FROM orders_archive WHERE id = {id}"))
        .await;
    assert_eq!(seen_wrongly(&people).await.len(), 1, "it is gone");
    let audit = app.audit(&sale).await;
    assert!(!audit.ok, "{audit:#?}");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_is_killed_half_way_is_finished_by_the_next() {
    const ORDERS: i64 = 2_000;
    let servers = Servers::own().await;
    let app = TestApp::start_on(&servers, Options::default()).await;
    let (sale, people) = past_sale(&app, 4).await;
    // Many more, which no test has the time to buy.
    app.execute(&format!(
        "INSERT INTO orders (id, sale_id, user_id, slot, status, price_cents, created_at, pay_by, paid_at, closed_at)
         SELECT n, {sale}, gen_random_uuid(), CASE WHEN n % 10 = 0 THEN 0 END,
                (CASE WHEN n % 10 = 0 THEN 'paid' ELSE 'expired' END)::order_status, 100, now(), now(),
                CASE WHEN n % 10 = 0 THEN now() END, CASE WHEN n % 10 <> 0 THEN now() END
         FROM generate_series(1, {ORDERS}) AS n;
         INSERT INTO payments (order_id, amount_cents, reference)
         SELECT id, 100, 'x' FROM orders WHERE status = 'paid' AND id <= {ORDERS};
         UPDATE sales SET taken = taken + {ORDERS} / 10 WHERE id = {sale};"
    ))
    .await;
    let sums = async || {
        let kept = rows(&app, "all_orders", &sale).await;
        let distinct = format!("SELECT count(DISTINCT id) FROM all_orders WHERE sale_id = {sale}");
        let paid =
            "SELECT (SELECT count(*) FROM payments) + (SELECT count(*) FROM payments_archive)";
        (kept, app.number(&distinct).await, app.number(paid).await)
    };
    let before = sums().await;
    assert_eq!(before, (ORDERS + 4, ORDERS + 4, ORDERS / 10 + 2));

    let home = Home::new();
    let settings = settings_of(&servers, &app.database, &app.prefix);
    let command = |arguments: &[&str]| {
        let mut command = home.command(&[&["archive", "--older-than", "26h"], arguments].concat());
        command.envs(settings.iter().map(|(name, value)| (*name, value)));
        command
    };
    let looked = home.finish(command(&["--dry-run"])).await;
    looked.assert_done();
    assert!(
        looked
            .stdout
            .contains(&format!("{} orders would be moved", ORDERS + 4)),
        "{}",
        looked.stdout
    );
    assert_eq!(rows(&app, "orders_archive", &sale).await, 0);

    for some in [100, 300] {
        let mut running = Program::spawn(&home, command(&["--batch", "1"]));
        eventually("some are moved", async || {
            (rows(&app, "orders_archive", &sale).await >= some).then_some(())
        })
        .await;
        running.signal(Signal::SIGKILL);
        running.end().await;
        let archived = rows(&app, "orders_archive", &sale).await;
        assert!(
            (some..ORDERS).contains(&archived),
            "{archived} before the kill"
        );
        assert_eq!(sums().await, before);
        app.assert_sound(&sale).await;
        assert_eq!(seen_wrongly(&people).await, Vec::<String>::new());
    }
    // Two at once take turns.
    let both = [command(&["--batch", "7"]), command(&["--batch", "11"])];
    for ended in join_all(both.map(|command| home.finish(command))).await {
        ended.assert_done();
    }
    assert_eq!(rows(&app, "orders", &sale).await, 0);
    assert_eq!(sums().await, before);
    let audit = app.assert_sound(&sale).await;
    assert_eq!(audit.archived, ORDERS + 4);
    assert_eq!(seen_wrongly(&people).await, Vec::<String>::new());
    let idle = home.finish(command(&[])).await;
    assert!(
        idle.stdout.contains("0 orders moved, 0 sales left"),
        "{}",
        idle.stdout
    );
    for refused in ["24h", "1d", "soon", "-3d"] {
        let mut command = home.command(&["archive", &format!("--older-than={refused}")]);
        command.envs(settings.iter().map(|(name, value)| (*name, value)));
        let ended = tokio::time::timeout(Duration::from_secs(20), home.finish(command)).await;
        assert_eq!(ended.expect("it ends").code, Some(2), "{refused}");
    }
    app.stop().await;
}
