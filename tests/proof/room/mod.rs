//! The waiting room, from outside: places, turns, admissions, and what a fault does to them.

mod admissions;
mod fairness;
mod faults;
mod scripts;
mod turns;

use crate::faults::{arm, own_pair};
use crate::support::{plant::*, prelude::*};

/// When a room's sale opens, in seconds from now.
const SOON: i64 = -1;
const IN_AN_HOUR: i64 = 3_600;

async fn sale(app: &TestApp, stock: i64, opens_in: i64, mut room: Value) -> String {
    room["opens_before_secs"] = json!(86_400);
    app.sale(stock, json!({"opens_at": in_secs(opens_in), "waiting_room": room})).await
}

fn path(sale: &str) -> String {
    format!("/api/v1/sales/{sale}/waiting-room")
}

async fn join(shopper: &Shopper, sale: &str) -> Reply {
    // However often they ask, it stays one place.
    until_told(async || shopper.post(&path(sale)).await).await.must_be(200)
}

async fn all_join(people: &[Shopper], sale: &str) {
    join_all(people.iter().map(|shopper| join(shopper, sale))).await;
}

async fn look(shopper: &Shopper, sale: &str) -> Reply {
    shopper.get(&path(sale)).await
}

async fn until(shopper: &Shopper, sale: &str, state: &str) -> Value {
    wait_for!(&format!("the place is {state}"), {
        let reply = look(shopper, sale).await;
        (reply.status == 200 && reply.text("state") == state).then_some(reply.body)
    })
}

async fn positions(people: &[Shopper], sale: &str) -> Vec<u64> {
    let places = join_all(people.iter().map(|shopper| until(shopper, sale, "waiting"))).await;
    places.iter().map(|place| place["position"].as_u64().expect("a position")).collect()
}

pub async fn admission(shopper: &Shopper, sale: &str) -> String {
    join(shopper, sale).await;
    until(shopper, sale, "turn").await["admission_token"].as_str().expect("a token").to_owned()
}

async fn buy(shopper: &Shopper, sale: &str, token: &str) -> Reply {
    shopper.buy_with(sale, &[("Admission-Token", token)]).await
}

fn key(app: &TestApp, sale: &str) -> String {
    format!("{}{{room:{sale}}}", app.prefix)
}

async fn draw_now(app: &TestApp, sale: &str) {
    app.in_redis::<i64>(redis::cmd("HSET").arg(&[&key(app, sale), "draw_at", "1"])).await;
}

async fn field<T: redis::FromRedisValue>(app: &TestApp, sale: &str, name: &str) -> Option<T> {
    app.in_redis(redis::cmd("HGET").arg(&[&key(app, sale), name])).await
}
