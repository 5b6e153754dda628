//! The two event streams: at once, then on every change; an order's ends with the order, and both
//! end with the server.

use super::{assert_members, assert_order, time_of, within_patience};
use crate::support::app::{Options, PATIENCE, Reply, Shopper, TestApp};
use flash_sale::app::Role;
use reqwest::{Response, StatusCode};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The reading end of an event stream.
struct Events {
    response: Response,
    unread: String,
}

impl Events {
    async fn of(app: &TestApp, path: &str, shopper: Option<&Shopper>) -> Self {
        let mut request = app.client.get(app.url(path));
        if let Some(shopper) = shopper {
            request = request.bearer_auth(&shopper.token);
        }
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status(), StatusCode::OK);
        let content_type = response.headers()["content-type"]
            .to_str()
            .expect("text")
            .to_owned();
        assert!(
            content_type.starts_with("text/event-stream"),
            "{content_type}"
        );
        assert!(response.headers().contains_key("x-request-id"));
        Self {
            response,
            unread: String::new(),
        }
    }

    /// The next event's name and data; `None` when the stream has ended in order.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            while let Some((block, rest)) = self.unread.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.unread = rest;
                let field = |name: &str| {
                    block
                        .lines()
                        .find_map(|line| line.strip_prefix(name))
                        .map(|value| value.trim().to_owned())
                };
                if let Some(data) = field("data:") {
                    let data = serde_json::from_str(&data).expect("JSON");
                    return Some((field("event:").expect("a name"), data));
                }
                assert!(block.lines().all(|line| line.starts_with(':')), "{block:?}");
            }
            let chunk = tokio::time::timeout(PATIENCE, self.response.chunk())
                .await
                .expect("something in time");
            let chunk = chunk.expect("an orderly end")?;
            self.unread
                .push_str(std::str::from_utf8(&chunk).expect("UTF-8"));
        }
    }

    async fn sale(&mut self) -> Value {
        let (name, data) = self.next().await.expect("the stream goes on");
        assert_eq!(name, "sale");
        assert_members(&data, "remaining state server_time");
        time_of(&data["server_time"]);
        data
    }

    async fn order(&mut self) -> Value {
        let (name, data) = self.next().await.expect("the stream goes on");
        assert_eq!(name, "order");
        assert_order(&data);
        data
    }

    /// Reads on until the order is that far; what came before has to be earlier in its life.
    async fn until(&mut self, status: &str) -> Value {
        loop {
            let order = self.order().await;
            if order["status"] == status {
                return order;
            }
            assert!(
                ["queued", "pending_payment"]
                    .iter()
                    .any(|early| order["status"] == *early),
                "{order:#}"
            );
        }
    }
}

fn of_sale(sale: &str) -> String {
    format!("/api/v1/sales/{sale}/events")
}

