//! Requests and their answers, event streams, and people who ask for them.

use crate::support::prelude::*;
use flash_sale::http::ConnectionLimits;
use reqwest::{Body, Client, RequestBuilder, Response, header::HeaderValue};
use std::pin::Pin;

pub struct Ask(pub RequestBuilder);

impl Ask {
    pub fn header(self, name: &str, value: impl AsRef<[u8]>) -> Self {
        let value = HeaderValue::from_bytes(value.as_ref()).expect("a header's value");
        Self(self.0.header(name, value))
    }

    pub fn headers(self, headers: &[(&str, &str)]) -> Self {
        headers.iter().fold(self, |ask, (name, value)| ask.header(name, value))
    }

    pub fn bearer(self, token: &str) -> Self {
        Self(self.0.bearer_auth(token))
    }

    pub fn cookie(self, token: &str) -> Self {
        self.header("cookie", format!("session={token}"))
    }

    pub fn json(self, body: Value) -> Self {
        Self(self.0.json(&body))
    }

    pub fn maybe_json(self, body: Option<Value>) -> Self {
        Self(body.iter().fold(self.0, RequestBuilder::json))
    }

    pub fn body(self, body: impl Into<Body>) -> Self {
        Self(self.0.body(body))
    }

    pub fn within(self, limit: Duration) -> Self {
        Self(self.0.timeout(limit))
    }

    pub async fn begin(self) -> Response {
        self.0.send().await.expect("an answer")
    }

    pub async fn send(self) -> reqwest::Result<Reply> {
        Reply::read(self.0.send().await?).await
    }
}

impl IntoFuture for Ask {
    type Output = Reply;
    type IntoFuture = Pin<Box<dyn Future<Output = Reply> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async { Reply::of(self.begin().await).await })
    }
}

/// Gives an idle connection up before the server does, which would reset a request on it.
pub fn client_of(server: ConnectionLimits) -> Client {
    let client = Client::builder().pool_idle_timeout(server.head_timeout / 3);
    client.build().expect("a client")
}

pub fn client() -> Client {
    client_of(ConnectionLimits::new(1, false))
}

pub fn ask(client: &Client, method: impl AsRef<str>, url: String) -> Ask {
    Ask(client.request(Method::from_bytes(method.as_ref().as_bytes()).expect("a method"), url))
}

/// Asks again if told to, as anybody may be by a busy machine.
pub async fn until_told(ask: impl AsyncFn() -> Reply) -> Reply {
    wait_for!("an answer", {
        let reply = ask().await;
        if reply.code() != "unavailable" {
            return Some(reply);
        }
        assert_shed(&reply);
        None
    })
}

#[derive(Clone)]
pub struct Entrance {
    pub(super) tokens: Arc<TokenSigner>,
    pub(super) client: Client,
    pub(super) base: String,
}

impl Entrance {
    pub fn of(base: &str, secret: &str) -> Self {
        let tokens = TokenSigner::new(secret.as_bytes()).expect("long enough");
        Self { tokens: Arc::new(tokens), client: client(), base: base.to_owned() }
    }

    pub fn shopper(&self) -> Shopper {
        let user = UserId::random();
        // For a week, as a session: long enough for an instance whose clock is a day ahead.
        let until = OffsetDateTime::now_utc() + time::Duration::WEEK;
        let token = self.tokens.mint(user, "tester", until);
        Shopper { user, token, client: self.client.clone(), base: self.base.clone() }
    }

    pub fn shoppers(&self, count: usize) -> Vec<Shopper> {
        (0..count).map(|_| self.shopper()).collect()
    }

    pub fn at(&self, base: &str) -> Self {
        Self { base: base.to_owned(), ..self.clone() }
    }

    pub fn welcome(&self, other: &Shopper) -> Shopper {
        Shopper { base: self.base.clone(), client: self.client.clone(), ..other.clone() }
    }
}

#[derive(Clone)]
pub struct Shopper {
    pub user: UserId,
    pub token: String,
    client: Client,
    base: String,
}

