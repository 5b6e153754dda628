//! The accept loop: how many connections there may be, how long each may take, and how they end.
//!
//! `axum::serve` waits for a request's head for ever and takes as many connections as come.
//! HTTP/1.1 and 1.0 only: a proxy in front speaks HTTP/2 and TLS to browsers.

use crate::web::{address::Address, seats::Seats};
use axum::{
    Router,
    extract::{ConnectInfo, Request},
    serve::Listener,
};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::{io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::Semaphore,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tower::Service;

/// A request's head, request line included. Tokens and cookies need one KiB of it.
const HEAD_LIMIT: usize = 32 * 1024;
/// How long a client may leave answers unread before the system ends its connection.
#[cfg(target_os = "linux")]
const UNREAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long after the port is closed a request may still arrive.
const LAST_REQUESTS: Duration = Duration::from_millis(500);
/// Beyond this many connections it is memory that counts, and that is an operator's decision.
const MOST_BY_DEFAULT: usize = 50_000;
/// Longer than the usual 128, which is full at once when a sale opens: clients that find it full
/// only try again after a second.
const BACKLOG: u32 = 65_535;

/// How many connections there may be and how long they may be silent.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// More of them wait in the system's queue.
    pub most: usize,
    /// More of one address are closed. `None`: it may have all of them, as a proxy has.
    pub most_of_address: Option<usize>,
    /// How long a request's head may take, counted from the answer before it: so it is also how long
    /// a connection may be idle.
    pub head_timeout: Duration,
}

impl ConnectionLimits {
    /// `most` connections, a quarter of them for one address if addresses mean anything.
    pub fn new(most: usize, by_address: bool) -> Self {
        Self {
            most,
            most_of_address: by_address.then_some((most / 4).max(1)),
            head_timeout: Duration::from_secs(15),
        }
    }

    /// What `descriptors` leave for connections: an eighth, and at least 256, are for everything else
    /// that a process opens.
    pub fn most_with(descriptors: usize) -> usize {
        let left = descriptors.saturating_sub((descriptors / 8).max(256));
        left.clamp(64, MOST_BY_DEFAULT)
    }
}

/// Raises the number of files that this process may open to the most that it may have, and returns it.
pub fn raise_descriptor_limit() -> usize {
    /// "Unlimited" is refused by some systems, and a child process may walk through all of them.
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

/// Serves until `draining`, then lets requests finish for at most `grace`.
pub async fn serve(
    mut listener: TcpListener,
    router: Router,
    limits: ConnectionLimits,
    draining: CancellationToken,
    grace: Duration,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_buf_size(HEAD_LIMIT);
    // Turns every handler into a service now, not anew for each request.
    let router = router.with_state::<()>(());
    let free = Arc::new(Semaphore::new(limits.most));
    let seats = Seats::new(limits.most_of_address);
    let (graceful, mut open) = (GracefulShutdown::new(), JoinSet::new());
    let gauge = metrics::gauge!("flash_sale_connections");
    let refused = metrics::counter!("flash_sale_connections_refused_total");
    loop {
        let accepted = async {
            let permit = free.clone().acquire_owned().await;
            (permit, Listener::accept(&mut listener).await)
        };
        let (permit, (stream, peer)) = tokio::select! {
            biased; // who has connected already is taken in: closing the port would reset them
            accepted = accepted => accepted,
            () = draining.cancelled() => break,
        };
        while open.try_join_next().is_some() {}
        let Some(seat) = seats.take(Address::from(peer.ip())) else {
            refused.increment(1);
            continue;
        };
        let _ = stream.set_nodelay(true);
        #[cfg(target_os = "linux")]
        let _ = socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(UNREAD_TIMEOUT));
        let router = router.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(peer));
            router.clone().call(request)
        });
        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
        let gauge = gauge.clone();
        open.spawn(async move {
            gauge.increment(1.0);
            // What ends a connection early was answered, or there is nobody left to answer.
            drop(connection.await);
            gauge.decrement(1.0);
            drop((permit, seat));
        });
    }
    drop(listener);
    // hyper hangs up on whom it has not read from yet; a proxy's last request may be on its way.
    let ended = async { while open.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(LAST_REQUESTS, ended).await;
    if tokio::time::timeout(grace, graceful.shutdown())
        .await
        .is_err()
    {
        tracing::warn!(
            connections = open.len(),
            "cutting connections that would not end"
        );
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
