//! An instance's clock is wrong: Redis' judges the window and Postgres' the payment.

use super::*;
use crate::support::processes::{FAKETIME_MISSING, clock_settings, libfaketime};
use flash_sale::admission::ids;
use time::format_description::well_known::Rfc2822;

const NEAR: time::Duration = time::Duration::HOUR;

/// An instance whose clock is so much off.
async fn turned(home: &Home, shift: &str) -> Program {
    assert!(libfaketime().is_some(), "{FAKETIME_MISSING}");
    let clock = home.path.join(format!("clock{shift}"));
    fs::write(&clock, shift).expect("a file");
    let mut command = home.command("serve");
    command.envs(clock_settings(&clock));
    let program = Program::spawn(home, command).ready().await;
    // Otherwise nothing would be shown.
    let date = program.ask("GET", "/healthz").await.header("date").replace("GMT", "+0000");
    let date = OffsetDateTime::parse(&date, &Rfc2822).expect("a date");
    assert!((date - OffsetDateTime::now_utc()).abs() > NEAR, "its clock goes right: {date}");
    program
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_ids_payments_and_tokens_do_not_follow_a_clock_that_is_a_day_off() {
    let app = TestApp::start().await;
    let home = Home::on(Servers::shared().await, &app.database, &app.prefix);
    let (ahead, behind) = (turned(&home, "+1d").await, turned(&home, "-1d").await);
    let [at_ahead, at_behind] = [&ahead, &behind].map(|one| app.entrance.at(&one.base));
    let entrances = [app.entrance.clone(), at_ahead, at_behind];
    tokio::join!(
        the_sale_opens_at_its_second(&app, &entrances),
        ids_are_unique_and_dated_by_redis(&app, &entrances),
        payments_expire_by_postgres(&app, &entrances),
        tokens_live_as_long_as_they_say(&app, &entrances),
    );
    ahead.terminate().await;
    behind.terminate().await;
}

async fn the_sale_opens_at_its_second(app: &TestApp, entrances: &[Entrance]) {
    let opening = async |secs| app.sale(100, json!({"opens_at": in_secs(secs)})).await;
    let (later, sale) = (opening(3_600).await, opening(5).await);
    let before = app.sale_now(&sale).await;
    let opens_at = time_of(&before["opens_at"]);
    assert_eq!(before["state"] == "scheduled", time_of(&before["server_time"]) < opens_at);
    let waits = entrances.iter().map(async |entrance| {
        let shopper = entrance.shopper();
        shopper.refused(&later, "not_open").await;
        wait_for!("the sale opens", {
            let reply = shopper.buy(&sale).await;
            if reply.order().is_some() {
                return Some(());
            }
            assert!(["not_open", "unavailable"].contains(&reply.code()), "{:#}", reply.body);
            None
        });
        let late = OffsetDateTime::now_utc() - opens_at;
        assert!(late >= time::Duration::ZERO, "{late} too early");
    });
    join_all(waits).await;
    wait_for!(app.sale_now(&sale).await["state"] == "open");
    assert_eq!(app.assert_sound(&sale).await.live, entrances.len() as i64);
}

async fn ids_are_unique_and_dated_by_redis(app: &TestApp, entrances: &[Entrance]) {
    let sale = app.sale(1_000, json!({})).await;
    let buys = (0..20).flat_map(|_| entrances).map(async |entrance| {
        let shopper = entrance.shopper();
        let id = shopper.must_buy(&sale).await;
        (shopper, id)
    });
    let winners = join_all(buys).await;
    for (_, id) in &winners {
        let made_at = ids::made_at(id.parse().expect("an id"));
        let off = (made_at - OffsetDateTime::now_utc()).abs();
        assert!(off < NEAR, "order {id} is dated {made_at}");
    }
    app.database.assert_kept(&sale, &winners).await;
    app.assert_sound(&sale).await;
}

/// That they do expire in time: the chaos run, `clock`.
async fn payments_expire_by_postgres(app: &TestApp, entrances: &[Entrance]) {
    let sale = app.sale(10, json!({"payment_timeout_secs": 3_600})).await;
    let each = entrances.iter().map(async |entrance| {
        let shopper = entrance.shopper();
        let id = shopper.must_buy(&sale).await;
        let order = shopper.until(&id, "pending_payment").await;
        let left = time_of(&order["pay_by"]) - OffsetDateTime::now_utc();
        assert!(left.is_positive() && left <= NEAR, "{left} left to pay");
        shopper.pay(&id).await.assert(200);
    });
    join_all(each).await;
    assert_eq!(app.assert_sound(&sale).await.paid, entrances.len() as i64);
}

async fn tokens_live_as_long_as_they_say(app: &TestApp, entrances: &[Entrance]) {
    let now = OffsetDateTime::now_utc();
    for entrance in entrances {
        let mut shopper = entrance.shopper();
        for (expires_in, status) in [(NEAR, 200), (-NEAR, 401)] {
            shopper.token = app.mint_until(shopper.user, now + expires_in);
            shopper.get("/api/v1/session").await.assert(status);
        }
        let opened = shopper.post("/api/v1/session").await.must_be(201);
        let life = time_of(&opened.body["expires_at"]) - now;
        assert!((life - time::Duration::WEEK).abs() < NEAR, "{life} to live");
        shopper.token = opened.text("token").to_owned();
        for elsewhere in entrances {
            elsewhere.welcome(&shopper).get("/api/v1/session").await.assert(200);
        }
    }
}
