//! The short way to the hottest handler: a purchase as nearly everybody sends it does not go through the router.
//!
//! The router finds one route among all, notes in the request what it found (the pattern, the parameters of the path,
//! the original address, each in a box of its own), and hands the request through a boxed service into a boxed
//! future. That costs a refusal from memory as much as everything that is decided about it. So a POST to
//! `/api/v1/sales/{id}/orders` with a plain id and no body is recognised here and put before the same
//! handler, by the same extractors, within the same [`Frame`]. Everything else, malformed or unusual,
//! is the router's, and so is every other route; that both ways answer the same is tested below.

use super::{
    App,
    body::NoBody,
    door::Shown,
    error::Problem,
    extract::{Id, PacedShopper, RetryKey},
    frame::Frame,
    orders,
};
use crate::domain::SaleId;
use axum::{
    body::HttpBody,
    extract::{ConnectInfo, FromRequestParts, State},
    http::{Method, Request, request::Parts},
    response::{IntoResponse, Response},
};
use futures_util::future::Either;
use std::{convert::Infallible, net::SocketAddr};

/// What stands around the id in [`orders::PURCHASE`].
const BEFORE: &str = "/api/v1/sales/";
const AFTER: &str = "/orders";

/// Serves purchases past the router.
#[derive(Clone)]
pub struct Express {
    app: App,
    frame: Frame,
}

impl Express {
    /// `frame` is the one around the router: requests are numbered and counted together.
    pub fn new(app: App, frame: Frame) -> Self {
        Self { app, frame }
    }

    /// Whether anything on this way asks where a request comes from: limits, and the doors of a sale.
    fn asks_for_addresses(&self) -> bool {
        let app = &self.app;
        app.limits.is_some() || app.bots.limits.is_some() || app.shop.board.has_doors()
    }

    /// The answer to a purchase of the usual form; any other request comes back as it was.
    pub fn take<B: HttpBody>(
        &self,
        request: Request<B>,
        peer: SocketAddr,
    ) -> Either<impl Future<Output = Result<Response, Infallible>> + use<B>, Request<B>> {
        let Some(sale) = sale_of(&request) else {
            return Either::Right(request);
        };
        let (mut parts, _) = request.into_parts();
        if self.asks_for_addresses() {
            parts.extensions.insert(ConnectInfo(peer));
        }
        let app = self.app.clone();
        let buy = async move |parts| buy(app, sale, parts).await;
        Either::Left(self.frame.around_purchase(parts, buy))
    }
}

/// The sale of a purchase that is spelled like nearly all of them.
fn sale_of<B: HttpBody>(request: &Request<B>) -> Option<SaleId> {
    if *request.method() != Method::POST || !request.body().is_end_stream() {
        return None;
    }
    let path = request.uri().path();
    let id = path.strip_prefix(BEFORE)?.strip_suffix(AFTER)?;
    id.parse().ok()
}

