//! The lab's routes: strategies, arenas, purchases, storms, verdicts, visitors' own servers,
//! lessons, locks. Without a lab (`LAB=off`) every handler answers 404 before it looks at anything.
//!
//! Nobody has to say who they are: an arena sells nothing. It is bounded in number, size and age,
//! and everybody who knows its id may use it. A visitor's own server is judged only for one who
//! sits at this machine (`local.rs`).

mod arenas;
mod error;
mod extract;
mod judgements;
mod lessons;
mod local;
mod progress;
mod state;
mod strategies;

pub use error::ALL as ALL_KINDS;
pub use state::LabState;

use axum::middleware::from_extractor_with_state;
use local::NotRebound;
use tower_http::{CompressionLevel, compression::CompressionLayer};
use utoipa_axum::{router::OpenApiRouter, routes};

/// /api/v1/lab
pub fn routes<S: Clone + Send + Sync + 'static>(state: LabState) -> OpenApiRouter<S> {
    OpenApiRouter::new()
        .routes(routes!(strategies::list))
        .routes(routes!(strategies::locks))
        .routes(routes!(arenas::create))
        .routes(routes!(arenas::delete))
        .routes(routes!(arenas::purchase))
        .routes(routes!(arenas::storm))
        .routes(routes!(arenas::events))
        .routes(routes!(arenas::verdict))
        .routes(routes!(arenas::report))
        .routes(routes!(judgements::start))
        .routes(routes!(judgements::stop))
        .routes(routes!(judgements::events))
        .routes(routes!(judgements::report))
        .routes(routes!(lessons::list))
        .routes(routes!(lessons::play))
        .routes(routes!(lessons::ids))
        .layer(CompressionLayer::new().quality(CompressionLevel::Best))
        .layer(from_extractor_with_state::<NotRebound, _>(state.clone()))
        .with_state(state)
}
