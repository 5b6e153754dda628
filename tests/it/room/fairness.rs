//! Nobody gains by coming early, often, or in many tabs; later ones are served as they came.

use super::{all_join, draw_now, join, judge, look, path, sale, until};
use crate::support::app::{Options, Shopper, TestApp, all_at_once};
use crate::support::{
    Servers,
    plant::{DRAW_BY_ARRIVAL, plant},
};
use reqwest::StatusCode;
use serde_json::json;
use std::collections::BTreeSet;
use time::Duration;

const PEOPLE: usize = 2_000;

/// People join one after the other, at one of two instances, and are drawn. The place of each, in the order of
/// their arrival. Nobody's turn comes: the sale is not open yet.
async fn opening(app: &TestApp, other: &TestApp, sale: &str) -> (Vec<Shopper>, Vec<u64>) {
    let mut people = Vec::new();
    for number in 0..PEOPLE {
        let shopper = [app, other][number % 2].shopper();
        let place = join(&shopper, sale).await;
        assert_eq!(place.text("state"), "early");
        assert!(place.body["position"].is_null(), "no place before the draw");
        people.push(shopper);
    }
    draw_now(app, sale).await;
    let mut places = Vec::new();
    for shopper in &people {
        let place = until(shopper, sale, "waiting").await;
        places.push(place["position"].as_u64().expect("a position") - 1);
    }
    let all: BTreeSet<u64> = places.iter().copied().collect();
    assert_eq!(all.len(), PEOPLE, "everybody has a place of their own");
    assert_eq!(all.last(), Some(&(PEOPLE as u64 - 1)));
    (people, places)
}

async fn openings(app: TestApp, count: usize) -> Option<String> {
    let other = app.another(Options::default()).await;
    let mut sales = Vec::new();
    for _ in 0..count {
        sales.push(sale(&app, 10, Duration::HOUR, json!({})).await);
    }
    let drawn = sales.iter().map(|sale| opening(&app, &other, sale));
    let drawn = futures_util::future::join_all(drawn).await;
    let places: Vec<Vec<u64>> = drawn.into_iter().map(|(_, places)| places).collect();
    other.stop().await;
    app.finish().await;
    judge::unfairness(&places)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arrival_within_the_draw_gives_no_advantage() {
    assert_eq!(openings(TestApp::start().await, 4).await, None);
}

/// The test above would notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draw_by_arrival_is_noticed() {
    let servers = Servers::own().await;
    let app = TestApp::start_on(&servers, Options::default()).await;
    plant(&mut app.redis().await, DRAW_BY_ARRIVAL).await;
    let found = openings(app, 1).await;
    assert!(found.is_some_and(|found| found.contains("correlate")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn later_ones_stand_in_the_order_of_their_arrival_behind_everybody_who_was_early() {
    let app = TestApp::start().await;
    let other = app.another(Options::default()).await;
    let sale = sale(&app, 10, Duration::HOUR, json!({})).await;
    let early: Vec<_> = (0..20).map(|_| app.shopper()).collect();
    all_join(&early, &sale).await;
    draw_now(&app, &sale).await;
    until(&early[0], &sale, "waiting").await;
    for number in 0..100u64 {
        let shopper = [&app, &other][number as usize % 2].shopper();
        let place = join(&shopper, &sale).await;
        assert_eq!(place.text("state"), "waiting");
        assert_eq!(place.body["position"], 21 + number);
        let again = look(&shopper, &sale).await;
        assert_eq!(again.body["position"], 21 + number);
    }
    other.stop().await;
    app.finish().await;
}

/// Fifty tabs at two instances, before the draw and after it; and somebody else after them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_user_with_many_tabs_has_one_place() {
    let app = TestApp::start().await;
    let other = app.another(Options::default()).await;
    let sale = sale(&app, 10, Duration::HOUR, json!({})).await;
    let (tab, elsewhere) = {
        let shopper = app.shopper();
        (shopper.clone(), other.as_shopper(&shopper))
    };
    let storm = async || {
        all_at_once((0..50).map(|number| {
            let (tab, sale) = (
                if number % 2 == 0 { &tab } else { &elsewhere }.clone(),
                sale.clone(),
            );
            async move { join(&tab, &sale).await }
        }))
        .await
    };
    for place in storm().await {
        assert_eq!(place.body["state"], "early");
    }
    let one = join(&app.shopper(), &sale).await;
    assert_eq!(
        one.body["joined"].as_u64().map(|joined| joined <= 2),
        Some(true)
    );
    draw_now(&app, &sale).await;
    until(&tab, &sale, "waiting").await;
    let late = app.shopper();
    wait_for!(look(&elsewhere, &sale).await.text("state") == "waiting");
    let positions: BTreeSet<u64> = storm()
        .await
        .iter()
        .map(|place| place.body["position"].as_u64().expect("a position"))
        .collect();
    assert_eq!(positions.len(), 1, "{positions:?}");
    assert_eq!(
        join(&late, &sale).await.body["position"],
        3,
        "two people were early"
    );
    other.stop().await;
    app.finish().await;
}

/// Coming back, or asking whether one may, changes nothing; and who never joined has no place.
#[tokio::test]
async fn looking_is_not_joining() {
    let app = TestApp::start().await;
    let sale = sale(&app, 10, Duration::HOUR, json!({})).await;
    let shopper = app.shopper();
    for _ in 0..3 {
        look(&shopper, &sale)
            .await
            .assert_problem(404, "not_in_waiting_room");
    }
    let reply = app.get(&path(&sale)).await;
    assert_eq!(reply.status, StatusCode::UNAUTHORIZED);
    join(&shopper, &sale).await;
    look(&shopper, &sale).await.assert(StatusCode::OK);
    app.finish().await;
}
