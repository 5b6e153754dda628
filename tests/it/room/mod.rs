//! The waiting room, from outside: places, turns, admissions, and what a fault does to them.

mod admissions;
mod fairness;
mod faults;
mod judge;
mod scripts;
mod turns;

use crate::support::app::{Reply, Shopper, TestApp, eventually};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// A time in a request.
fn written(at: OffsetDateTime) -> String {
    at.format(&Rfc3339).expect("a time")
}

/// A sale with a waiting room, which can be joined at once.
async fn sale(app: &TestApp, stock: i64, opens_in: time::Duration, room: Value) -> String {
    let mut room = room;
    room["opens_before_secs"] = json!(86_400);
    let opens_at = written(OffsetDateTime::now_utc() + opens_in);
    app.sale(stock, json!({"opens_at": opens_at, "waiting_room": room}))
        .await
}

fn path(sale: &str) -> String {
    format!("/api/v1/sales/{sale}/waiting-room")
}

async fn join(shopper: &Shopper, sale: &str) -> Reply {
    let reply = shopper.post(&path(sale)).await;
    reply.assert(StatusCode::OK);
    reply
}

async fn all_join(people: &[Shopper], sale: &str) {
    for shopper in people {
        join(shopper, sale).await;
    }
}

async fn look(shopper: &Shopper, sale: &str) -> Reply {
    shopper.get(&path(sale)).await
}

/// The place once its state is this one.
async fn until(shopper: &Shopper, sale: &str, state: &str) -> Value {
    eventually(&format!("the place is {state}"), async || {
        let reply = look(shopper, sale).await;
        (reply.status == StatusCode::OK && reply.text("state") == state).then_some(reply.body)
    })
    .await
}

/// The admission token of somebody whose turn comes.
async fn admission(shopper: &Shopper, sale: &str) -> String {
    let place = until(shopper, sale, "turn").await;
    place["admission_token"]
        .as_str()
        .expect("a token")
        .to_owned()
}

/// Lets the moment of the draw come now, whatever the clock says.
async fn draw_now(app: &TestApp, sale: &str) {
    let _moved: i64 = app
        .in_redis(
            redis::cmd("HSET")
                .arg(format!("{}{{room:{sale}}}", app.prefix))
                .arg("draw_at")
                .arg(1),
        )
        .await;
}

/// What Redis holds of a room.
async fn field(app: &TestApp, sale: &str, name: &str) -> Option<i64> {
    app.in_redis(
        redis::cmd("HGET")
            .arg(format!("{}{{room:{sale}}}", app.prefix))
            .arg(name),
    )
    .await
}

async fn pause(app: &TestApp, sale: &str, verb: &str) {
    let steered = format!("/api/v1/admin/sales/{sale}/{verb}");
    let reply = app.admin(Method::POST, &steered, None).await;
    reply.assert(StatusCode::OK);
}