/// The arguments of the handler in their order, as axum would find them.
async fn buy(app: App, sale: SaleId, mut parts: Parts) -> Response {
    let bought = async {
        let shopper = PacedShopper::from_request_parts(&mut parts, &app).await?;
        let key = RetryKey::from_request_parts(&mut parts, &app).await?;
        let papers = Shown::from_request_parts(&mut parts, &app).await;
        let papers = papers.unwrap_or_else(|never| match never {});
        orders::purchase(State(app), shopper, Id(sale), key, papers, NoBody).await
    };
    let bought: Result<Response, Problem> = bought.await;
    bought.into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        domain::{Part, Sale, UserId},
        http::{Site, site, testing},
        sale::board::Tally,
    };
    use axum::{
        body::{Body, Bytes},
        http::{HeaderName, HeaderValue},
    };
    use proptest::prelude::*;
    use std::sync::LazyLock;
    use time::macros::datetime;
    use tower::Service;

    const PEER: SocketAddr = SocketAddr::new(
        std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)),
        1_000,
    );
    const USER: UserId = UserId::from_bytes([99; 16]);

    /// A server on whose board sale 1 is sold out: what is asked of it needs neither Redis nor Postgres.
    fn sold_out(limits: bool) -> (Site, String) {
        let state = testing::state();
        let listing = state.shop.board.learn(Sale {
            id: SaleId::from_i64(1),
            title: "phone".to_owned(),
            description: String::new(),
            image_url: String::new(),
            currency: "USD".to_owned(),
            price_cents: 1,
            original_price_cents: None,
            stock: 1,
            per_user_limit: 1,
            opens_at: datetime!(2020-01-01 00:00 UTC),
            closes_at: datetime!(2090-01-01 00:00 UTC),
            payment_timeout_secs: 60,
            paused: false,
            closed: false,
            epoch: 1,
            version: 1,
            buyer_shards: 1,
            buckets: 1,
            former_buckets: 1,
            door: crate::domain::Door::default(),
        });
        listing.tell(
            Part::WHOLE,
            Some(Tally {
                epoch: 1,
                version: 1,
                stock: 1,
                remaining: 0,
                admitted: 0,
                pending: 0,
                change: 1,
                lent: 0,
            }),
        );
        let token = (state.tokens).mint(USER, "Ada", datetime!(2090-01-01 00:00 UTC));
        let limits = limits.then(|| std::sync::Arc::new(crate::http::Limits::new()));
        (site(crate::http::HttpState { limits, ..state }), token)
    }

    /// Status, headers and body; a request id that was made here is only said to be there. Without the length,
    /// which the router adds to the answer and the server to an answer that lacks it.
    type Seen = (u16, Vec<(HeaderName, HeaderValue)>, Bytes);

    async fn seen(response: Response, brought: &[(String, String)]) -> Seen {
        let (parts, body) = response.into_parts();
        let mut headers: Vec<_> = (parts.headers.iter())
            .filter(|(name, _)| *name != "content-length")
            .map(|(name, value)| {
                let is_own = name == "x-request-id"
                    && !(brought.iter()).any(|(_, sent)| sent.as_bytes() == value.as_bytes());
                let value = if is_own {
                    HeaderValue::from_static("made here")
                } else {
                    value.clone()
                };
                (name.clone(), value)
            })
            .collect();
        headers.sort_by(|one, other| one.0.as_str().cmp(other.0.as_str()));
        let body = axum::body::to_bytes(body, 1 << 16).await.expect("a body");
        (parts.status.as_u16(), headers, body)
    }

    async fn by_express(site: &Site, request: Request<Body>) -> Option<Response> {
        match site.express.take(request, PEER) {
            Either::Left(answer) => Some(answer.await.expect("infallible")),
            Either::Right(_) => None,
        }
    }

    async fn by_router(site: &Site, mut request: Request<Body>) -> Response {
        request.extensions_mut().insert(ConnectInfo(PEER));
        site.router.clone().call(request).await.expect("infallible")
    }

    fn header() -> impl Strategy<Value = (String, String)> {
        let name =
            "authorization|idempotency-key|x-request-id|cookie|origin|host|sec-fetch-site|x-other";
        let value = prop_oneof![
            "[ -~]{0,70}",
            Just("BEARER".to_owned()),
            Just("COOKIE".to_owned()),
            Just("same-origin".to_owned()),
        ];
        (name, value)
    }

    static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().expect("a runtime")
    });

    static SOLD_OUT: LazyLock<(Site, String)> = LazyLock::new(|| {
        let _inside = RUNTIME.enter();
        sold_out(false)
    });

    proptest! {
        // A purchase with a key asks Redis, of which there is none here: it waits for two seconds.
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// Whatever is in the path and the headers: what the short way takes, it answers as the router does.
        #[test]
        fn both_ways_answer_the_same(
            method in "POST|POST|POST|GET|PUT",
            path in prop_oneof![
                6 => Just("/api/v1/sales/1/orders".to_owned()),
                1 => Just("/api/v1/sales/1/orders?a=b".to_owned()),
                1 => Just("/api/v1/sales/%31/orders".to_owned()),
                1 => "/api/v1/sales/(0|01|x|-1|99999999999999999999|1/1|)/orders/?",
            ],
            mut headers in prop::collection::vec(header(), 0..4),
            signed in prop::bool::weighted(0.3),
            body in "(|||\\{\\}|no body)",
        ) {
            let (site, token) = &*SOLD_OUT;
            if signed {
                headers.insert(0, ("authorization".to_owned(), "BEARER".to_owned()));
            }
            for (_, value) in &mut headers {
                *value = value.replace("BEARER", &format!("Bearer {token}"));
                *value = value.replace("COOKIE", &format!("session={token}"));
            }
            let request = || {
                let mut request = Request::builder().method(&*method).uri(&path);
                for (name, value) in &headers {
                    request = request.header(name, value);
                }
                request.body(Body::from(body.clone())).expect("a request")
            };
            let (short, usual) = RUNTIME.block_on(async {
                let short = match by_express(site, request()).await {
                    Some(response) => Some(seen(response, &headers).await),
                    None => None,
                };
                (short, seen(by_router(site, request()).await, &headers).await)
            });
            if let Some(short) = short {
                prop_assert_eq!(short, usual);
            } else {
                prop_assert!(method != "POST" || !path.starts_with("/api/v1/sales/1/orders") || !body.is_empty());
            }
        }
    }

    /// The limit of an address counts on the short way as on the other, and for both together.
    #[tokio::test]
    async fn an_address_is_limited_on_both_ways_together() {
        let (site, token) = sold_out(true);
        let request = || {
            Request::post("/api/v1/sales/1/orders")
                .header("authorization", format!("Bearer {token}"))
                .body(Body::empty())
                .expect("a request")
        };
        let mut refused = [0, 0];
        for number in 0..4_000 {
            let short = number % 2 == 0;
            let response = if short {
                by_express(&site, request()).await.expect("taken")
            } else {
                by_router(&site, request()).await
            };
            refused[usize::from(short)] += u32::from(response.status() == 429);
        }
        // 1,000 at once and 500 a second are let in; this takes a fraction of one.
        assert!(refused.iter().all(|&refused| refused > 500), "{refused:?}");
    }
}
