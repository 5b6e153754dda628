//! The accept loop: the number of connections, their time limits, and their end.
//!
//! `axum::serve` has no time limit for request heads and no limit of connections. HTTP/1.1 and 1.0
//! only: a proxy in front speaks HTTP/2 and TLS to browsers.

use crate::address::Address;
use crate::address_limit::AddressLimit;
use axum::Router;
use axum::extract::{ConnectInfo, Request};
use axum::http::header::{CONNECTION, HOST, TRANSFER_ENCODING};
use axum::http::{HeaderValue, StatusCode, Version};
use axum::response::{IntoResponse, Response};
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::Service;

/// The size of a request's head. Tokens and cookies need one KiB.
const HEAD_LIMIT: usize = 32 * 1024;
/// How long answers may stay unread before the system closes the connection.
#[cfg(target_os = "linux")]
const UNREAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long requests may still arrive after the port is closed.
const LAST_REQUESTS: Duration = Duration::from_millis(500);
/// More connections cost much memory: an operator's decision.
const MOST_BY_DEFAULT: usize = 50_000;
/// The usual 128 is full at once when a sale opens, and refused clients retry only after a second.
const BACKLOG: u32 = 65_535;

/// Limits of connections.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// More connections wait in the system's queue.
    pub most: usize,
    /// More connections of one address are closed. `None`: no limit, as for a proxy.
    pub most_of_address: Option<usize>,
    /// The timeout of a request's head, counted from the answer before: also the idle timeout.
    pub head_timeout: Duration,
}

impl ConnectionLimits {
    /// `most` connections; a quarter of them for one address, if `by_address`.
    pub fn new(most: usize, by_address: bool) -> Self {
        Self {
            most,
            most_of_address: by_address.then_some((most / 4).max(1)),
            head_timeout: Duration::from_secs(15),
        }
    }

    /// The connections that `descriptors` allow: an eighth, and at least 256, are for other files.
    pub fn most_with(descriptors: usize) -> usize {
        let left = descriptors.saturating_sub((descriptors / 8).max(256));
        left.clamp(64, MOST_BY_DEFAULT)
    }
}

/// Raises the limit of open files as far as possible, and returns it.
pub fn raise_descriptor_limit() -> usize {
    /// Some systems refuse "unlimited", and child processes may close every possible descriptor.
    const ENOUGH: u64 = 1 << 20;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1_024, 1_024));
    let wanted = hard.min(ENOUGH).max(soft);
    let raised = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).is_ok();
    usize::try_from(if raised { wanted } else { soft }).unwrap_or(usize::MAX)
}

/// Listens on an address.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Requires one Host, and no coding but chunks (RFC 9112 §3.2, §6.1): hyper lets both pass.
fn is_well_formed(request: &Request<Incoming>) -> bool {
    let (headers, is_old) = (request.headers(), request.version() < Version::HTTP_11);
    let hosts = headers.get_all(HOST).iter().count();
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    (hosts == 1 || hosts == 0 && is_old)
        && codings.all(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
}

/// Answers a request. With fewer than `few` places left for others, its connection ends with that.
async fn answer(
    mut router: Router,
    request: Request<Incoming>,
    free: Arc<Semaphore>,
    few: usize,
) -> Result<Response, Infallible> {
    let close = HeaderValue::from_static("close");
    if !is_well_formed(&request) {
        // As hyper answers what it cannot parse.
        return Ok((StatusCode::BAD_REQUEST, [(CONNECTION, close)]).into_response());
    }
    let mut response = router.call(request).await?;
    if free.available_permits() < few {
        response.headers_mut().insert(CONNECTION, close);
    }
    Ok(response)
}

/// Serves until `draining`, then lets requests finish for at most `grace`.
pub async fn serve(
    mut listener: TcpListener,
    router: Router,
    limits: ConnectionLimits,
    draining: CancellationToken,
    grace: Duration,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.head_timeout).max_buf_size(HEAD_LIMIT);
    // Builds the services once, not for each request.
    let router = router.with_state::<()>(());
    let free = Arc::new(Semaphore::new(limits.most));
    let limit = AddressLimit::new(limits.most_of_address);
    let (graceful, mut open) = (GracefulShutdown::new(), JoinSet::new());
    let gauge = metrics::gauge!("flash_sale_connections");
    let refused = metrics::counter!("flash_sale_connections_refused_total");
    let mut start = |stream: TcpStream, peer: SocketAddr, permit: OwnedSemaphorePermit| {
        while open.try_join_next().is_some() {}
        let left = free.available_permits() + 1;
        let Some(address_permit) = limit.take_one_of(left, Address::from(peer.ip())) else {
            refused.increment(1);
            return;
        };
        let _ = stream.set_nodelay(true);
        #[cfg(target_os = "linux")]
        let _ = socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(UNREAD_TIMEOUT));
        let router = router.clone();
        let free = free.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(peer));
            answer(router.clone(), request, free.clone(), limits.most / 8)
        });
        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
        let gauge = gauge.clone();
        open.spawn(async move {
            gauge.increment(1.0);
            // Errors were answered, or the client has gone.
            drop(connection.await);
            gauge.decrement(1.0);
            drop((address_permit, permit));
        });
    };
    loop {
        let accepted = async {
            let permit = free.clone().acquire_owned().await;
            (permit, Listener::accept(&mut listener).await)
        };
        tokio::select! {
            biased; // accept first: closing the port would reset waiting connections
            (Ok(permit), (stream, peer)) = accepted => start(stream, peer, permit),
            () = draining.cancelled() => break,
        }
    }
    // And those that the kernel has and the event loop has not seen yet.
    if let Ok(port) = listener.into_std() {
        while let Ok(permit) = free.clone().try_acquire_owned()
            && let Ok((stream, peer)) = port.accept()
        {
            let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
            let _ = stream.map(|stream| start(stream, peer, permit));
        }
    }
    // hyper closes connections that have sent nothing yet, but a last request may be on its way.
    let ended = async { while open.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(LAST_REQUESTS, ended).await;
    if tokio::time::timeout(grace, graceful.shutdown()).await.is_err() {
        tracing::warn!(connections = open.len(), "closing connections that did not end in time");
        open.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_left_for_the_stores() {
        assert_eq!(ConnectionLimits::most_with(256), 64);
        assert_eq!(ConnectionLimits::most_with(1_024), 768);
        assert_eq!(ConnectionLimits::most_with(20_000), 17_500);
        assert_eq!(ConnectionLimits::most_with(1 << 20), MOST_BY_DEFAULT);
    }

    #[test]
    fn the_descriptor_limit_is_raised_and_known() {
        let raised = raise_descriptor_limit();
        assert!(raised >= 64);
        assert_eq!(raise_descriptor_limit(), raised);
    }
}
