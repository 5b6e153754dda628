//! Turns begin at the rate and for the stock that there is, on any number of instances.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rate_is_that_of_the_room_however_many_instances_there_are() {
    let (app, _second) = TestApp::pair().await;
    let _third = app.another(Options::default()).await;
    let sale = sale(&app, 1_000, SOON, json!({"per_second": 4})).await;
    all_join(&app.shoppers(200), &sale).await;
    let turns = async || field(&app, &sale, "frontier").await.unwrap_or(0);
    wait_for!(turns().await > 0);
    let (began, first) = (Instant::now(), turns().await);
    wait_for!("16 turns at 4 a second", {
        let seen = turns().await - first;
        // A second's worth may be saved up, and a call may lie just before the measurement.
        let most = began.elapsed().as_secs_f64() * 4.0 + 5.0;
        assert!(seen as f64 <= most, "{seen} turns, at most {most}");
        (seen >= 16).then_some(())
    });
}

/// Two hundred others, at two instances, hear of it without asking.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everybody_who_waits_hears_that_nothing_is_left_and_goes_on_when_a_unit_comes_back() {
    let (app, other) = TestApp::pair().await;
    let sale = sale(&app, 2, SOON, json!({"overbooking_percent": 0, "turn_secs": 600})).await;
    let winners = [app.shopper(), other.shopper()];
    let tokens = join_all(winners.iter().map(|winner| admission(winner, &sale))).await;
    let (mut waiting, mut following) = (Vec::new(), Vec::new());
    for number in 0..200 {
        let shopper = [&app, &other][number % 2].shopper();
        join(&shopper, &sale).await;
        let mut events = Events::of(shopper.ask("GET", &format!("{}/events", path(&sale)))).await;
        let first = events.next().await.expect("an event");
        // Two have their turn, and there are two units: nobody can promise anything.
        let expected = json!({
            "state": "waiting", "sale_state": "open", "remaining": 2,
            "more_ahead_than_left": true, "estimate_secs": null,
        });
        assert_has(&first, expected);
        following.push(events);
        waiting.push(shopper);
    }
    let mut orders = Vec::new();
    for (winner, token) in winners.iter().zip(&tokens) {
        orders.push(buy(winner, &sale, token).await.must_be(202).text("order_id").to_owned());
    }
    for mut events in following {
        let told = events.until(|place| place["sale_state"] == "sold_out").await;
        assert_eq!(told["state"], "waiting");
    }
    // Latecomers are told so; those who wait keep their place: units may come back.
    app.shopper().post(&path(&sale)).await.assert_problem(409, "sold_out");
    winners[0].until(&orders[0], "pending_payment").await;
    winners[0].cancel(&orders[0]).await.assert(200);
    let next = &waiting[0];
    let turn = until(next, &sale, "turn").await;
    buy(next, &sale, turn["admission_token"].as_str().expect("a token")).await.assert(202);
    app.assert_sound(&sale).await;
}

/// The estimate is that of the turns so far: `view.rs`; those are each place once: `scripts.rs`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_holds_the_queue_and_then_somebody_far_behind_has_an_estimate() {
    let app = TestApp::start().await;
    let sale = sale(&app, 1_000, SOON, json!({"per_second": 5, "turn_secs": 600})).await;
    let people = app.shoppers(60);
    app.steer(&sale, "pause").await;
    all_join(&people, &sale).await;
    for shopper in &people {
        let place = until(shopper, &sale, "waiting").await;
        assert_has(&place, json!({"sale_state": "paused", "estimate_secs": null}));
    }
    let before = field::<i64>(&app, &sale, "frontier").await;
    wait_for!(field::<i64>(&app, &sale, "change").await.is_some());
    assert_eq!(field(&app, &sale, "frontier").await, before);
    app.steer(&sale, "resume").await;
    wait_for!("somebody waits and has an estimate", {
        let places = join_all(people.iter().map(|shopper| look(shopper, &sale))).await;
        places.iter().any(|place| place.body["estimate_secs"].is_u64()).then_some(())
    });
}

/// The first of a new room: what instances know of it may be older than their joining.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_joins_has_a_place_whatever_is_known_of_the_room() {
    let app = TestApp::start().await;
    arm(&app, "room.joining=pause:1500*always;room.advanced=pause:300*always");
    let sale = sale(&app, 5, 0, json!({})).await;
    let join = |shopper: Shopper| shopper.ask("POST", &path(&sale)).into_future();
    for place in all_at_once(app.shoppers(8).into_iter().map(join)).await {
        place.assert(200);
    }
}
