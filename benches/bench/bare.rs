//! The endpoint that everything is compared with: the program's framework, runtime, allocator,
//! socket options, headers, token check and answer, and nothing behind it.

use crate::Result;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing::post, serve::ListenerExt};
use flash_sale::auth::TokenSigner;
use flash_sale::domain::{IdempotencyKey, OrderId, SaleId};
use serde::Serialize;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::{io::Write, sync::Arc};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

struct Bare {
    tokens: TokenSigner,
    next_order: AtomicI64,
}

#[derive(Serialize)]
struct Queued {
    order_id: OrderId,
    sale_id: SaleId,
    status: &'static str,
}

/// Serves until it is killed. `TOKEN_SECRET` says which tokens are good.
pub fn serve() -> Result {
    let tokens = TokenSigner::new(std::env::var("TOKEN_SECRET")?.as_bytes())?;
    // As in the program's main.rs.
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let listener = flash_sale::http::server::listen(([127, 0, 0, 1], 0).into())?;
        println!("bare ready on http://{}", listener.local_addr()?);
        std::io::stdout().flush()?;
        let listener = listener.tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        let bare = Arc::new(Bare {
            tokens,
            // As many digits as a real one.
            next_order: AtomicI64::new(1 << 57),
        });
        let router = Router::new().route("/api/v1/sales/{id}/orders", post(order)).with_state(bare);
        axum::serve(listener, router).await?;
        Ok(())
    })
}

async fn order(
    State(bare): State<Arc<Bare>>,
    Path(sale_id): Path<SaleId>,
    headers: HeaderMap,
) -> Response {
    let token = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let now = time::OffsetDateTime::now_utc();
    if token.and_then(|token| bare.tokens.verify(token, now)).is_none() {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    if let Some(key) = headers.get(IDEMPOTENCY_KEY)
        && IdempotencyKey::parse(key.as_bytes()).is_none()
    {
        return StatusCode::UNPROCESSABLE_ENTITY.into_response();
    }
    let order_id = OrderId::from_i64(bare.next_order.fetch_add(1, Relaxed));
    let body = Queued { order_id, sale_id, status: "queued" };
    let headers = [(header::LOCATION, format!("/api/v1/orders/{order_id}"))];
    (StatusCode::ACCEPTED, headers, Json(body)).into_response()
}
