//! Nobody is refused while another bucket has a unit, and a loan that breaks off anywhere is finished.

use super::{id_of, in_each, user_in};
use crate::{
    cli::{Home, Program, SECRET, settings_of},
    support::{
        Servers,
        app::{Options, TestApp, eventually},
    },
};
use flash_sale::{
    auth::TokenSigner,
    domain::{Admission, Bucket, UserId},
    fail_point::POINTS,
    sale::Shop,
};
use futures_util::future::join_all;
use reqwest::StatusCode;
use serde_json::json;
use std::{collections::HashSet, sync::Arc};
use time::{Duration, OffsetDateTime};

/// Each of these buys once, all at the same time.
async fn all_buy(shop: &Arc<Shop>, sale: &str, users: &[UserId]) -> Vec<Admission> {
    let buying = users.iter().map(|user| {
        let (shop, sale, user) = (shop.clone(), id_of(sale), *user);
        tokio::spawn(async move { shop.purchase(sale, user, None).await })
    });
    let answers = join_all(buying).await.into_iter();
    answers
        .map(|answer| answer.expect("no panic").expect("an answer"))
        .collect()
}

fn accepted(answers: &[Admission]) -> usize {
    let is_accepted = |answer: &&Admission| matches!(answer, Admission::Accepted { .. });
    answers.iter().filter(is_accepted).count()
}

fn strangers(count: usize) -> Vec<UserId> {
    (0..count).map(|_| UserId::random()).collect()
}

/// I5: fewer units than buckets, and many more people.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_phones_in_64_buckets_are_ten_orders_of_ten_thousand_people() {
    let app = TestApp::start().await;
    let second = app.another(Options::default()).await;
    let sale = app.sale(10, json!({"buckets": 64})).await;
    let (here, there) = (strangers(5_000), strangers(5_000));
    let (one, other) = tokio::join!(
        all_buy(&app.shop, &sale, &here),
        all_buy(&second.shop, &sale, &there)
    );
    assert_eq!(accepted(&one) + accepted(&other), 10);
    let rest = one.iter().chain(&other);
    let refused = rest.filter(|answer| **answer == Admission::SoldOut);
    assert_eq!(refused.count(), 9_990);
    assert_eq!(app.assert_sound(&sale).await.remaining, 0);
    second.stop().await;
    app.finish().await;
}

/// I5 again, from the other side: whoever comes gets a unit for as long as there is one, wherever it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_buyers_of_one_bucket_get_the_units_of_all() {
    let app = TestApp::start().await;
    let sale = app.sale(100, json!({"buckets": 8})).await;
    let bucket = Bucket::all(id_of(&sale), 8).nth(5).expect("eight");
    for _ in 0..100 {
        let answer = app.shop.purchase(bucket.sale, user_in(bucket), None).await;
        let answer = answer.expect("an answer");
        assert!(matches!(answer, Admission::Accepted { .. }), "{answer:?}");
    }
    let answer = app.shop.purchase(bucket.sale, user_in(bucket), None).await;
    assert_eq!(answer.expect("an answer"), Admission::SoldOut);
    let audit = app.assert_sound(&sale).await;
    assert_eq!((audit.live, audit.redis.buckets), (100, 8));
    assert_eq!(audit.redis.in_flight, Some(0));
    app.finish().await;
}

/// Units that come back do so to their buyer's bucket, and are anybody's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_that_comes_back_is_sold_to_somebody_of_another_bucket() {
    let app = TestApp::start().await;
    let sale = app.sale(6, json!({"buckets": 4})).await;
    let mut holders = Vec::new();
    for _ in 0..6 {
        let shopper = app.shopper();
        let order = shopper.must_buy(&sale).await;
        shopper.until(&order, "pending_payment").await;
        holders.push((shopper, order));
    }
    for (shopper, order) in holders {
        app.shopper()
            .buy(&sale)
            .await
            .assert_problem(409, "sold_out");
        shopper.cancel(&order).await.assert(StatusCode::OK);
        eventually("the unit is sold again", async || {
            let reply = app.shopper().buy(&sale).await;
            (reply.status == StatusCode::ACCEPTED).then_some(())
        })
        .await;
    }
    assert_eq!(app.assert_sound(&sale).await.live, 6);
    app.finish().await;
}

fn points() -> impl Iterator<Item = &'static str> {
    let points = POINTS.iter().copied();
    points.filter(|point| point.starts_with("loan."))
}