fn of_order(order: &str) -> String {
    format!("/api/v1/orders/{order}/events")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_tells_its_changes() {
    let app = TestApp::start().await;
    let sale = app.sale(3, json!({})).await;
    let mut events = Events::of(&app, &of_sale(&sale), None).await;
    let seen = |event: &Value| json!([event["remaining"], event["state"]]);
    assert_eq!(seen(&events.sale().await), json!([3, "open"]));
    let shopper = app.shopper();
    let order = shopper.order_to_pay(&sale).await;
    assert_eq!(seen(&events.sale().await), json!([2, "open"]));
    app.steer(&sale, "pause").await;
    assert_eq!(seen(&events.sale().await), json!([2, "paused"]));
    app.steer(&sale, "resume").await;
    assert_eq!(seen(&events.sale().await), json!([2, "open"]));
    app.add_stock(&sale, -2).await.assert(StatusCode::OK);
    assert_eq!(seen(&events.sale().await), json!([0, "sold_out"]));
    shopper.cancel(&order).await.assert(StatusCode::OK);
    assert_eq!(seen(&events.sale().await), json!([1, "open"]));
    app.steer(&sale, "close").await;
    assert_eq!(seen(&events.sale().await), json!([1, "ended"]));

    // Whoever comes later is told at once how it stands.
    assert_eq!(
        seen(&Events::of(&app, &of_sale(&sale), None).await.sale().await),
        json!([1, "ended"])
    );
    within_patience(app.get(&of_sale("9223372036854775807")))
        .await
        .assert_problem(404, "sale_not_found");
    drop(events);
    app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_tells_at_most_five_changes_a_second() {
    const STOCK: i64 = 300;
    let app = TestApp::start().await;
    let sale = app.sale(STOCK, json!({})).await;
    let mut events = Events::of(&app, &of_sale(&sale), None).await;
    let began = Instant::now();
    let buy_all = async {
        for _ in 0..STOCK {
            app.shopper().must_buy(&sale).await;
        }
    };
    let listen = async {
        let (mut count, mut remaining) = (0, STOCK + 1);
        while remaining > 0 {
            let event = events.sale().await;
            let now = event["remaining"].as_i64().expect("a number");
            assert!(now < remaining || count == 0, "{now} after {remaining}");
            (count, remaining) = (count + 1, now);
        }
        count
    };
    let ((), count) = tokio::join!(buy_all, listen);
    let most = began.elapsed().as_secs_f64() * 5.0 + 2.0;
    assert!(
        f64::from(count) <= most,
        "{count} events in {:?}",
        began.elapsed()
    );
    drop(events);
    app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_is_followed_to_its_end() {
    let app = TestApp::start().await;
    let sale = app.sale(9, json!({})).await;
    let short = app.sale(9, json!({"payment_timeout_secs": 1})).await;
    for (sale, last) in [(&sale, "paid"), (&sale, "cancelled"), (&short, "expired")] {
        let shopper = app.shopper();
        let order = shopper.must_buy(sale).await;
        let mut events = Events::of(&app, &of_order(&order), Some(&shopper)).await;
        let first = events.order().await;
        assert_eq!(first["order_id"], order);
        let end = if last == "expired" {
            // It may have been over before anybody looked.
            if first["status"] == last {
                first
            } else {
                events.until(last).await
            }
        } else {
            if first["status"] == "queued" {
                events.until("pending_payment").await;
            }
            let step = if last == "paid" {
                shopper.pay(&order).await
            } else {
                shopper.cancel(&order).await
            };
            step.assert(StatusCode::OK);
            events.until(last).await
        };
        assert_eq!(end, shopper.order(&order).await.body);
        assert_eq!(events.next().await, None);

        // Afterwards there is only the end to tell.
        let mut events = Events::of(&app, &of_order(&order), Some(&shopper)).await;
        assert_eq!(events.order().await, end);
        assert_eq!(events.next().await, None);
    }

    // EventSource cannot set headers: the cookie has to do.
    let shopper = app.shopper();
    let order = shopper.order_to_pay(&sale).await;
    let request = app
        .client
        .get(app.url(&of_order(&order)))
        .header("cookie", format!("session={}", shopper.token));
    assert_eq!(
        request.send().await.expect("an answer").status(),
        StatusCode::OK
    );
    within_patience(app.get(&of_order(&order)))
        .await
        .assert_problem(401, "unauthenticated");
    for order in [order.as_str(), "9223372036854775807"] {
        within_patience(app.shopper().get(&of_order(order)))
            .await
            .assert_problem(404, "order_not_found");
    }
    app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queued_order_is_followed_into_postgres() {
    let app = TestApp::start_with(Options {
        role: Role::ServerWithoutWriter,
        ..Options::default()
    })
    .await;
    let sale = app.sale(1, json!({})).await;
    let shopper = app.shopper();
    let order = shopper.must_buy(&sale).await;
    let mut events = Events::of(&app, &of_order(&order), Some(&shopper)).await;
    assert_eq!(events.order().await["status"], "queued");
    // Written by another instance, and paid there.
    let writer = app.another(Options::default()).await;
    assert_eq!(events.order().await["status"], "pending_payment");
    writer
        .as_shopper(&shopper)
        .pay(&order)
        .await
        .assert(StatusCode::OK);
    assert_eq!(events.order().await["status"], "paid");
    assert_eq!(events.next().await, None);
    writer.stop().await;
    app.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_end_with_the_server() {
    let app = TestApp::start().await;
    let sale = app.sale(1, json!({})).await;
    let shopper = app.shopper();
    let order = shopper.order_to_pay(&sale).await;
    let mut of_sale = Events::of(&app, &of_sale(&sale), None).await;
    let mut of_order = Events::of(&app, &of_order(&order), Some(&shopper)).await;
    of_sale.sale().await;
    of_order.order().await;
    let ends = async {
        // A change may still be told before the end.
        while of_sale.next().await.is_some() {}
        while of_order.next().await.is_some() {}
    };
    let stopped = tokio::time::timeout(Duration::from_secs(10), async {
        tokio::join!(app.stop(), ends)
    });
    let (database, ()) = stopped.await.expect("all is over within 10 s");
    database.drop().await;
}

#[tokio::test]
async fn a_silent_stream_is_kept_alive() {
    let app = TestApp::start().await;
    let sale = app.sale(1, json!({})).await;
    let mut events = Events::of(&app, &of_sale(&sale), None).await;
    events.sale().await;
    // Nothing happens, so the next thing to be read is the heartbeat.
    let began = Instant::now();
    let chunk = tokio::time::timeout(PATIENCE, events.response.chunk())
        .await
        .expect("a heartbeat")
        .expect("a chunk");
    assert!(chunk.is_some_and(|chunk| chunk.starts_with(b":")));
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
    let refused = Reply::of(
        app.client
            .post(app.url(&of_sale(&sale)))
            .send()
            .await
            .expect("an answer"),
    )
    .await;
    refused.assert_problem(405, "method_not_allowed");
    drop(events);
    app.finish().await;
}
