//! The two event streams: at once, then on every change, to the end of the order or of the server.

use super::*;

pub async fn open(ask: Ask) -> Events {
    let events = Events::of(ask).await;
    let headers = events.response.headers();
    let kind = headers["content-type"].to_str().expect("text");
    assert!(kind.starts_with("text/event-stream"), "{kind}");
    assert!(headers.contains_key("x-request-id"));
    events
}

fn of_sale(app: &TestApp, sale: &str) -> Ask {
    app.ask("GET", &format!("/api/v1/sales/{sale}/events"))
}

pub fn of_order(shopper: &Shopper, order: &str) -> Ask {
    shopper.ask("GET", &format!("/api/v1/orders/{order}/events"))
}

async fn next(events: &mut Events, name: &str) -> Value {
    let event = events.try_next().await.expect("an orderly end");
    let (found, data) = event.expect("the stream goes on");
    assert_eq!(found, name);
    data
}

async fn next_sale(events: &mut Events) -> Value {
    let data = next(events, "sale").await;
    assert_members(&data, "remaining state server_time");
    time_of(&data["server_time"]);
    json!([data["remaining"], data["state"]])
}

pub async fn next_order(events: &mut Events) -> Value {
    let data = next(events, "order").await;
    assert_order(&data);
    data
}

async fn until(events: &mut Events, status: &str) -> Value {
    loop {
        let order = next_order(events).await;
        if order["status"] == status {
            return order;
        }
        assert!(order["status"] == "queued" || order["status"] == "pending_payment", "{order:#}");
    }
}

/// At most five changes a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sale_tells_its_changes() {
    let (app, sale) = TestApp::selling(3, json!({})).await;
    let began = Instant::now();
    let mut events = open(of_sale(&app, &sale)).await;
    assert_eq!(next_sale(&mut events).await, json!([3, "open"]));
    let (shopper, order) = app.buyer(&sale).await;
    assert_eq!(next_sale(&mut events).await, json!([2, "open"]));
    app.steer(&sale, "pause").await;
    assert_eq!(next_sale(&mut events).await, json!([2, "paused"]));
    app.steer(&sale, "resume").await;
    assert_eq!(next_sale(&mut events).await, json!([2, "open"]));
    app.add_stock(&sale, -2).await.assert(200);
    assert_eq!(next_sale(&mut events).await, json!([0, "sold_out"]));
    shopper.cancel(&order).await.assert(200);
    assert_eq!(next_sale(&mut events).await, json!([1, "open"]));
    app.steer(&sale, "close").await;
    assert_eq!(next_sale(&mut events).await, json!([1, "ended"]));
    let took = began.elapsed();
    assert!(took >= 6 * Duration::from_millis(200), "six changes in {took:?}");
    let mut later = open(of_sale(&app, &sale)).await;
    assert_eq!(next_sale(&mut later).await, json!([1, "ended"]));
    within_timeout(of_sale(&app, UNKNOWN)).await.assert_problem(404, "sale_not_found");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_is_followed_to_its_end_and_streams_end_with_the_server() {
    let (app, sale) = TestApp::selling(9, json!({})).await;
    let short = app.sale(9, json!({"payment_timeout_secs": 1})).await;
    for (sale, last) in [(&sale, "paid"), (&sale, "cancelled"), (&short, "expired")] {
        let shopper = app.shopper();
        let order = shopper.must_buy(sale).await;
        let mut events = open(of_order(&shopper, &order)).await;
        let first = next_order(&mut events).await;
        assert_eq!(first["order_id"], order);
        if last != "expired" && first["status"] == "queued" {
            until(&mut events, "pending_payment").await;
        }
        match last {
            "paid" => shopper.pay(&order).await.assert(200),
            "cancelled" => shopper.cancel(&order).await.assert(200),
            _ => {}
        }
        // An order that expires may have done so before the first event.
        let end = if first["status"] == last { first } else { until(&mut events, last).await };
        assert_eq!(end, shopper.order(&order).await.body);
        assert_eq!(events.next().await, None);
        let mut events = open(of_order(&shopper, &order)).await;
        assert_eq!(next_order(&mut events).await, end);
        assert_eq!(events.next().await, None);
    }
    // EventSource cannot set headers: the cookie has to do.
    let (shopper, order) = app.buyer(&sale).await;
    let path = format!("/api/v1/orders/{order}/events");
    let mut of_order = open(app.ask("GET", &path).cookie(&shopper.token)).await;
    let mut of_sale = open(of_sale(&app, &sale)).await;
    next_order(&mut of_order).await;
    next_sale(&mut of_sale).await;
    let ends = async {
        while of_sale.next().await.is_some() {}
        while of_order.next().await.is_some() {}
    };
    within_timeout(async { tokio::join!(app.finish(), ends) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_ends_with_its_token() {
    let (app, sale) = TestApp::selling(3, json!({})).await;
    let (shopper, order) = app.buyer(&sale).await;
    let later = app.sale(3, json!({"opens_at": in_secs(300), "waiting_room": {}})).await;
    let room = format!("/api/v1/sales/{later}/waiting-room");
    shopper.post(&room).await.assert(200);
    // Sooner than a second place is told, which takes 10 s.
    let soon = OffsetDateTime::now_utc() + time::Duration::seconds(8);
    let token = app.mint_until(shopper.user, soon);
    let path = format!("/api/v1/orders/{order}/events");
    let mut events = open(app.ask("GET", &path).bearer(&token)).await;
    until(&mut events, "pending_payment").await;
    let mut place = open(app.ask("GET", &format!("{room}/events")).bearer(&token)).await;
    next(&mut place, "place").await;
    for mut events in [events, place] {
        let end = within_timeout(events.try_next()).await;
        assert_eq!(end.expect("an orderly end"), None);
    }
    app.ask("GET", &path).bearer(&token).await.assert_problem(401, "unauthenticated");
}
