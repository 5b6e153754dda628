//! The clock of an instance is a day ahead, a day behind, or jumps: nobody gets in earlier or pays
//! longer, since Redis' clock judges the window, Postgres' clock judges the payment, and the clock of
//! an instance nothing.
//!
//! The program runs under libfaketime, which turns the wall clock and leaves the monotonic one alone.

use crate::{
    cli::{Home, Program, settings_of},
    support::{
        Servers,
        app::{Entrance, Options, Reply, TestApp, eventually},
        load::Rush,
    },
};
use flash_sale::sale::ids;
use futures_util::future::join_all;
use reqwest::{Method, StatusCode};
use serde_json::json;
use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};
use time::{
    OffsetDateTime,
    format_description::well_known::{Rfc2822, Rfc3339},
};

const SHIFTS: [&str; 2] = ["+1d", "-1d"];

/// How far two readings of the same clock may be apart in a test. A day is much more.
const NEAR: time::Duration = time::Duration::HOUR;

/// Debian and Ubuntu: `apt-get install faketime`.
fn libfaketime() -> PathBuf {
    let folders = fs::read_dir("/usr/lib").expect("/usr/lib").flatten();
    folders
        .map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"))
        .find(|library| library.exists())
        .expect("libfaketime is installed (apt-get install faketime)")
}

/// An instance whose clock somebody has turned.
struct Turned {
    program: Program,
    clock: PathBuf,
}

impl Turned {
    async fn start(deployment: &Deployment, shift: &str) -> Self {
        let clock = deployment.home.0.join(format!("clock{shift}"));
        fs::write(&clock, shift).expect("a file");
        let mut command = deployment.home.command(&["serve"]);
        command
            .envs(settings_of(
                deployment.servers,
                &deployment.app.database,
                &deployment.app.prefix,
            ))
            .env("LD_PRELOAD", libfaketime())
            .env("FAKETIME_TIMESTAMP_FILE", &clock)
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("DONT_FAKE_MONOTONIC", "1");
        let program = Program::serve_by(&deployment.home, command).await;
        let turned = Self { program, clock };
        // Otherwise nothing would be shown.
        assert!(
            turned.ahead().await.abs() > NEAR,
            "its clock goes right: {:?}",
            turned.ahead().await
        );
        turned
    }

    fn entrance(&self, app: &TestApp) -> Entrance {
        app.entrance().at(&self.program.base)
    }

    /// When it says that it answers.
    async fn date(&self) -> OffsetDateTime {
        let answer = reqwest::get(self.program.url("/healthz")).await;
        let headers = answer.expect("an answer").headers().clone();
        let date = headers["date"].to_str().expect("text");
        OffsetDateTime::parse(&date.replace("GMT", "+0000"), &Rfc2822).expect("a date")
    }

    async fn ahead(&self) -> time::Duration {
        self.date().await - OffsetDateTime::now_utc()
    }

    fn set(&self, shift: &str) {
        let draft = self.clock.with_extension("new");
        fs::write(&draft, shift).expect("a file");
        fs::rename(&draft, &self.clock).expect("renamed");
    }

    /// Turns the clock ahead while it runs.
    async fn turn_ahead(&self, shift: &str, ahead: time::Duration) {
        self.set(shift);
        wait_for!((self.ahead().await - ahead).abs() < NEAR);
    }

    /// Turns the clock back while it runs. The server that dates the answers goes on with the last
    /// date as long as the clock is behind it: that it stands still shows that the clock was turned.
    async fn turn_back(&self, shift: &str) {
        self.set(shift);
        eventually("the clock is turned back", async || {
            let before = self.date().await;
            tokio::time::sleep(Duration::from_millis(1_200)).await;
            (self.date().await == before).then_some(())
        })
        .await;
    }
}

/// One instance in this process, whose clock goes right, and the folder for the others.
struct Deployment {
    servers: &'static Servers,
    app: TestApp,
    home: Home,
}

impl Deployment {
    async fn start() -> Self {
        let servers = Servers::shared().await;
        Self {
            servers,
            app: TestApp::start_on(servers, Options::default()).await,
            home: Home::new(),
        }
    }
}

