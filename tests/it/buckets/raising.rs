//! A sale is divided into more buckets while it sells.

use super::{id_of, in_each};
use crate::{
    cli::{Home, settings_of},
    support::{
        Servers,
        app::{Options, TestApp, eventually},
        load::{Rush, crowd},
    },
};
use flash_sale::{app::Role, domain::Admission, fail_point::POINTS, worker::rebuild::divide};
use reqwest::{Method, StatusCode};
use serde_json::json;
use std::time::{Duration, Instant};

async fn raise(app: &TestApp, sale: &str, buckets: i64) {
    let path = format!("/api/v1/admin/sales/{sale}");
    let body = Some(json!({"buckets": buckets}));
    let reply = app.admin(Method::PATCH, &path, body).await;
    reply.assert(StatusCode::OK);
    assert_eq!(reply.body["buckets"], buckets);
}

/// Two instances sell before, during and after, and only one of them is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_is_divided_under_load_and_everybody_keeps_their_place() {
    let app = TestApp::start().await;
    let second = app.another(Options::default()).await;
    let sale = app.sale(50_000, json!({})).await;
    let regulars = crowd(&app, &sale, 6).await;
    for (shopper, id) in &regulars {
        shopper.until(id, "pending_payment").await;
    }
    let rush = Rush::start(&[&app, &second], &sale, 6, &regulars);
    for buckets in [4, 7, 64] {
        rush.until_accepted(60).await;
        let began = Instant::now();
        raise(&app, &sale, buckets).await;
        println!("{buckets} buckets after {:?}", began.elapsed());
    }
    rush.until_accepted(60).await;
    let told = rush.end().await;
    assert!(told.reminded > 0, "the regulars never got an answer");
    let statuses = app.assert_kept(&sale, &told.winners).await;
    assert_eq!(statuses.keys().collect::<Vec<_>>(), ["pending_payment"]);
    let audit = app.assert_sound(&sale).await;
    assert!(audit.live >= told.winners.len() as i64);
    assert_eq!(audit.redis.buckets, 64);
    println!("{} told 202, {} told 503", told.winners.len(), told.shed);
    second.stop().await;
    app.finish().await;
}

/// How long somebody waits who asks again and again, until the sale sells again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_long_while_a_sale_is_divided() {
    let app = TestApp::start().await;
    let sale = app.sale(50_000, json!({})).await;
    crowd(&app, &sale, 200).await;
    let (shop, id) = (app.shop.clone(), id_of(&sale));
    let dividing = tokio::spawn(async move { divide(&shop, id, 16).await });
    let (mut longest, mut sold_at) = (Duration::ZERO, Instant::now());
    while !dividing.is_finished() {
        let user = flash_sale::domain::UserId::random();
        if let Ok(Admission::Accepted { .. }) = app.shop.purchase(id, user, None).await {
            longest = longest.max(sold_at.elapsed());
            sold_at = Instant::now();
        }
    }
    dividing.await.expect("no panic").expect("divided");
    println!("the longest pause between two purchases: {longest:?}");
    assert!(longest < Duration::from_secs(5), "{longest:?}");
    app.assert_sound(&sale).await;
    app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_divided_so_is_refused_and_nothing_changes() {
    let app = TestApp::start().await;
    let sale = app.sale(40, json!({"buckets": 4})).await;
    let path = format!("/api/v1/admin/sales/{sale}");
    for buckets in [-1, 0, 1, 3, 257] {
        let body = Some(json!({"title": "another", "buckets": buckets}));
        let reply = app.admin(Method::PATCH, &path, body).await;
        reply.assert_problem(422, "invalid");
        let body = json!({"title": "a", "price_cents": 1, "stock": 5, "buckets": buckets});
        let reply = app
            .admin(Method::POST, "/api/v1/admin/sales", Some(body))
            .await;
        if (1..=256).contains(&buckets) {
            reply.assert(StatusCode::CREATED);
        } else {
            reply.assert_problem(422, "invalid");
        }
    }
    let now = app.get(&format!("/api/v1/sales/{sale}")).await;
    assert_eq!(
        (now.text("title"), &now.body["buckets"]),
        ("a thing", &json!(4))
    );
    // The same number changes nothing, and costs no epoch.
    raise(&app, &sale, 4).await;
    assert_eq!(in_each(&app, &sale, 4, "epoch").await, [Some(1); 4]);
    app.admin(
        Method::PATCH,
        "/api/v1/admin/sales/999999999",
        Some(json!({"buckets": 2})),
    )
    .await
    .assert_problem(404, "sale_not_found");
    app.finish().await;
}

