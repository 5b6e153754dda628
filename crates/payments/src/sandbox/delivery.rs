//! Webhooks: each event is sent until the shop takes it, by what the journal holds, so that a
//! restart goes on. Faults lose, double, delay and reorder them.

use super::faults::{Faults, random};
use super::store::Store;
use crate::client::Http;
use crate::provider::Event;
use crate::signature::{HEADER, WebhookSecret};
use axum::body::Body;
use axum::http::{Request, Uri, header::CONTENT_TYPE};
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The pause after a first failure; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How many are sent at a time.
pub const AT_A_TIME: usize = 32;
/// How long a webhook waits for the next event, which it is to follow.
const HELD_AT_MOST: Duration = Duration::from_secs(5);

pub struct Deliveries {
    pub store: Arc<Store>,
    pub faults: watch::Receiver<Faults>,
    pub url: Uri,
    pub secret: WebhookSecret,
    pub http: Http,
    pub permits: Semaphore,
}

/// How an event is sent.
struct Delivery {
    number: u64,
    event: Event,
    faults: Faults,
    /// The next event is to be sent first.
    wait: Option<oneshot::Receiver<()>>,
    /// Dropped when this one is sent: the event before waits for it.
    before: Option<oneshot::Sender<()>>,
}

impl Deliveries {
    /// Starts a task for every event, until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let (deliveries, tasks) = (Arc::new(self), TaskTracker::new());
        let send = |delivery| {
            let (deliveries, stop) = (deliveries.clone(), stop.clone());
            tasks.spawn(async move {
                stop.run_until_cancelled(deliveries.deliver(delivery)).await;
            });
        };
        stop.run_until_cancelled(deliveries.dispatch(send)).await;
        stop.cancelled().await;
        tasks.close();
        tasks.wait().await;
    }

    /// Draws the faults of each event, in their order. Ends if the journal is broken: what it does
    /// not hold is told to nobody.
    async fn dispatch(&self, send: impl Fn(Delivery)) {
        let (mut last, mut held) = (0, None);
        while let Ok(events) = self.store.undelivered(last).await {
            for (number, event) in events {
                last = number;
                let faults = *self.faults.borrow();
                if faults.webhook_lose.happens() {
                    self.store.delivered(number);
                    continue;
                }
                let (before, mut wait) = (held.take(), None);
                if before.is_none() && faults.webhook_reorder.happens() {
                    let (next_is_sent, sent) = oneshot::channel();
                    (held, wait) = (Some(next_is_sent), Some(sent));
                }
                send(Delivery { number, event, faults, wait, before });
            }
            self.store.wakeup.notified().await;
        }
    }

    async fn deliver(&self, Delivery { number, event, faults, wait, before }: Delivery) {
        let Ok(body) = serde_json::to_vec(&event) else {
            return; // an event is plain data
        };
        if let Some(sent) = wait {
            let _ = timeout(HELD_AT_MOST, sent).await;
        }
        sleep(Duration::from_millis(faults.webhook_delay_ms)).await;
        self.send_until_taken(&event.id, &body).await;
        drop(before);
        if faults.webhook_double.happens() {
            self.send_until_taken(&event.id, &body).await;
        }
        self.store.delivered(number);
    }

    async fn send_until_taken(&self, id: &str, body: &[u8]) {
        let mut pause = FIRST_PAUSE;
        while let Err(why) = self.send(body).await {
            tracing::debug!(event = id, why, "a webhook was not taken; sent again later");
            sleep(pause.mul_f64(0.5 + random() / 2.0)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn send(&self, body: &[u8]) -> Result<(), String> {
        let _permit = self.permits.acquire().await;
        if self.faults.borrow().away {
            return Err("the provider is away".to_owned());
        }
        let signature = self.secret.sign(body, OffsetDateTime::now_utc());
        let request = Request::post(&self.url)
            .header(CONTENT_TYPE, "application/json")
            .header(HEADER, signature)
            .body(Body::from(body.to_vec()));
        let request = request.map_err(|error| error.to_string())?;
        let (status, _) = self.http.send(request).await?;
        if status.is_success() { Ok(()) } else { Err(format!("it was answered {status}")) }
    }
}
