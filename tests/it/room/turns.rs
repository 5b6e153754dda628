//! Turns begin at the rate and for the stock that there is, on any number of instances; and everybody hears at
//! once that nothing is left.

use super::{admission, all_join, join, look, path, pause, sale, until};
use crate::support::app::{Options, PATIENCE, Shopper, TestApp, all_at_once, eventually};
use crate::support::{
    Servers,
    plant::{LET_EVERYBODY_IN, plant},
};
use reqwest::{Response, StatusCode};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn soon() -> time::Duration {
    time::Duration::seconds(-1)
}

/// Buys with the token of somebody whose turn it is.
pub async fn buy(shopper: &Shopper, sale: &str, token: &str) -> crate::support::app::Reply {
    shopper
        .post_with(
            &format!("/api/v1/sales/{sale}/orders"),
            &[("Admission-Token", token)],
        )
        .await
}

async fn states(people: &[Shopper], sale: &str) -> Vec<String> {
    let mut states = Vec::new();
    for shopper in people {
        let place = look(shopper, sale).await;
        states.push(place.text("state").to_owned());
    }
    states
}

fn count(states: &[String], state: &str) -> usize {
    states.iter().filter(|found| *found == state).count()
}

/// Without overbooking there are never more turns than units: who has one gets one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_are_as_many_turns_as_units_and_one_more_for_each_that_is_not_used() {
    let app = TestApp::start().await;
    let other = app.another(Options::default()).await;
    let room = json!({"overbooking_percent": 0, "turn_secs": 5});
    let sale = sale(&app, 5, soon(), room).await;
    let people: Vec<Shopper> = (0..12)
        .map(|number| [&app, &other][number % 2].shopper())
        .collect();
    all_join(&people, &sale).await;
    let began = eventually("five turns begin", async || {
        let states = states(&people, &sale).await;
        assert!(count(&states, "turn") <= 5, "{states:?}");
        (count(&states, "turn") == 5).then(Instant::now)
    })
    .await;
    // Two of them buy; the others let it pass. For three units three more get their turn, and no sooner.
    let mut bought = 0;
    for shopper in &people {
        let place = look(shopper, &sale).await;
        if place.text("state") == "turn" && bought < 2 {
            let token = place.text("admission_token").to_owned();
            buy(shopper, &sale, &token)
                .await
                .assert(StatusCode::ACCEPTED);
            bought += 1;
        }
    }
    let after = eventually("the next turns begin", async || {
        let states = states(&people, &sale).await;
        assert!(count(&states, "turn") <= 5, "{states:?}");
        (count(&states, "waiting") < 7).then_some(states)
    })
    .await;
    assert!(began.elapsed() >= Duration::from_secs(3), "{after:?}");
    eventually("three more have had their turn", async || {
        let states = states(&people, &sale).await;
        assert!(count(&states, "waiting") >= 4, "{states:?}");
        (count(&states, "waiting") == 4).then_some(())
    })
    .await;
    app.assert_sound(&sale).await;
    other.stop().await;
    app.finish().await;
}

/// The test above would notice turns that nobody counted: everybody's begins at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_beyond_the_stock_are_noticed() {
    let servers = Servers::own().await;
    let app = TestApp::start_on(&servers, Options::default()).await;
    plant(&mut app.redis().await, LET_EVERYBODY_IN).await;
    let sale = sale(&app, 5, soon(), json!({"overbooking_percent": 0})).await;
    let people: Vec<Shopper> = (0..12).map(|_| app.shopper()).collect();
    all_join(&people, &sale).await;
    wait_for!(count(&states(&people, &sale).await, "turn") > 5);
    app.finish().await;
}