fn time_of(reply: &Reply, member: &str) -> OffsetDateTime {
    OffsetDateTime::parse(reply.text(member), &Rfc3339).expect("RFC 3339")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_ids_payments_and_tokens_do_not_follow_a_clock_that_is_a_day_off() {
    let deployment = Deployment::start().await;
    let app = &deployment.app;
    let mut turned = Vec::new();
    for shift in SHIFTS {
        turned.push(Turned::start(&deployment, shift).await);
    }
    let entrances: Vec<Entrance> = std::iter::once(app.entrance())
        .chain(turned.iter().map(|turned| turned.entrance(app)))
        .collect();
    tokio::join!(
        the_sale_opens_at_its_second(app, &entrances),
        ids_are_unique_and_dated_by_redis(app, &entrances),
        payments_expire_by_postgres(app, &entrances),
        tokens_live_as_long_as_they_say(app, &entrances),
    );
    for turned in turned {
        turned.program.terminate().await;
    }
    deployment.app.finish().await;
}

async fn the_sale_opens_at_its_second(app: &TestApp, entrances: &[Entrance]) {
    let opens_at = OffsetDateTime::now_utc() + time::Duration::seconds(2);
    let opens = json!({"opens_at": opens_at.format(&Rfc3339).expect("RFC 3339")});
    let sale = app.sale(100, opens).await;
    let waits = entrances.iter().cloned().map(|entrance| {
        let sale = sale.clone();
        async move {
            let (shopper, mut told_to_wait) = (entrance.shopper(), 0);
            eventually("the sale opens", async || {
                let reply = shopper.buy(&sale).await;
                if reply.is_accepted() {
                    return Some(());
                }
                reply.assert_problem(409, "not_open");
                told_to_wait += 1;
                None
            })
            .await;
            (told_to_wait, OffsetDateTime::now_utc())
        }
    });
    for (told_to_wait, opened_at) in join_all(waits).await {
        assert!(told_to_wait > 0, "it was open already");
        let late = opened_at - opens_at;
        assert!(late >= time::Duration::ZERO, "{late} too early");
        assert!(late < time::Duration::seconds(10), "{late} too late");
    }
    assert_eq!(app.assert_sound(&sale).await.live, entrances.len() as i64);
}

async fn ids_are_unique_and_dated_by_redis(app: &TestApp, entrances: &[Entrance]) {
    let sale = app.sale(1_000, json!({})).await;
    let buys = (0..20).flat_map(|_| entrances).cloned().map(|entrance| {
        let sale = sale.clone();
        async move {
            let shopper = entrance.shopper();
            let id = shopper.must_buy(&sale).await;
            (shopper, id)
        }
    });
    let winners = join_all(buys).await;
    for (_, id) in &winners {
        let made_at = ids::made_at(id.parse().expect("an id"));
        let off = (made_at - OffsetDateTime::now_utc()).abs();
        assert!(off < NEAR, "order {id} is dated {made_at}");
    }
    // Finds two orders under one id, too.
    app.assert_kept(&sale, &winners).await;
    app.assert_sound(&sale).await;
}

async fn payments_expire_by_postgres(app: &TestApp, entrances: &[Entrance]) {
    let patient = app.sale(10, json!({"payment_timeout_secs": 3_600})).await;
    let hasty = app.sale(10, json!({"payment_timeout_secs": 1})).await;
    let each = entrances.iter().cloned().map(|entrance| {
        let (patient, hasty) = (patient.clone(), hasty.clone());
        async move {
            let shopper = entrance.shopper();
            let id = shopper.must_buy(&patient).await;
            let order = shopper.until(&id, "pending_payment").await;
            let pay_by = order["pay_by"].as_str().expect("a time");
            let pay_by = OffsetDateTime::parse(pay_by, &Rfc3339).expect("RFC 3339");
            let left = pay_by - OffsetDateTime::now_utc();
            assert!(left.is_positive() && left <= NEAR, "{left} left to pay");
            shopper.pay(&id).await.assert(StatusCode::OK);

            let id = shopper.must_buy(&hasty).await;
            let began = Instant::now();
            shopper.until(&id, "expired").await;
            assert!(began.elapsed() < Duration::from_secs(20));
            shopper.pay(&id).await.assert_problem(409, "not_payable");
        }
    });
    join_all(each).await;
    assert_eq!(
        app.assert_sound(&patient).await.paid,
        entrances.len() as i64
    );
    assert_eq!(app.assert_sound(&hasty).await.live, 0);
}

async fn tokens_live_as_long_as_they_say(app: &TestApp, entrances: &[Entrance]) {
    let now = OffsetDateTime::now_utc();
    for entrance in entrances {
        let mut shopper = entrance.shopper();
        for (expires_in, status) in [(NEAR, StatusCode::OK), (-NEAR, StatusCode::UNAUTHORIZED)] {
            shopper.token = app.mint_until(shopper.user, now + expires_in);
            let reply = shopper.get("/api/v1/session").await;
            assert_eq!(
                reply.status, status,
                "expires in {expires_in}: {:#}",
                reply.body
            );
        }
        // What it mints itself lives for the week that it says, here and elsewhere.
        let opened = shopper.call(Method::POST, "/api/v1/session").await;
        opened.assert(StatusCode::CREATED);
        let life = time_of(&opened, "expires_at") - now;
        assert!((life - time::Duration::WEEK).abs() < NEAR, "{life} to live");
        shopper.token = opened.text("token").to_owned();
        for elsewhere in entrances {
            let reply = elsewhere.welcome(&shopper).get("/api/v1/session").await;
            reply.assert(StatusCode::OK);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_in_the_middle_of_a_rush_disturbs_nobody() {
    let deployment = Deployment::start().await;
    let app = &deployment.app;
    let turned = Turned::start(&deployment, "-1d").await;
    let sale = app.sale(50_000, json!({})).await;
    let entrances = [app.entrance(), turned.entrance(app)];
    let rush = Rush::start_at(entrances.into_iter(), &sale, 4, &[]);
    rush.until_accepted(40).await;
    turned.turn_ahead("+0", time::Duration::ZERO).await;
    rush.until_accepted(40).await;
    turned.turn_ahead("+1d", time::Duration::DAY).await;
    rush.until_accepted(40).await;
    turned.turn_back("-1d").await;
    rush.until_accepted(40).await;
    let told = rush.end().await;
    assert_eq!(told.shed, 0, "a clock shut the gate");
    let kept = app.assert_kept(&sale, &told.winners).await;
    assert_eq!(kept["pending_payment"], told.winners.len());
    app.assert_sound(&sale).await;
    turned.program.terminate().await;
    deployment.app.finish().await;
}