/// A borrower that fails, panics or stands still between any two steps, and another instance.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loan_that_breaks_off_anywhere_is_finished_and_nothing_is_doubled() {
    for point in points() {
        for action in ["error*3", "panic*3", "pause:300*3"] {
            let app = TestApp::start().await;
            let second = app.another(Options::default()).await;
            let sale = app.sale(40, json!({"buckets": 4})).await;
            let armed = format!("{point}={action}");
            app.shop.fail_points.set(&armed).expect("a point");
            let mut sold = HashSet::new();
            // More than their bucket has, so that it is here that somebody borrows.
            let bucket = Bucket::all(id_of(&sale), 4).next().expect("four");
            for _ in 0..14 {
                let answer = app.shop.purchase(bucket.sale, user_in(bucket), None).await;
                if let Ok(Admission::Accepted { order_id, .. }) = answer {
                    sold.insert(order_id);
                }
            }
            eventually("all is sold", async || {
                let id = id_of(&sale);
                for shop in [&app.shop, &second.shop] {
                    let buying = strangers(30).into_iter();
                    let buying =
                        buying.map(|user| async move { shop.purchase(id, user, None).await });
                    for answer in join_all(buying).await.into_iter().flatten() {
                        if let Admission::Accepted { order_id, .. } = answer {
                            assert!(sold.insert(order_id), "{armed}");
                        }
                    }
                }
                (app.audit(&sale).await.remaining == 0).then_some(())
            })
            .await;
            assert!(
                app.shop.fail_points.fired(point) > 0,
                "{armed}: never came by"
            );
            eventually("every loan is finished", async || {
                let lent = in_each(&app, &sale, 4, "lent").await;
                lent.into_iter()
                    .flatten()
                    .all(|lent| lent == 0)
                    .then_some(())
            })
            .await;
            let audit = app.assert_sound(&sale).await;
            // A buyer who heard 503 may have an order all the same.
            assert_eq!(audit.live, 40, "{armed}: {audit:#?}");
            assert!(sold.len() <= 40, "{armed}");
            second.stop().await;
            app.finish().await;
        }
    }
}

/// A process that is gone for good between two steps: the units are in no bucket, and the next process sells
/// them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_borrower_that_is_killed_loses_no_unit() {
    let servers = Servers::own().await;
    for point in points() {
        let app = TestApp::start_on(&servers, Options::default()).await;
        let sale = app.sale(12, json!({"buckets": 4})).await;
        let bucket = Bucket::all(id_of(&sale), 4).next().expect("four");
        for _ in 0..3 {
            let bought = app.shop.purchase(bucket.sale, user_in(bucket), None).await;
            assert!(
                matches!(bought, Ok(Admission::Accepted { .. })),
                "{bought:?}"
            );
        }
        let prefix = app.prefix.clone();
        let database = app.stop().await;

        let home = Home::new();
        let mut command = home.command(&["serve"]);
        command.envs(settings_of(&servers, &database, &prefix));
        command.env("FAIL_POINTS", format!("{point}=exit"));
        let mut program = Program::serve_by(&home, command).await;
        let tokens = TokenSigner::new(SECRET.as_bytes()).expect("long enough");
        let until = OffsetDateTime::now_utc() + Duration::HOUR;
        let asked = reqwest::Client::new()
            .post(program.url(&format!("/api/v1/sales/{sale}/orders")))
            .bearer_auth(tokens.mint(user_in(bucket), "tester", until))
            .send()
            .await;
        assert!(asked.is_err(), "{point}: it is dead");
        assert_eq!(program.end().await, None, "{point}: by a signal");

        let app = TestApp::launch(database, servers.redis.url(), prefix, Options::default()).await;
        let audit = app.audit(&sale).await;
        assert!(audit.ok && audit.remaining == 9, "{point}: {audit:#?}");
        let answers = all_buy(&app.shop, &sale, &strangers(60)).await;
        assert_eq!(accepted(&answers), 9, "{point}");
        assert_eq!(app.assert_sound(&sale).await.live, 12, "{point}");
        app.stop().await;
    }
}

/// What the audit would say if the loans were wrong: each planted bug is found by it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_audit_names_units_that_loans_have_made_up() {
    for (bug, point) in [
        ("bug.give_before_taking", "loan.lent=error"),
        ("bug.receive_twice", "loan.settled=error"),
    ] {
        let app = TestApp::start().await;
        let sale = app.sale(8, json!({"buckets": 4})).await;
        let bucket = Bucket::all(id_of(&sale), 4).next().expect("four");
        for _ in 0..2 {
            let bought = app.shop.purchase(bucket.sale, user_in(bucket), None).await;
            assert!(
                matches!(bought, Ok(Admission::Accepted { .. })),
                "{bought:?}"
            );
        }
        let armed = format!("{bug}=on;{point}");
        app.shop.fail_points.set(&armed).expect("a bug");
        let _ = app.shop.purchase(bucket.sale, user_in(bucket), None).await;
        eventually(&format!("{bug} is found"), async || {
            let audit = app.audit(&sale).await;
            let found = audit.problems.iter();
            let named = found
                .filter(|problem| problem.starts_with("I4 broken between the buckets"))
                .count();
            (!audit.ok && named == 1).then_some(())
        })
        .await;
        app.stop().await;
    }
}

/// What I5's own checks would say if a dry bucket were taken for a dry sale.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_while_another_bucket_has_units_is_seen_in_the_books() {
    let app = TestApp::start().await;
    let sale = app.sale(10, json!({"buckets": 64})).await;
    let bug = "bug.sold_out_from_one_bucket=on*always";
    app.shop.fail_points.set(bug).expect("a bug");
    let answers = all_buy(&app.shop, &sale, &strangers(20)).await;
    let refused = answers.contains(&Admission::SoldOut);
    let left = app.quiet_audit(&sale).await.remaining;
    assert!(refused && left > 0, "as if nobody had looked: {left} left");
    app.finish().await;
}
