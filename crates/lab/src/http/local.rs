//! Whether a visitor sits at this machine. Only then may they have this program send requests on
//! it: from elsewhere it would be a way to what listens here for nobody else.

use super::error::{CROSS_ORIGIN, LOCAL_ONLY, Problem};
use super::state::LabState;
use crate::loopback;
use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::{Version, request::Parts};
use std::net::{IpAddr, SocketAddr};
use web::extract::host;

/// Headers that proxies add.
const OF_PROXIES: [&str; 6] =
    ["forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"];

pub struct OnThisMachine;

impl FromRequestParts<LabState> for OnThisMachine {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &LabState) -> Result<Self, Problem> {
        match sits_here(parts, state) && is_asked_by_name(parts) {
            true => Ok(Self),
            false => Err(Problem::new(&LOCAL_ONLY)),
        }
    }
}

/// A visitor on this machine asks by one of its names. Another name may have been pointed at it, so
/// that a foreign page reaches the lab (DNS rebinding).
pub struct NotRebound;

impl FromRequestParts<LabState> for NotRebound {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &LabState) -> Result<Self, Problem> {
        let is_fixed = |text: &str| {
            let name = text.rsplit_once(':').map_or(text, |(name, _)| name);
            // Browsers take *.localhost for this machine without asking a name server.
            name.ends_with(".localhost")
                || text.parse::<SocketAddr>().is_ok()
                || text.parse::<IpAddr>().is_ok()
        };
        let is_fixed = host(&parts.headers, &parts.uri).is_some_and(is_fixed);
        // Of a judgement `OnThisMachine` says more.
        let is_judgement = parts.uri.path().contains("/judgements");
        match state.lab.is_some() && sits_here(parts, state) && !is_judgement {
            true if !is_fixed && !is_asked_by_name(parts) => Err(Problem::new(&CROSS_ORIGIN)),
            _ => Ok(Self),
        }
    }
}

fn sits_here(parts: &Parts, state: &LabState) -> bool {
    let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>();
    // Browsers speak 1.1; nginx, as it comes, speaks 1.0 to what is behind it.
    let is_behind_a_proxy = state.trust_proxy.is_on()
        || parts.version < Version::HTTP_11
        || OF_PROXIES.iter().any(|name| parts.headers.contains_key(*name));
    !is_behind_a_proxy
        && peer.is_some_and(|ConnectInfo(peer)| peer.ip().to_canonical().is_loopback())
}

fn is_asked_by_name(parts: &Parts) -> bool {
    host(&parts.headers, &parts.uri).and_then(loopback::authority).is_some()
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
