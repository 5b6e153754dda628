//! Tokens that are none: nothing has changed by them.

use super::{errors::Stage, within_patience};
use crate::support::app::ADMIN_TOKEN;
use flash_sale::{auth::TokenSigner, domain::UserId};
use time::OffsetDateTime;

#[tokio::test]
async fn a_bad_token_is_nobody() {
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
    let order = format!("/api/v1/orders/{}", stage.order);
    for (method, path) in [
        ("GET", "/api/v1/session"),
        ("POST", &format!("/api/v1/sales/{}/orders", stage.sale)),
        ("GET", "/api/v1/orders"),
        ("GET", &order),
        ("GET", &format!("{order}/events")),
        ("POST", &format!("{order}/pay")),
        ("POST", &format!("{order}/cancel")),
    ] {
        for (name, value) in &headers {
            let reply = within_patience(app.ask(method, path).header(name, value)).await;
            let what = format!("{method} {path} {}", String::from_utf8_lossy(value));
            reply.assert_problem_at(&what, 401, "unauthenticated");
            assert!(reply.headers.contains_key("www-authenticate"));
        }
    }
    stage.assert_unchanged().await;
    stage.app.finish().await;
}
