//! A payment provider over HTTP, spoken to like the sandbox. TLS is for a proxy beside the shop.

use crate::provider::{
    Charge, ChargeRequest, CheckoutRequest, PaymentProvider, Pending, ProviderError, Refund,
    Transaction,
};
use axum::body::{Body, Bytes};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::request::Builder;
use axum::http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::time::timeout;

/// From the first byte out to the last one in.
const TIME_LIMIT: Duration = Duration::from_secs(10);
const CONNECT_TIME_LIMIT: Duration = Duration::from_secs(2);
/// A thousand transactions take a tenth of it.
const MOST_OF_AN_ANSWER: usize = 4 << 20;

/// Sends requests, each within a time limit.
#[derive(Clone)]
pub struct Http(Client<HttpConnector, Body>);

impl Default for Http {
    fn default() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIME_LIMIT));
        connector.set_nodelay(true);
        let mut client = Client::builder(TokioExecutor::new());
        // The other side closes idle connections, too: ours go first.
        client.pool_timer(TokioTimer::new()).pool_idle_timeout(Duration::from_secs(5));
        Self(client.build(connector))
    }
}

impl Http {
    /// The answer, or why none came.
    pub async fn send(&self, request: Request<Body>) -> Result<(StatusCode, Bytes), String> {
        let exchange = async {
            let response = self.0.request(request).await.map_err(|error| chain(&error))?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, MOST_OF_AN_ANSWER).collect().await;
            let body = body.map_err(|error| format!("the answer broke off: {error}"))?;
            Ok((head.status, body.to_bytes()))
        };
        let late = |_| Err(format!("no answer within {} s", TIME_LIMIT.as_secs()));
        timeout(TIME_LIMIT, exchange).await.unwrap_or_else(late)
    }
}

/// "client error (Connect)" says little without its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    words
}

/// Whether it is an address that [`Http`] can reach.
pub fn parse_http_url(text: &str) -> Result<Uri, String> {
    let malformed = || format!("{text:?} is no http:// URL");
    let uri: Uri = text.parse().map_err(|_| malformed())?;
    let is_http = uri.scheme_str() == Some("http") && uri.authority().is_some();
    if is_http { Ok(uri) } else { Err(malformed()) }
}

/// The provider at an address.
pub struct HttpProvider {
    http: Http,
    base: String,
    key: HeaderValue,
}

impl HttpProvider {
    pub fn new(url: &str, key: &str) -> Result<Self, String> {
        let uri = parse_http_url(url)?;
        if uri.query().is_some() {
            return Err(format!("{url:?} must not have a query"));
        }
        let mut bearer = HeaderValue::try_from(format!("Bearer {key}"))
            .map_err(|_| "the provider's key cannot stand in a header".to_owned())?;
        bearer.set_sensitive(true);
        let base = url.trim_end_matches('/').to_owned();
        Ok(Self { http: Http::default(), base, key: bearer })
    }

    fn request(&self, method: Method, path: &str) -> Builder {
        let uri = format!("{}{path}", self.base);
        Request::builder().method(method).uri(uri).header(AUTHORIZATION, self.key.clone())
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ProviderError> {
        self.exchange(self.request(Method::GET, path), Body::empty()).await
    }

    async fn post<T: DeserializeOwned>(
        &self,
        request: Builder,
        body: &impl Serialize,
    ) -> Result<T, ProviderError> {
        let body = serde_json::to_vec(body).map_err(unsent)?;
        self.exchange(request.header(CONTENT_TYPE, "application/json"), body.into()).await
    }

    async fn exchange<T: DeserializeOwned>(
        &self,
        request: Builder,
        body: Body,
    ) -> Result<T, ProviderError> {
        let request = request.body(body).map_err(unsent)?;
        let (status, body) = self.http.send(request).await.map_err(ProviderError::Unknown)?;
        if status.is_success() {
            return serde_json::from_slice(&body).map_err(|error| {
                ProviderError::Unknown(format!("its answer cannot be read: {error}"))
            });
        }
        Err(refusal(status, &body))
    }
}

/// The members of a problem document that count.
#[derive(Deserialize)]
struct Refusal {
    code: String,
    #[serde(default)]
    detail: String,
}

/// Only a problem of the request itself says that nothing was done.
fn refusal(status: StatusCode, body: &[u8]) -> ProviderError {
    let come_again = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS];
    let is_refused = status.is_client_error() && !come_again.contains(&status);
    match serde_json::from_slice::<Refusal>(body) {
        Ok(Refusal { code, detail }) if is_refused => {
            ProviderError::Refused { code, message: detail }
        }
        _ => ProviderError::Unknown(format!("it answered {status}")),
    }
}

fn unsent(error: impl std::fmt::Display) -> ProviderError {
    ProviderError::Refused { code: "malformed".to_owned(), message: error.to_string() }
}

#[derive(Deserialize)]
struct Charges {
    charges: Vec<Charge>,
}

#[derive(Deserialize)]
struct Checkout {
    url: String,
}

#[derive(Deserialize)]
struct Transactions {
    transactions: Vec<Transaction>,
}

#[derive(Serialize)]
struct RefundRequest<'a> {
    charge: &'a str,
    amount_cents: i64,
}

impl PaymentProvider for HttpProvider {
    fn charge<'a>(&'a self, request: &'a ChargeRequest) -> Pending<'a, Charge> {
        Box::pin(self.post(self.request(Method::POST, "/v1/charges"), request))
    }

    fn checkout<'a>(&'a self, request: &'a CheckoutRequest) -> Pending<'a, String> {
        Box::pin(async move {
            let call = self.request(Method::POST, "/v1/checkouts");
            Ok(self.post::<Checkout>(call, request).await?.url)
        })
    }

    fn refund<'a>(
        &'a self,
        key: &'a str,
        charge: &'a str,
        amount_cents: i64,
    ) -> Pending<'a, Refund> {
        Box::pin(async move {
            let call = self.request(Method::POST, "/v1/refunds").header("idempotency-key", key);
            self.post(call, &RefundRequest { charge, amount_cents }).await
        })
    }

    fn charges<'a>(&'a self, reference: &'a str) -> Pending<'a, Vec<Charge>> {
        Box::pin(async move {
            let reference = utf8_percent_encode(reference, NON_ALPHANUMERIC);
            let found = self.get::<Charges>(&format!("/v1/charges?reference={reference}")).await?;
            Ok(found.charges)
        })
    }

    fn transactions(&self, after: u64) -> Pending<'_, Vec<Transaction>> {
        Box::pin(async move {
            let path = format!("/v1/transactions?after={after}");
            Ok(self.get::<Transactions>(&path).await?.transactions)
        })
    }
}
