//! Tokens that are none, and those of somebody else: they show nothing and change nothing.

use super::{errors::Stage, *};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_token_is_nobody_and_a_good_one_shows_no_order_of_another() {
    let stage = Stage::new().await;
    let (app, user, good) = (&stage.app, stage.shopper.user, &stage.shopper.token);
    let now = OffsetDateTime::now_utc();
    let [header, claims, signature] = good.split('.').collect::<Vec<_>>()[..] else {
        panic!("three parts")
    };
    let forged = TokenSigner::new(b"the secret of somebody else, long").expect("long enough");
    let other = app.mint(UserId::random());
    let other_claims = other.split('.').nth(1).expect("claims");
    // Each kind once: that no other text is a token is shown in `auth::tests`.
    let bad = [
        app.mint_until(user, now - time::Duration::SECOND),
        forged.mint(user, "tester", now + time::Duration::HOUR),
        good[..good.len() - 1].to_owned(),
        format!("{good}x"),
        format!("{header}.{other_claims}.{signature}"),
        format!("eyJhbGciOiJub25lIn0.{claims}."), // {"alg":"none"}
        "x".repeat(4_000),
        ADMIN_TOKEN.to_owned(),
    ];
    let mut headers: Vec<(&str, Vec<u8>)> = vec![
        ("accept", "*/*".into()), // no token at all
        ("authorization", good.clone().into()),
        ("authorization", format!("Basic {good}").into()),
        ("authorization", format!("Bearer{good}").into()),
        ("authorization", "".into()),
        ("authorization", b"Bearer \xff\xfe".into()),
        ("cookie", b"session=\xff; session=".into()),
        ("cookie", format!("SESSION={good}").into()),
    ];
    for token in &bad {
        headers.push(("authorization", format!("Bearer {token}").into()));
        headers.push(("cookie", format!("session={token}").into()));
    }
    for route in Route::all(&stage.sale, &stage.order).filter(|route| route.who == "shopper") {
        for (name, value) in &headers {
            let reply = within_patience(route.ask(app).header(name, value)).await;
            let value = String::from_utf8_lossy(value);
            let what = format!("{} {} {value}", route.method, route.path);
            reply.assert_problem_at(&what, 401, "unauthenticated");
            assert!(reply.headers.contains_key("www-authenticate"));
        }
    }
    let thief = app.shopper();
    for id in [stage.order.as_str(), "1", UNKNOWN] {
        for route in Route::all("", id).filter(|route| route.path.contains("/orders/")) {
            let stolen = route.ask(app).bearer(&thief.token);
            within_patience(stolen).await.assert_problem(404, "order_not_found");
            within_patience(route.ask(app)).await.assert_problem(401, "unauthenticated");
        }
    }
    stage.assert_unchanged().await;
}