impl Shopper {
    pub fn ask(&self, method: impl AsRef<str>, path: &str) -> Ask {
        ask(&self.client, method, format!("{}{path}", self.base)).bearer(&self.token)
    }

    pub fn at(&self, app: &TestApp) -> Self {
        app.entrance.welcome(self)
    }

    /// The one that a path of the document wants, of this shopper or the operator.
    pub fn token_at(&self, path: &str) -> &str {
        if path.contains("/admin/") { ADMIN_TOKEN } else { &self.token }
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.ask("GET", path).await
    }

    pub async fn post(&self, path: &str) -> Reply {
        self.ask("POST", path).await
    }

    pub async fn buy(&self, sale: &str) -> Reply {
        self.buy_with(sale, &[]).await
    }

    pub fn buying(&self, sale: &str) -> Ask {
        self.ask("POST", &format!("/api/v1/sales/{sale}/orders"))
    }

    pub async fn buy_with(&self, sale: &str, headers: &[(&str, &str)]) -> Reply {
        self.buying(sale).headers(headers).await
    }

    pub async fn buy_with_key(&self, sale: &str, key: &str) -> Reply {
        self.buy_with(sale, &[("Idempotency-Key", key)]).await
    }

    pub async fn told(&self, sale: &str) -> Reply {
        until_told(async || self.buy(sale).await).await
    }

    pub async fn must_buy(&self, sale: &str) -> String {
        let mut reply = self.buy(sale).await;
        let is_unsure = reply.code() == "unavailable";
        if is_unsure {
            assert_shed(&reply);
            reply = self.told(sale).await;
        }
        if !(is_unsure && reply.code() == "already_ordered") {
            reply.assert(202);
        }
        reply.text("order_id").to_owned()
    }

    pub async fn refused(&self, sale: &str, code: &str) -> Reply {
        let reply = self.told(sale).await;
        reply.assert_problem(409, code);
        reply
    }

    pub async fn order_to_pay(&self, sale: &str) -> String {
        let id = self.must_buy(sale).await;
        self.until(&id, "pending_payment").await;
        id
    }

    pub async fn order(&self, id: &str) -> Reply {
        self.get(&format!("/api/v1/orders/{id}")).await
    }

    pub async fn until(&self, id: &str, status: &str) -> Value {
        wait_for!(&format!("order {id} is {status}"), {
            let reply = self.order(id).await;
            (reply.status == 200 && reply.text("status") == status).then_some(reply.body)
        })
    }

    pub async fn pay(&self, id: &str) -> Reply {
        self.post(&format!("/api/v1/orders/{id}/pay")).await
    }

    pub async fn open_page(&self, id: &str) -> String {
        let page = self.post(&format!("/api/v1/orders/{id}/checkout")).await.must_be(200);
        page.text("url").to_owned()
    }

    pub async fn cancel(&self, id: &str) -> Reply {
        self.post(&format!("/api/v1/orders/{id}/cancel")).await
    }
}

#[derive(Debug, Clone)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: reqwest::header::HeaderMap,
    pub body: Value,
}

impl Reply {
    pub async fn of(response: Response) -> Self {
        let reply = Self::read(response).await.expect("a body");
        assert!(reply.headers.contains_key("x-request-id"), "no request id: {reply:?}");
        reply
    }

    async fn read(response: Response) -> reqwest::Result<Self> {
        let (status, headers) = (response.status(), response.headers().clone());
        let text = response.text().await?;
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Ok(Self { status, headers, body })
    }

