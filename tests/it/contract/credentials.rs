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
    // That no other text or header is a token: `auth::tests`, `http::extract::tests`.
    let bad = [
        app.mint_until(user, now - time::Duration::SECOND),
        forged.mint(user, "tester", now + time::Duration::HOUR),
        format!("{header}.{other_claims}.{signature}"),
        format!("eyJhbGciOiJub25lIn0.{claims}."), // {"alg":"none"}
    ];
    let mut headers = vec![("accept", "*/*".to_owned())]; // no token at all
    for token in &bad {
        headers.push(("authorization", format!("Bearer {token}")));
        headers.push(("cookie", format!("session={token}")));
    }
    for route in Route::all(&stage.sale, &stage.order).filter(|route| route.who == "shopper") {
        for (name, value) in &headers {
            let reply = within_patience(route.ask(app).header(name, value)).await;
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