/// Dies at every point of the way, with orders that are only in the log of the old division.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dividing_may_break_off_anywhere() {
    let points = POINTS.iter().filter(|point| point.starts_with("rebuild."));
    // The last two belong to a rebuild of everything.
    for point in
        points.filter(|point| !point.ends_with("floor_raised") && !point.ends_with("approved"))
    {
        let app = TestApp::start_with(Options::without_writer()).await;
        let sale = app.sale(50, json!({})).await;
        let winners = crowd(&app, &sale, 20).await;
        assert_eq!(winners.len(), 20);
        app.shop
            .fail_points
            .set(&format!("{point}=error"))
            .expect("a point");
        let path = format!("/api/v1/admin/sales/{sale}");
        let body = Some(json!({"buckets": 4}));
        let reply = app.admin(Method::PATCH, &path, body).await;
        // What fails for all sales together is tried for each once more.
        let survived = *point == "rebuild.drained" && reply.status == StatusCode::OK;
        assert!(
            survived || reply.status.is_server_error(),
            "{point}: {}",
            reply.status
        );
        eventually("it sells again", async || {
            let audit = app.audit(&sale).await;
            (audit.redis.epoch == Some(audit.postgres.epoch) && audit.ok).then_some(())
        })
        .await;
        eventually("it can be divided", async || {
            let body = Some(json!({"buckets": 8}));
            let reply = app.admin(Method::PATCH, &path, body).await;
            (reply.status == StatusCode::OK).then_some(())
        })
        .await;
        let kept = app.assert_kept(&sale, &winners).await;
        assert_eq!(kept["pending_payment"], 20, "{point}: {kept:?}");
        let worker = Options {
            role: Role::Worker,
            ..Options::default()
        };
        let worker = app.another(worker).await;
        eventually("the rest is sold", async || {
            crowd(&app, &sale, 40).await;
            (app.quiet_audit(&sale).await.remaining == 0).then_some(())
        })
        .await;
        let audit = app.assert_sound(&sale).await;
        assert_eq!((audit.live, audit.redis.buckets), (50, 8), "{point}");
        // Nothing is left of the undivided sale.
        assert_eq!(in_whole(&app, &sale).await, 0, "{point}");
        worker.stop().await;
        app.finish().await;
    }
}

/// How many keys the undivided sale has.
async fn in_whole(app: &TestApp, sale: &str) -> usize {
    let state = flash_sale::redis::Keys::new(&app.prefix).state(id_of(sale));
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg(format!("{state}*"))
        .query_async(&mut app.redis().await)
        .await
        .expect("KEYS");
    keys.len()
}

/// By the command, while a server sells.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_divides_a_sale_from_the_command_line() {
    let servers = Servers::own().await;
    let app = TestApp::start_on(&servers, Options::default()).await;
    let sale = app.sale(50, json!({})).await;
    let winners = crowd(&app, &sale, 10).await;
    let home = Home::new();
    let rebuild = async |arguments: &[&str]| {
        let mut command = home.command(&[&["rebuild", "--sale", &sale], arguments].concat());
        command.envs(settings_of(&servers, &app.database, &app.prefix));
        home.finish(command).await
    };
    rebuild(&["--buckets", "5"]).await.assert_done();
    let fewer = rebuild(&["--buckets", "2"]).await;
    assert_eq!(fewer.code, Some(2), "{}", fewer.stderr);
    assert!(
        fewer.stderr.contains("can only be raised"),
        "{}",
        fewer.stderr
    );
    app.assert_kept(&sale, &winners).await;
    eventually("the server has heard of it", async || {
        let now = app.get(&format!("/api/v1/sales/{sale}")).await;
        (now.body["buckets"] == 5).then_some(())
    })
    .await;
    assert_eq!(crowd(&app, &sale, 60).await.len(), 40);
    assert_eq!(app.assert_sound(&sale).await.live, 50);
    app.stop().await;
}