    pub fn text(&self, member: &str) -> &str {
        let text = self.body[member].as_str();
        text.unwrap_or_else(|| panic!("no text member {member} in {:#}", self.body))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap_or(""))
    }

    pub fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or("")
    }

    pub fn order(&self) -> Option<String> {
        self.body["order_id"].as_str().map(str::to_owned)
    }

    pub fn is_accepted(&self) -> bool {
        self.status == StatusCode::ACCEPTED
    }

    #[track_caller]
    pub fn assert(&self, status: u16) {
        assert_eq!(self.status, status, "{:#}", self.body);
    }

    #[track_caller]
    pub fn must_be(self, status: u16) -> Self {
        self.assert(status);
        self
    }

    #[track_caller]
    pub fn assert_has(&self, members: Value) {
        assert_has(&self.body, members);
    }

    /// A problem document (RFC 9457) of this status and code, whole.
    #[track_caller]
    pub fn assert_problem(&self, status: u16, code: &str) {
        self.assert_problem_at("", status, code);
    }

    /// The same in a table: `what` names the row.
    #[track_caller]
    pub fn assert_problem_at(&self, what: &str, status: u16, code: &str) {
        assert_eq!((self.status.as_u16(), self.code()), (status, code), "{what}: {:#}", self.body);
        assert_eq!(self.header("content-type"), "application/problem+json");
        self.assert_has(json!({ "status": status }));
        for member in ["type", "title", "detail"] {
            self.text(member);
        }
    }

    /// The same with a Retry-After, in seconds.
    #[track_caller]
    pub fn assert_told_when(&self, status: u16, code: &str) -> u64 {
        self.assert_problem(status, code);
        let seconds = self.header("retry-after").parse().unwrap_or(0);
        assert!(seconds > 0, "no Retry-After: {:?}", self.headers);
        seconds
    }
}

/// The reading end of an event stream.
pub struct Events {
    pub response: Response,
    unread: String,
}

impl Events {
    pub async fn of(ask: Ask) -> Self {
        let response = ask.begin().await;
        assert_eq!(response.status(), 200);
        Self::from(response)
    }

    pub fn from(response: Response) -> Self {
        Self { response, unread: String::new() }
    }

    pub async fn block(&mut self) -> reqwest::Result<Option<String>> {
        loop {
            if let Some((block, rest)) = self.unread.split_once("\n\n") {
                let block = block.to_owned();
                self.unread = rest.to_owned();
                return Ok(Some(block));
            }
            let chunk = tokio::time::timeout(TEST_TIMEOUT, self.response.chunk()).await;
            let Some(chunk) = chunk.expect("something in time")? else { return Ok(None) };
            self.unread += std::str::from_utf8(&chunk).expect("UTF-8");
        }
    }

    /// The next event's name and data; `None` at the end, `Err` at a disorderly one.
    pub async fn try_next(&mut self) -> reqwest::Result<Option<(String, Value)>> {
        while let Some(block) = self.block().await? {
            let field = |name| block.lines().find_map(|line| line.strip_prefix(name));
            if let Some(data) = field("data:") {
                let name = field("event:").unwrap_or_default().trim().to_owned();
                return Ok(Some((name, serde_json::from_str(data).expect("JSON"))));
            }
            assert!(block.lines().all(|line| line.starts_with(':')), "{block:?}");
        }
        Ok(None)
    }

    pub async fn next(&mut self) -> Option<Value> {
        self.try_next().await.expect("an orderly end").map(|(_, data)| data)
    }

    pub async fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        let reading = async {
            loop {
                let event = self.next().await.expect("the stream goes on");
                if wanted(&event) {
                    return event;
                }
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, reading).await.expect("an event in time")
    }
}

/// With these members, too, or with another value of theirs.
pub fn with(mut object: Value, members: &Value) -> Value {
    let more = members.as_object().cloned().unwrap_or_default();
    object.as_object_mut().expect("an object").extend(more);
    object
}

#[track_caller]
pub fn assert_has(value: &Value, members: Value) {
    for (member, expected) in members.as_object().expect("an object") {
        assert_eq!(value.get(member), Some(expected), "{member}: {value:#}");
    }
}

#[track_caller]
pub fn time_of(value: &Value) -> OffsetDateTime {
    let text = value.as_str().unwrap_or_else(|| panic!("no time: {value}"));
    assert!(text.ends_with('Z'), "not in UTC: {text}");
    OffsetDateTime::parse(text, &Rfc3339).unwrap_or_else(|error| panic!("{text}: {error}"))
}

pub fn in_secs(seconds: i64) -> String {
    let at = OffsetDateTime::now_utc() + time::Duration::seconds(seconds);
    at.format(&Rfc3339).expect("a time")
}
