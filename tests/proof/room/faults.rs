//! What a crash of an instance and a loss of Redis cost.

use super::*;

/// Their instance goes, and Redis comes back with its data: nobody loses their place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn places_outlive_the_instance_that_gave_them_and_a_restart_of_redis() {
    let (servers, [app, gone]) = own_pair().await;
    let sale = sale(&app, 100, IN_AN_HOUR, json!({})).await;
    let people = gone.shoppers(50);
    all_join(&people, &sale).await;
    draw_now(&gone, &sale).await;
    until(&people[0], &sale, "waiting").await;
    let before = positions(&people, &sale).await;
    gone.stop().await;
    let people: Vec<Shopper> = people.iter().map(|shopper| shopper.at(&app)).collect();
    until(&people[0], &sale, "waiting").await;
    assert_eq!(positions(&people, &sale).await, before);
    servers.redis.kill(); // it is started again, and until then nothing wrong is said
    until_told(async || look(&people[0], &sale).await).await.assert(200);
    assert_eq!(positions(&people, &sale).await, before);
}

/// Redis loses everything after the opening: admissions still buy, and the others join again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_loss_admissions_stand_and_the_others_are_drawn_anew() {
    let (_servers, app) = TestApp::on_own_servers().await;
    let sale = sale(&app, 2, SOON, json!({"overbooking_percent": 0, "turn_secs": 600})).await;
    let lucky = app.shopper();
    let token = admission(&lucky, &sale).await;
    let people = app.shoppers(5);
    all_join(&people, &sale).await;
    let mut followed = Events::of(people[0].ask("GET", &format!("{}/events", path(&sale)))).await;
    app.in_redis::<()>(&mut redis::cmd("FLUSHALL")).await;
    wait_for!(look(&people[1], &sale).await.status == 404);
    look(&people[1], &sale).await.assert_problem(404, "not_in_waiting_room");
    wait_for!(buy(&lucky, &sale, &token).await.is_accepted());
    wait_for!("a new place", {
        let chunk = followed.response.chunk();
        let _ = tokio::time::timeout(Duration::from_millis(20), chunk).await;
        (look(&people[0], &sale).await.status == 200).then_some(())
    });
    for shopper in &people[1..] {
        assert!(["early", "waiting", "turn"].contains(&join(shopper, &sale).await.text("state")));
    }
    wait_for!(field(&app, &sale, "frontier").await == Some(1));
}
