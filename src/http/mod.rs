//! HTTP: all routes and layers on this screen, one file per resource.
//!
//! A handler reads: who is asking, what they want, one call of the [`Shop`], the answer. What it
//! refuses is a [`error::Problem`].

pub mod admin;
pub mod around;
pub mod body;
pub mod error;
pub mod events;
pub mod extract;
pub mod frame;
pub mod limits;
pub mod openapi;
pub mod orders;
pub mod pages;
pub mod sales;
pub mod session;

use crate::{
    auth::{AdminToken, TokenSigner},
    sale::Shop,
};
use axum::{
    Router,
    body::Bytes,
    http::{HeaderValue, header::CONTENT_TYPE},
    middleware::from_fn_with_state,
    routing::get,
};
use error::{METHOD_NOT_ALLOWED, NOT_FOUND, Problem};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tower::ServiceBuilder;
use tower_http::{
    catch_panic::CatchPanicLayer,
    request_id::{PropagateRequestIdLayer, SetRequestIdLayer},
};
use utoipa::OpenApi;
use utoipa_axum::{router::OpenApiRouter, routes};

pub use {events::Streams, limits::Limits};

/// What the handlers work with.
#[derive(Clone)]
pub struct HttpState {
    pub shop: Arc<Shop>,
    pub tokens: Arc<TokenSigner>,
    /// `None`: there is no admin API.
    pub admin: Option<AdminToken>,
    /// `None`: everybody may ask as often as they like.
    pub limits: Option<Arc<Limits>>,
    /// Renders all metrics as Prometheus text.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
    /// The places for event streams.
    pub streams: Streams,
    /// Cancelled when the server is on its way out: event streams end, `/readyz` says no.
    pub draining: CancellationToken,
    /// Whether a proxy in front says who is asking (X-Forwarded-For, X-Forwarded-Proto).
    pub trust_proxy: bool,
}

/// The state as handlers get it: cloned for every request, so it is one pointer.
pub type App = Arc<HttpState>;

/// The whole server. Serve it with connect info (`SocketAddr`): limits go by address.
pub fn router(state: HttpState) -> Router {
    let app: App = Arc::new(state);
    let (api, document) = api().split_for_parts();
    let document = Bytes::from(document.to_json().expect("the document is plain data"));
    let json = HeaderValue::from_static("application/json");

    // From the outside in. One stack in one `layer`: each `Router::layer` boxes every request anew.
    let around = ServiceBuilder::new()
        .map_request(frame::drop_strange_id)
        .layer(SetRequestIdLayer::x_request_id(frame::RequestIds::new()))
        .layer(PropagateRequestIdLayer::x_request_id())
        .layer(from_fn_with_state(
            frame::Frame::new(app.clone()),
            frame::frame,
        ))
        .layer(CatchPanicLayer::custom(error::panicked));

    api.route(
        "/openapi.json",
        get(async move || ([(CONTENT_TYPE, json)], document)),
    )
    .merge(pages::router())
    .fallback(async || Problem::new(&NOT_FOUND))
    .method_not_allowed_fallback(async || Problem::new(&METHOD_NOT_ALLOWED))
    .layer(around)
    .with_state(app)
}

/// The API as an OpenAPI document.
pub fn openapi() -> utoipa::openapi::OpenApi {
    api().into_openapi()
}

/// Every documented route; the paths stand at the handlers.
fn api() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(openapi::Head::openapi())
        // /api/v1/session
        .routes(routes!(session::open, session::read))
        // /api/v1/sales
        .routes(routes!(sales::list))
        .routes(routes!(sales::read))
        .routes(routes!(events::sale))
        .routes(routes!(orders::purchase))
        // /api/v1/orders
        .routes(routes!(orders::list))
        .routes(routes!(orders::read))
        .routes(routes!(events::order))
        .routes(routes!(orders::pay))
        .routes(routes!(orders::cancel))
        // /api/v1/admin/sales
        .routes(routes!(admin::create))
        .routes(routes!(admin::change))
        .routes(routes!(admin::pause))
        .routes(routes!(admin::resume))
        .routes(routes!(admin::close))
        .routes(routes!(admin::stock))
        .routes(routes!(admin::audit))
        .routes(routes!(admin::orders))
        // /healthz, /readyz, /metrics
        .routes(routes!(around::healthz))
        .routes(routes!(around::readyz))
        .routes(routes!(around::metrics))
}

#[cfg(test)]
mod testing;
