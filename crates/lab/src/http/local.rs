//! Whether a visitor sits at this machine. Only then may they have this program send requests on
//! it: from elsewhere it would be a way to what listens here for nobody else.

use super::error::{LOCAL_ONLY, Problem};
use super::state::LabState;
use crate::loopback;
use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::{Version, request::Parts};
use std::net::SocketAddr;
use web::extract::host;

/// Headers that proxies add.
const OF_PROXIES: [&str; 6] =
    ["forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"];

pub struct OnThisMachine;

impl FromRequestParts<LabState> for OnThisMachine {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &LabState) -> Result<Self, Problem> {
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>();
        let is_here = peer.is_some_and(|ConnectInfo(peer)| peer.ip().to_canonical().is_loopback());
        // Browsers speak 1.1; nginx, as it comes, speaks 1.0 to what is behind it.
        let is_behind_a_proxy = state.trust_proxy.is_on()
            || parts.version < Version::HTTP_11
            || OF_PROXIES.iter().any(|name| parts.headers.contains_key(*name));
        // Another name may be one that somebody has pointed at this machine (DNS rebinding).
        let is_asked_by_name = host(&parts.headers, &parts.uri).and_then(loopback::authority);
        match is_here && !is_behind_a_proxy && is_asked_by_name.is_some() {
            true => Ok(Self),
            false => Err(Problem::new(&LOCAL_ONLY)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;

    async fn is_let_in(peer: &str, name: &str, value: &str) -> bool {
        let request = Request::builder().header("host", "127.0.0.1:8080").header(name, value);
        let (mut parts, ()) = request.body(()).expect("a request").into_parts();
        if let Ok(peer) = peer.parse() {
            parts.extensions.insert(ConnectInfo::<SocketAddr>(peer));
        }
        OnThisMachine::from_request_parts(&mut parts, &LabState::default()).await.is_ok()
    }

    #[tokio::test]
    async fn only_who_sits_at_this_machine_is_let_in() {
        for here in ["127.0.0.1:5000", "[::1]:5000", "[::ffff:127.0.0.1]:5000"] {
            assert!(is_let_in(here, "accept", "*/*").await, "{here}");
        }
        for elsewhere in ["192.0.2.1:5000", "[2001:db8::1]:5000", "[::ffff:192.0.2.1]:5000", "?"] {
            assert!(!is_let_in(elsewhere, "accept", "*/*").await, "{elsewhere}");
        }
        for name in OF_PROXIES {
            assert!(!is_let_in("127.0.0.1:5000", name, "127.0.0.1").await, "{name}");
        }
    }
}
