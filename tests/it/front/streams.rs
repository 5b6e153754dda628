//! Event streams through a proxy: events come at once, an idle stream shows that it lives, and who loses the instance
//! gets a fresh picture from another one.

use super::{Deployment, Kind, Proxy, in_time};
use crate::support::app::eventually;
use reqwest::{Client, Response};
use serde_json::Value;
use std::time::{Duration, Instant};

/// A proxy that collected events would hold them back for much longer (nginx: until 4 KiB are full).
const AT_ONCE: Duration = Duration::from_secs(3);
/// A little more than the pause between two heartbeats.
const HEARTBEAT_WITHIN: Duration = Duration::from_secs(20);

/// The reading end of an event stream.
struct Events {
    response: Response,
    unread: String,
}

impl Events {
    async fn open(url: &str, token: Option<&str>) -> Self {
        let mut request = Client::new().get(url);
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status(), 200);
        Self {
            response,
            unread: String::new(),
        }
    }

    /// The next block, comments included; `None` when the stream is over, in whatever way.
    async fn block(&mut self) -> Option<String> {
        loop {
            if let Some((block, rest)) = self.unread.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.unread = rest;
                return Some(block);
            }
            let chunk = self.response.chunk().await.ok().flatten()?;
            self.unread += std::str::from_utf8(&chunk).expect("UTF-8");
        }
    }

    /// The data of the next event.
    async fn event(&mut self) -> Option<Value> {
        loop {
            let block = self.block().await?;
            let data = block.lines().find_map(|line| line.strip_prefix("data:"));
            if let Some(data) = data {
                return Some(serde_json::from_str(data.trim()).expect("JSON"));
            }
        }
    }

    /// The next event that satisfies this; how long it took.
    async fn until(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Duration {
        let began = Instant::now();
        in_time(what, async {
            while !wanted(&self.event().await.expect("the stream goes on")) {}
        })
        .await;
        began.elapsed()
    }
}

async fn buy(proxy: &Proxy, sale: &str, token: &str) -> String {
    let url = proxy.url(&format!("/api/v1/sales/{sale}/orders"));
    let reply = Client::new().post(url).bearer_auth(token).send().await;
    let reply = reply.expect("an answer");
    assert_eq!(reply.status(), 202);
    let body: Value = reply.json().await.expect("JSON");
    body["order_id"].as_str().expect("an id").to_owned()
}

async fn events_come_at_once(kind: Kind) {
    let deployment = Deployment::start(2, &[]).await;
    let proxy = Proxy::start(kind, &deployment.home, &deployment.addresses()).await;
    let sale = deployment.sale(100).await;
    let url = proxy.url(&format!("/api/v1/sales/{sale}/events"));
    let began = Instant::now();
    let mut events = Events::open(&url, None).await;
    events.until("the present state", |_| true).await;
    assert!(began.elapsed() < AT_ONCE, "{kind:?}: {:?}", began.elapsed());
    // Whichever instance sells, whichever shows it.
    for sold in 1..=4 {
        let token = deployment.token();
        let order = buy(&proxy, &sale, &token).await;
        let took = events
            .until("a unit less", |event| event["remaining"] == 100 - sold)
            .await;
        assert!(took < AT_ONCE, "{kind:?}: {took:?}");
        let url = proxy.url(&format!("/api/v1/orders/{order}/events"));
        let mut order = Events::open(&url, Some(&token)).await;
        order
            .until("the written order", |event| {
                event["status"] == "pending_payment"
            })
            .await;
    }
    drop((events, proxy));
    deployment.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_come_at_once_through_nginx() {
    events_come_at_once(Kind::Nginx).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_come_at_once_through_caddy() {
    events_come_at_once(Kind::Caddy).await;
}

/// Nothing happens, and the stream is not given up: a comment comes every 15 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_stream_is_kept_alive_through_both_proxies() {
    let deployment = Deployment::start(1, &[]).await;
    let sale = deployment.sale(1).await;
    let heartbeat = async |kind| {
        let proxy = Proxy::start(kind, &deployment.home, &deployment.addresses()).await;
        let url = proxy.url(&format!("/api/v1/sales/{sale}/events"));
        let mut events = Events::open(&url, None).await;
        events.event().await.expect("the present state");
        let waited = tokio::time::timeout(HEARTBEAT_WITHIN, async {
            loop {
                let block = events.block().await.expect("the stream goes on");
                if block.starts_with(':') {
                    return;
                }
            }
        });
        assert!(waited.await.is_ok(), "{kind:?}: no heartbeat came through");
    };
    tokio::join!(heartbeat(Kind::Nginx), heartbeat(Kind::Caddy));
    deployment.finish().await;
}

/// Half of the followers lose their instance. They come back, to the other one, which tells them how things stand.
async fn who_loses_the_instance_gets_a_fresh_picture(kind: Kind) {
    let mut deployment = Deployment::start(2, &[]).await;
    let proxy = Proxy::start(kind, &deployment.home, &deployment.addresses()).await;
    let sale = deployment.sale(100).await;
    let url = proxy.url(&format!("/api/v1/sales/{sale}/events"));
    let mut followers = Vec::new();
    for _ in 0..6 {
        let mut events = Events::open(&url, None).await;
        events.until("the present state", |_| true).await;
        followers.push(events);
    }
    deployment.kill(0);
    buy(&proxy, &sale, &deployment.token()).await;
    let (mut lost, mut kept) = (0, 0);
    for mut events in followers {
        // Either the stream goes on and tells of the purchase, or it is over.
        let heard = in_time("an event or the end", async {
            loop {
                match events.event().await {
                    Some(event) if event["remaining"] == 99 => return true,
                    Some(_) => {}
                    None => return false,
                }
            }
        });
        if heard.await {
            kept += 1;
            continue;
        }
        lost += 1;
        // What `static/js/sse.js` does: it asks again.
        eventually("a fresh picture", async || {
            let response = Client::new().get(&url).send().await.ok()?;
            if response.status() != 200 {
                return None;
            }
            let mut events = Events {
                response,
                unread: String::new(),
            };
            (events.event().await?["remaining"] == 99).then_some(())
        })
        .await;
    }
    assert!(
        lost > 0 && kept > 0,
        "{kind:?}: {lost} followers lost their instance, {kept} did not"
    );
    drop(proxy);
    deployment.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_loses_the_instance_gets_a_fresh_picture_through_nginx() {
    who_loses_the_instance_gets_a_fresh_picture(Kind::Nginx).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_loses_the_instance_gets_a_fresh_picture_through_caddy() {
    who_loses_the_instance_gets_a_fresh_picture(Kind::Caddy).await;
}