/// Three instances do not let in three times as many.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rate_is_that_of_the_room_however_many_instances_there_are() {
    let app = TestApp::start().await;
    let others = [
        app.another(Options::default()).await,
        app.another(Options::default()).await,
    ];
    let sale = sale(&app, 1_000, soon(), json!({"per_second": 4})).await;
    let people: Vec<Shopper> = (0..200).map(|_| app.shopper()).collect();
    all_join(&people, &sale).await;
    let first = eventually("turns begin", async || {
        super::field(&app, &sale, "frontier")
            .await
            .filter(|places| *places > 0)
    })
    .await;
    let began = Instant::now();
    let now = async || {
        super::field(&app, &sale, "frontier")
            .await
            .expect("a frontier")
            - first
    };
    let mut seen = 0;
    while began.elapsed() < Duration::from_secs(4) {
        seen = now().await;
        // A second's worth may be saved up, and a call may lie just before the measurement.
        let most = began.elapsed().as_secs_f64() * 4.0 + 5.0;
        assert!(
            (seen as f64) <= most,
            "{seen} turns in {:?}",
            began.elapsed()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(seen >= 8, "{seen} turns in 4 s at 4 a second");
    for other in others {
        other.stop().await;
    }
    app.finish().await;
}

/// A stream of one's place.
struct Following {
    response: Response,
    unread: String,
}

impl Following {
    async fn of(app: &TestApp, shopper: &Shopper, sale: &str) -> Self {
        let url = app.url(&format!("{}/events", path(sale)));
        let request = app.client.get(url).bearer_auth(&shopper.token);
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status(), StatusCode::OK);
        Self {
            response,
            unread: String::new(),
        }
    }

    async fn next(&mut self) -> Option<Value> {
        loop {
            while let Some((block, rest)) = self.unread.split_once("\n\n") {
                let data = block.lines().find_map(|line| line.strip_prefix("data:"));
                let data = data.map(|data| serde_json::from_str(data).expect("JSON"));
                self.unread = rest.to_owned();
                if data.is_some() {
                    return data;
                }
            }
            let chunk = tokio::time::timeout(PATIENCE, self.response.chunk()).await;
            let chunk = chunk.expect("something in time").expect("an orderly end")?;
            self.unread
                .push_str(std::str::from_utf8(&chunk).expect("UTF-8"));
        }
    }

    async fn until(&mut self, what: impl Fn(&Value) -> bool) -> Value {
        loop {
            let place = self.next().await.expect("the stream goes on");
            if what(&place) {
                return place;
            }
        }
    }
}

/// Two buy what there is; two hundred others, at two instances, hear of it within a second and a half.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everybody_who_waits_hears_at_once_that_nothing_is_left() {
    let app = TestApp::start().await;
    let other = app.another(Options::default()).await;
    let room = json!({"overbooking_percent": 0, "turn_secs": 600});
    let sale = sale(&app, 2, soon(), room).await;
    let winners = [app.shopper(), other.shopper()];
    let mut tokens = Vec::new();
    for winner in &winners {
        join(winner, &sale).await;
        tokens.push(admission(winner, &sale).await);
    }
    let mut following = Vec::new();
    for number in 0..200 {
        let at = if number % 2 == 0 { &app } else { &other };
        let shopper = at.shopper();
        join(&shopper, &sale).await;
        let mut events = Following::of(at, &shopper, &sale).await;
        let first = events.next().await.expect("an event");
        assert_eq!(first["state"], "waiting");
        assert_eq!(
            (&first["sale_state"], &first["remaining"]),
            (&json!("open"), &json!(2))
        );
        // Two have their turn, and there are two units: nobody can promise anything.
        assert_eq!(first["more_ahead_than_left"], true);
        assert!(first["estimate_secs"].is_null());
        following.push(events);
    }
    for (winner, token) in winners.iter().zip(&tokens) {
        buy(winner, &sale, token).await.assert(StatusCode::ACCEPTED);
    }
    let sold_out = Instant::now();
    let told = following.into_iter().map(async |mut events| {
        events
            .until(|place| place["sale_state"] == "sold_out")
            .await;
        sold_out.elapsed()
    });
    let latest = futures_util::future::join_all(told).await.into_iter().max();
    let latest = latest.expect("somebody");
    assert!(
        latest < Duration::from_millis(1_500),
        "the last one heard after {latest:?}"
    );
    // Who comes now is told so, who waits keeps their place: units may come back.
    let late = app.shopper().post(&path(&sale)).await;
    late.assert_problem(409, "sold_out");
    other.stop().await;
    app.finish().await;
}

