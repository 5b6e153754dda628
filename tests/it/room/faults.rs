//! What a crash of an instance and a loss of Redis cost.

use super::{admission, all_join, field, join, look, path, sale, turns::buy, until};
use crate::support::{
    Servers,
    app::{Options, Shopper, TestApp, eventually},
};
use reqwest::StatusCode;
use serde_json::json;
use std::collections::BTreeMap;
use time::Duration;

fn soon() -> Duration {
    Duration::seconds(-1)
}

async fn positions(people: &[Shopper], sale: &str) -> BTreeMap<usize, u64> {
    let mut positions = BTreeMap::new();
    for (number, shopper) in people.iter().enumerate() {
        let place = look(shopper, sale).await;
        if let Some(position) = place.body["position"].as_u64() {
            positions.insert(number, position);
        }
    }
    positions
}

/// The instance at which everybody joined goes; the other one knows all places, and the queue goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn places_outlive_the_instance_that_gave_them() {
    let app = TestApp::start().await;
    let gone = app.another(Options::default()).await;
    let sale = sale(&app, 100, Duration::HOUR, json!({})).await;
    let people: Vec<Shopper> = (0..50).map(|_| gone.shopper()).collect();
    all_join(&people, &sale).await;
    super::draw_now(&app, &sale).await;
    until(&people[0], &sale, "waiting").await;
    let before = positions(&people, &sale).await;
    assert_eq!(before.len(), 50);
    gone.stop().await;
    let people: Vec<Shopper> = people
        .iter()
        .map(|shopper| app.as_shopper(shopper))
        .collect();
    until(&people[0], &sale, "waiting").await;
    assert_eq!(positions(&people, &sale).await, before);
    app.finish().await;
}

/// Redis is killed in the middle and comes back with its data: nobody loses their place, and turns go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn places_outlive_a_restart_of_redis() {
    let servers = Servers::own().await;
    let app = TestApp::start_on(&servers, Options::default()).await;
    let sale = sale(&app, 1_000, Duration::HOUR, json!({})).await;
    let people: Vec<Shopper> = (0..30).map(|_| app.shopper()).collect();
    all_join(&people, &sale).await;
    super::draw_now(&app, &sale).await;
    until(&people[0], &sale, "waiting").await;
    let before = positions(&people, &sale).await;
    servers.redis.kill(); // it is started again
    eventually(
        "the place is back, and until then nobody hears anything wrong",
        async || {
            let place = look(&people[0], &sale).await;
            if place.status != StatusCode::OK {
                place.assert_problem(503, "unavailable");
                assert!(!place.header("retry-after").is_empty());
            }
            (place.status == StatusCode::OK).then_some(())
        },
    )
    .await;
    assert_eq!(positions(&people, &sale).await, before);
    app.finish().await;
}

/// Redis loses everything after the opening: an admission that was given still buys, and the others join again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_loss_admissions_stand_and_the_others_are_drawn_anew() {
    let servers = Servers::own().await;
    let app = TestApp::start_on(&servers, Options::default()).await;
    let room = json!({"overbooking_percent": 0, "turn_secs": 600});
    let sale = sale(&app, 2, soon(), room).await;
    let lucky = app.shopper();
    join(&lucky, &sale).await;
    let token = admission(&lucky, &sale).await;
    let people: Vec<Shopper> = (0..5).map(|_| app.shopper()).collect();
    all_join(&people, &sale).await;
    let url = app.url(&format!("{}/events", path(&sale)));
    let followed = app
        .client
        .get(url)
        .bearer_auth(&people[0].token)
        .send()
        .await;
    let mut followed = followed.expect("an answer");

    app.in_redis::<()>(&mut redis::cmd("FLUSHALL")).await;
    eventually("the place is gone, and said to be", async || {
        let place = look(&people[1], &sale).await;
        (place.status == StatusCode::NOT_FOUND)
            .then(|| place.assert_problem(404, "not_in_waiting_room"))
    })
    .await;
    eventually("purchases are judged again", async || {
        let bought = buy(&lucky, &sale, &token).await;
        (bought.is_accepted()).then_some(())
    })
    .await;
    // Who follows is put back by the stream itself.
    eventually("a new place", async || {
        let _ = tokio::time::timeout(std::time::Duration::from_millis(20), followed.chunk()).await;
        (look(&people[0], &sale).await.status == StatusCode::OK).then_some(())
    })
    .await;
    for shopper in &people[1..] {
        let place = join(shopper, &sale).await;
        assert!(["early", "waiting", "turn"].contains(&place.text("state")));
    }
    eventually(
        "one of them has the turn for the unit that is left",
        async || {
            field(&app, &sale, "frontier")
                .await
                .filter(|frontier| *frontier == 1)
        },
    )
    .await;
    app.finish().await;
}
