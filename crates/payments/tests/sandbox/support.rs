//! A sandbox with its file, a shop that takes webhooks, and a browser.

use axum::Router;
use axum::body::{Body, Bytes};
pub use axum::http::StatusCode;
use axum::http::{HeaderMap, Request};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
pub use payments::client::HttpProvider;
pub use payments::provider::*;
use payments::sandbox::{self, Sandbox, Settings};
use payments::signature::{HEADER, WebhookSecret};
use serde_json::Value;
pub use serde_json::json;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
pub use time::OffsetDateTime;
use tokio::sync::mpsc;

/// Long enough for a machine that is busy; who waits so long has failed.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);
pub const KEY: &str = "a key";
const SECRET: &str = "a secret";

pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let result = tokio::time::timeout(TEST_TIMEOUT, future).await;
    result.unwrap_or_else(|_| panic!("{what}: not within {TEST_TIMEOUT:?}"))
}

/// A folder that is removed at the end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("fs-pay-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&folder).expect("a folder");
        Self(folder)
    }

    pub fn file(&self) -> PathBuf {
        self.0.join("sandbox-pay.jsonl")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn settings(data_file: PathBuf, webhook_url: &str) -> Settings {
    Settings {
        listen_addr: ([127, 0, 0, 1], 0).into(),
        public_url: None,
        webhook_url: webhook_url.to_owned(),
        api_key: KEY.to_owned(),
        webhook_secret: SECRET.to_owned(),
        data_file,
        faults: sandbox::faults::Faults::default(),
    }
}

/// A sandbox, and what the shop knows of it.
pub struct Bench {
    pub folder: Folder,
    pub shop: Shop,
    pub sandbox: Sandbox,
    pub provider: HttpProvider,
}

impl Bench {
    pub async fn start() -> Self {
        let (folder, shop) = (Folder::new(), Shop::open().await);
        Self::start_on(folder, shop).await
    }

    pub async fn start_on(folder: Folder, shop: Shop) -> Self {
        let started = sandbox::start(settings(folder.file(), &shop.url)).await;
        let sandbox = started.expect("a sandbox");
        let provider = HttpProvider::new(&sandbox.url(), KEY).expect("a provider");
        Self { folder, shop, sandbox, provider }
    }

    /// Ends it, and starts another on the same file.
    pub async fn restart(self) -> Self {
        let (folder, shop) = self.stop().await;
        Self::start_on(folder, shop).await
    }

    pub async fn stop(self) -> (Folder, Shop) {
        within("the sandbox's end", self.sandbox.stop()).await;
        (self.folder, self.shop)
    }

    /// Replaces its faults.
    pub async fn faults(&self, faults: Value) {
        self.ask("PUT", "/v1/faults", &[], &faults.to_string()).await.must_be(200);
    }

    /// A call with the key and a JSON body.
    pub async fn ask(&self, method: &str, path: &str, more: &[(&str, &str)], body: &str) -> Reply {
        let bearer = format!("Bearer {KEY}");
        let headers =
            [&[("authorization", &*bearer), ("content-type", "application/json")], more].concat();
        ask(method, &format!("{}{path}", self.sandbox.url()), &headers, body).await
    }

    pub async fn charge(&self, reference: &str) -> Charge {
        self.provider.charge(&payment(reference, 1_000)).await.expect("a charge")
    }

    pub async fn transactions(&self) -> Vec<Transaction> {
        self.provider.transactions(0).await.expect("the transactions")
    }
}

pub fn payment(reference: &str, amount_cents: i64) -> ChargeRequest {
    ChargeRequest { reference: reference.to_owned(), amount_cents, currency: "USD".to_owned() }
}

pub fn checkout(reference: &str, minutes_left: i64) -> CheckoutRequest {
    CheckoutRequest {
        charge: payment(reference, 1_000),
        description: "Ten phones".to_owned(),
        return_url: "http://shop.example:8080/orders/1?a=b&c=d".to_owned(),
        expires_at: OffsetDateTime::now_utc() + time::Duration::minutes(minutes_left),
    }
}

pub fn refused<T: std::fmt::Debug>(result: Result<T, ProviderError>) -> String {
    match result {
        Err(ProviderError::Refused { code, .. }) => code,
        other => panic!("not refused: {other:?}"),
    }
}

pub fn unknown<T: std::fmt::Debug>(result: Result<T, ProviderError>) -> String {
    match result {
        Err(ProviderError::Unknown(why)) => why,
        other => panic!("something is known: {other:?}"),
    }
}

pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Reply {
    pub fn must_be(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text);
        self
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {}", self.text))
    }

    pub fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).unwrap_or_else(|| panic!("no {name}"));
        value.to_str().expect("text")
    }
}

pub async fn ask(method: &str, url: &str, headers: &[(&str, &str)], body: &str) -> Reply {
    let mut request = Request::builder().method(method).uri(url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::from(body.to_owned())).expect("a request");
    let client = Client::builder(TokioExecutor::new()).build_http();
    let response = within(url, client.request(request)).await.expect("an answer");
    let (head, body) = response.into_parts();
    let bytes = body.collect().await.expect("a body").to_bytes();
    let text = String::from_utf8(bytes.to_vec()).expect("text");
    Reply { status: head.status, headers: head.headers, text }
}

/// The shop's side of webhooks.
pub struct Shop {
    pub url: String,
    events: mpsc::UnboundedReceiver<Event>,
    /// The next answers; then 204.
    answers: Arc<Mutex<VecDeque<u16>>>,
}

impl Shop {
    pub async fn open() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/webhooks", listener.local_addr().expect("an address"));
        let (told, events) = mpsc::unbounded_channel();
        let answers = Arc::new(Mutex::new(VecDeque::new()));
        let next = answers.clone();
        let take = async move |headers: HeaderMap, body: Bytes| {
            let header = headers.get(HEADER).and_then(|value| value.to_str().ok());
            let now = OffsetDateTime::now_utc();
            let verified = WebhookSecret::new(SECRET).verify(header.unwrap_or(""), &body, now);
            assert_eq!(verified, Ok(()), "{header:?}");
            let _ = told.send(serde_json::from_slice(&body).expect("an event"));
            let status = next.lock().expect("the answers").pop_front().unwrap_or(204);
            StatusCode::from_u16(status).expect("a status")
        };
        let router = Router::new().route("/webhooks", axum::routing::post(take));
        tokio::spawn(async { axum::serve(listener, router).await });
        Self { url, events, answers }
    }

    pub fn answer(&self, statuses: &[u16]) {
        self.answers.lock().expect("the answers").extend(statuses);
    }

    /// The next delivery, a repeated one too.
    pub async fn next(&mut self) -> Event {
        within("a webhook", self.events.recv()).await.expect("a webhook")
    }

    /// The references of the next deliveries.
    pub async fn references(&mut self, count: usize) -> Vec<String> {
        let mut references = Vec::new();
        for _ in 0..count {
            references.push(self.next().await.charge.reference);
        }
        references
    }
}