/// A unit that comes back is the next one's turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_queue_goes_on_when_a_unit_comes_back() {
    let app = TestApp::start().await;
    let room = json!({"overbooking_percent": 0});
    let sale = sale(&app, 1, soon(), room).await;
    let (first, second) = (app.shopper(), app.shopper());
    join(&first, &sale).await;
    let token = admission(&first, &sale).await;
    join(&second, &sale).await;
    let order = buy(&first, &sale, &token).await;
    order.assert(StatusCode::ACCEPTED);
    eventually("sold out", async || {
        let place = look(&second, &sale).await;
        assert_eq!(place.text("state"), "waiting");
        (place.text("sale_state") == "sold_out").then_some(())
    })
    .await;
    let id = order.text("order_id");
    first.until(id, "pending_payment").await;
    first.cancel(id).await.assert(StatusCode::OK);
    let token = admission(&second, &sale).await;
    buy(&second, &sale, &token)
        .await
        .assert(StatusCode::ACCEPTED);
    app.assert_sound(&sale).await;
    app.finish().await;
}

/// Nobody's turn begins in a pause; and how long it takes, nobody can say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_holds_the_queue() {
    let app = TestApp::start().await;
    let sale = sale(&app, 10, soon(), json!({})).await;
    pause(&app, &sale, "pause").await;
    let shopper = app.shopper();
    join(&shopper, &sale).await;
    let place = until(&shopper, &sale, "waiting").await;
    assert_eq!(
        (&place["position"], &place["sale_state"]),
        (&json!(1), &json!("paused"))
    );
    assert!(place["estimate_secs"].is_null());
    let before = super::field(&app, &sale, "frontier").await;
    wait_for!(super::field(&app, &sale, "change").await.is_some());
    assert_eq!(super::field(&app, &sale, "frontier").await, before);
    pause(&app, &sale, "resume").await;
    until(&shopper, &sale, "turn").await;
    app.finish().await;
}

/// Once turns begin there is an estimate, and it is near the truth.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_estimate_is_what_happens() {
    let app = TestApp::start().await;
    let sale = sale(&app, 1_000, soon(), json!({"per_second": 5})).await;
    let people: Vec<Shopper> = (0..60).map(|_| app.shopper()).collect();
    all_join(&people, &sale).await;
    let first = eventually("the turns begin", async || {
        let place = look(&people[0], &sale).await;
        place.body["estimate_secs"]
            .as_u64()
            .or(place.body["position"].is_null().then_some(0))
    });
    let _ = first.await;
    let began = Instant::now();
    let (last, promised, asked) = eventually("somebody far behind has an estimate", async || {
        for shopper in &people {
            let place = look(shopper, &sale).await;
            // Once it has gone on for some seconds: the first estimates know little of the rate.
            let far = place.body["position"]
                .as_u64()
                .is_some_and(|position| (20..=25).contains(&position));
            let far = far && began.elapsed() > Duration::from_secs(4);
            if let (true, Some(seconds)) = (far, place.body["estimate_secs"].as_u64()) {
                return Some((shopper.clone(), seconds, Instant::now()));
            }
        }
        None
    })
    .await;
    until(&last, &sale, "turn").await;
    let took = asked.elapsed().as_secs_f64();
    let promised = promised as f64;
    assert!(
        (promised / 3.0..promised * 3.0 + 2.0).contains(&took),
        "said {promised} s, took {took} s"
    );
    app.finish().await;
}

/// The first ones of a new room, while instances look at it: what is known of it may be older than their joining, or
/// just be about to be told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_joins_has_a_place_whatever_is_known_of_the_room() {
    let app = TestApp::start_with(Options {
        fail_points: "room.joining=pause:1500*always;room.advanced=pause:300*always".to_owned(),
        ..Options::default()
    })
    .await;
    let sale = sale(&app, 5, time::Duration::ZERO, json!({})).await;
    all_at_once((0..8).map(|_| {
        let (shopper, sale) = (app.shopper(), sale.clone());
        async move { join(&shopper, &sale).await }
    }))
    .await;
    app.finish().await;
}
