//! An instance's clock is wrong or jumps: Redis' judges the window and Postgres' the payment.

use super::*;
use crate::support::clock;
use flash_sale::admission::ids;
use time::format_description::well_known::Rfc2822;

const NEAR: time::Duration = time::Duration::HOUR;

struct Turned {
    program: Program,
    clock: PathBuf,
}

impl Turned {
    async fn start(app: &TestApp, home: &Home, shift: &str) -> Self {
        assert!(clock::libfaketime().is_some(), "{}", clock::LIBRARY_MISSING);
        let clock = home.0.join(format!("clock{shift}"));
        fs::write(&clock, shift).expect("a file");
        let servers = Servers::shared().await;
        let mut command = home.command_on("serve", servers, &app.database, &app.prefix);
        command.envs(clock::settings(&clock));
        let turned = Self { program: Program::serve_by(home, command).await, clock };
        // Otherwise nothing would be shown.
        assert!(turned.ahead().await.abs() > NEAR, "its clock goes right");
        turned
    }

    fn entrance(&self, app: &TestApp) -> Entrance {
        app.entrance().at(&self.program.base)
    }

    async fn date(&self) -> OffsetDateTime {
        let answer = reqwest::get(self.program.url("/healthz")).await;
        let headers = answer.expect("an answer").headers().clone();
        let date = headers["date"].to_str().expect("text");
        OffsetDateTime::parse(&date.replace("GMT", "+0000"), &Rfc2822).expect("a date")
    }

    async fn ahead(&self) -> time::Duration {
        self.date().await - OffsetDateTime::now_utc()
    }

    fn turn(&self, shift: &str) {
        let draft = self.clock.with_extension("new");
        fs::write(&draft, shift).expect("a file");
        fs::rename(&draft, &self.clock).expect("renamed");
    }
}

fn parse(time: &str) -> OffsetDateTime {
    OffsetDateTime::parse(time, &Rfc3339).expect("RFC 3339")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_ids_payments_and_tokens_do_not_follow_a_clock_that_is_a_day_off() {
    let (app, home) = (TestApp::start().await, Home::new());
    let ahead = Turned::start(&app, &home, "+1d").await;
    let behind = Turned::start(&app, &home, "-1d").await;
    let entrances = [app.entrance(), ahead.entrance(&app), behind.entrance(&app)];
    tokio::join!(
        the_sale_opens_at_its_second(&app, &entrances),
        ids_are_unique_and_dated_by_redis(&app, &entrances),
        payments_expire_by_postgres(&app, &entrances),
        tokens_live_as_long_as_they_say(&app, &entrances),
    );
    ahead.program.terminate().await;
    behind.program.terminate().await;
}

async fn the_sale_opens_at_its_second(app: &TestApp, entrances: &[Entrance]) {
    let opening = async |at: OffsetDateTime| {
        app.sale(100, json!({"opens_at": at.format(&Rfc3339).expect("RFC 3339")})).await
    };
    let now = OffsetDateTime::now_utc();
    let opens_at = now + time::Duration::seconds(5);
    let (later, sale) = (opening(now + NEAR).await, opening(opens_at).await);
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
    app.assert_kept(&sale, &winners).await;
    app.assert_sound(&sale).await;
}

async fn payments_expire_by_postgres(app: &TestApp, entrances: &[Entrance]) {
    let long = app.sale(10, json!({"payment_timeout_secs": 3_600})).await;
    let short = app.sale(10, json!({"payment_timeout_secs": 1})).await;
    let each = entrances.iter().map(async |entrance| {
        let shopper = entrance.shopper();
        let id = shopper.must_buy(&long).await;
        let order = shopper.until(&id, "pending_payment").await;
        let left = parse(order["pay_by"].as_str().expect("a time")) - OffsetDateTime::now_utc();
        assert!(left.is_positive() && left <= NEAR, "{left} left to pay");
        shopper.pay(&id).await.assert(StatusCode::OK);
        let id = shopper.must_buy(&short).await;
        shopper.until(&id, "expired").await;
        shopper.pay(&id).await.assert_problem(409, "not_payable");
    });
    join_all(each).await;
    assert_eq!(app.assert_sound(&long).await.paid, entrances.len() as i64);
    assert_eq!(app.assert_sound(&short).await.live, 0);
}

async fn tokens_live_as_long_as_they_say(app: &TestApp, entrances: &[Entrance]) {
    let now = OffsetDateTime::now_utc();
    for entrance in entrances {
        let mut shopper = entrance.shopper();
        for (expires_in, status) in [(NEAR, StatusCode::OK), (-NEAR, StatusCode::UNAUTHORIZED)] {
            shopper.token = app.mint_until(shopper.user, now + expires_in);
            shopper.get("/api/v1/session").await.assert(status);
        }
        let opened = shopper.post("/api/v1/session").await.must_be(StatusCode::CREATED);
        let life = parse(opened.text("expires_at")) - now;
        assert!((life - time::Duration::WEEK).abs() < NEAR, "{life} to live");
        shopper.token = opened.text("token").to_owned();
        for elsewhere in entrances {
            elsewhere.welcome(&shopper).get("/api/v1/session").await.assert(StatusCode::OK);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_in_the_middle_of_a_rush_disturbs_nobody() {
    let ((app, sale), home) = (TestApp::selling(50_000, json!({})).await, Home::new());
    let turned = Turned::start(&app, &home, "-1d").await;
    let rush = Rush::start(&[app.entrance(), turned.entrance(&app)], &sale, 4, &[]);
    rush.until_accepted(40).await;
    for (shift, ahead) in [("+0", time::Duration::ZERO), ("+1d", time::Duration::DAY)] {
        turned.turn(shift);
        wait_for!((turned.ahead().await - ahead).abs() < NEAR);
        rush.until_accepted(40).await;
    }
    // The server does not date answers back: its date stands still while the clock is behind it.
    turned.turn("-1d");
    wait_for!("the clock is turned back", {
        let before = turned.date().await;
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        (turned.date().await == before).then_some(())
    });
    rush.until_accepted(40).await;
    let told = rush.end().await;
    assert_eq!(told.suspended, 0, "a clock stopped the sale");
    assert_all_pending(&app, &sale, &told.winners).await;
    app.assert_sound(&sale).await;
    turned.program.terminate().await;
}
