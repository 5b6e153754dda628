//! Nobody gains by coming early, often, or in many tabs; later ones are served as they came.

use super::*;
use flash_sale::access::waiting_room::draw::Draw;

const PEOPLE: usize = 300;

/// The seed of a draw, and whether it gives each their place: `draw::tests` show that it is fair.
async fn opening(app: &TestApp, other: &TestApp) -> (Vec<u8>, bool) {
    let sale = sale(app, 10, IN_AN_HOUR, json!({})).await;
    let people = Vec::from_iter((0..PEOPLE).map(|number| [app, other][number % 2].shopper()));
    for shopper in &people {
        join(shopper, &sale).await.assert_has(json!({"state": "early", "position": null}));
    }
    assert_eq!(field::<Vec<u8>>(app, &sale, "seed").await, None, "nobody can know it yet");
    draw_now(app, &sale).await;
    let places = positions(&people, &sale).await.into_iter().map(|position| position - 1);
    let seed: Vec<u8> = field(app, &sale, "seed").await.expect("a seed");
    let draw = Draw::new(seed[..].try_into().expect("32 bytes"), PEOPLE as u64);
    let is_drawn = (0..PEOPLE as u64).map(|arrival| draw.place(arrival)).eq(places);
    (seed, is_drawn)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arrival_within_the_draw_gives_no_advantage() {
    let (app, other) = TestApp::pair().await;
    let (one, another) = tokio::join!(opening(&app, &other), opening(&app, &other));
    assert!(one.1 && another.1);
    assert_ne!(one.0, another.0, "each sale has a seed of its own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draw_by_arrival_is_noticed() {
    let (_servers, [app, other]) = own_pair().await;
    plant(&mut app.redis().await, DRAW_BY_ARRIVAL).await;
    assert!(!opening(&app, &other).await.1);
}
