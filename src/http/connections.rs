//! Connections: accepting them, how many there may be, how long each may take, how they end.
//!
//! `axum::serve` would do in a line what this file does, but it waits for ever: for a request that
//! trickles in, for a client that does not read its answer. Here every wait ends:
//!
//! | what a client is slow at | until | then |
//! |---|---|---|
//! | sending a request's head, or a next request | [`ConnectionLimits::head_patience`] | 408 if it had begun one, and the end of the connection |
//! | sending a body | `body::PATIENCE` | 408 |
//! | reading answers and events | [`UNREAD_PATIENCE`] (Linux) | the system ends the connection |
//! | letting go when the server stops | the grace given to [`serve`] | the end of the connection |
//!
//! How the server stops without refusing anybody who is on the way to it: [`super::departure`].
//!
//! **More clients than there is room for** are told 503 at once rather than left in the system's queue
//! of connections: one who is told can try another instance or come back, one who is not sees a server
//! that is dead. A connection that comes while every descriptor is in use cannot even be accepted; the
//! loop then waits a moment and tries again.
//!
//! HTTP/1.1 and 1.0 only, as `axum::serve` gives without its `http2` feature. A proxy in front speaks
//! HTTP/2 and TLS to browsers.

use super::{
    departure::{self, Leaving},
    error::{Problem, REQUEST_TIMEOUT},
    limits::Address,
    seats::Seats,
};
use axum::{
    Router,
    extract::{ConnectInfo, Request},
};
use futures_util::TryFutureExt;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{
    future::poll_fn,
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::Poll,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::Notify,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tower::Service as _;

/// A request's head, request line included. Tokens and cookies need one KiB of it.
const HEAD_LIMIT: usize = 32 * 1024;
/// How long what was sent to a client may lie unread before the system gives the connection up.
const UNREAD_PATIENCE: Duration = Duration::from_secs(30);
/// How long a refused client has to read that it was refused, and how many are being told at once;
/// the others are only hung up on.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(1);
const REFUSALS_AT_ONCE: usize = 64;
/// How long to wait when the system has no descriptor for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(250);
/// Beyond this many connections it is memory that counts, and that is an operator's decision.
const MOST_BY_DEFAULT: usize = 50_000;

/// How many connections there may be and how patient the server is with each.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    pub most: usize,
    /// `None`: one address may have all of them, as a proxy has.
    pub most_of_address: Option<usize>,
    /// How long a request's head may take, counted from the end of the answer before it: so it is also
    /// how long a connection may be idle.
    pub head_patience: Duration,
}

impl ConnectionLimits {
    pub const HEAD_PATIENCE: Duration = Duration::from_secs(15);

    /// `most` connections, a quarter of them for one address if addresses mean anything.
    pub fn new(most: usize, by_address: bool) -> Self {
        Self {
            most,
            most_of_address: by_address.then_some((most / 4).max(1)),
            head_patience: Self::HEAD_PATIENCE,
        }
    }

    /// What `descriptors` leave for connections: an eighth, and at least 256, are for the stores, files
    /// and whatever else a process opens.
    pub fn most_with(descriptors: usize) -> usize {
        let reserved = (descriptors / 8).max(256);
        descriptors
            .saturating_sub(reserved)
            .clamp(64, MOST_BY_DEFAULT)
    }
}

/// Raises the number of descriptors that this process may open to the most that the system lets it,
/// and answers how many that are. The usual soft limit (1,024) is from the days of `select`.
pub fn raise_descriptor_limit() -> usize {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    /// "Unlimited" is refused by some systems, and a child process may walk through all of them.
    const ENOUGH: u64 = 1 << 20;
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return 1_024;
    };
    let wanted = hard.min(ENOUGH).max(soft);
    let raised = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).is_ok();
    usize::try_from(if raised { wanted } else { soft }).unwrap_or(usize::MAX)
}

/// How many connections may wait to be accepted; the system takes the lesser of this and its own bound
/// (Linux: `net.core.somaxconn`, 4,096 for years now).
const BACKLOG: u32 = 65_535;

/// Listens on an address.
///
/// The usual backlog of 128 is full after 128 of the people who come when a sale opens, and whoever finds it
/// full is not refused but forgotten: their system sends again after a second, then after three.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // A port whose last connections are still being forgotten can be had at once. (On Windows it would
    // mean that two may listen.)
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves until `draining`, then lets requests finish for at most `grace`. Returns when the last
/// connection is closed.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: ConnectionLimits,
    leaving: Arc<Leaving>,
    draining: CancellationToken,
    grace: Duration,
) {
    let house = House {
        http: http(&limits),
        // Turns every handler into a service now; left out, that happens anew for each request.
        router: router.with_state(()),
        leaving,
        ending: Arc::default(),
        seats: Seats::new(limits.most_of_address),
    };
    let gauge = metrics::gauge!("flash_sale_connections");
    let turned_away = metrics::counter!("flash_sale_connections_refused_total");
    let (mut open, mut refusals) = (JoinSet::new(), JoinSet::new());
    loop {
        let accepted = tokio::select! {
            biased;
            () = draining.cancelled() => break,
            Some(_) = open.join_next() => {
                gauge.decrement(1.0);
                continue;
            }
            Some(_) = refusals.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                after_failed_accept(&error).await;
                continue;
            }
        };
        let seat = (open.len() < limits.most)
            .then(|| house.seats.take(Address::from(peer.ip())))
            .flatten();
        if let Some(seat) = seat {
            gauge.increment(1.0);
            let conversation = house.converse(stream, peer);
            open.spawn(async move {
                conversation.await;
                drop(seat);
            });
        } else {
            turned_away.increment(1);
            if refusals.len() < REFUSALS_AT_ONCE {
                refusals.spawn(refuse(stream));
            }
        }
    }
    // From here on the system refuses who comes. Who came before that is served.
    for (stream, peer) in departure::last_guests(listener).await {
        gauge.increment(1.0);
        open.spawn(house.converse(stream, peer));
    }
    house.ending.begin();
    refusals.abort_all();
    let finished = tokio::time::timeout(grace, async {
        while open.join_next().await.is_some() {
            gauge.decrement(1.0);
        }
    });
    if finished.await.is_err() {
        tracing::warn!(
            connections = open.len(),
            "cutting connections that would not end"
        );
        gauge.decrement(open.len() as f64);
        open.shutdown().await;
    }
}

fn http(limits: &ConnectionLimits) -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head_patience)
        .max_buf_size(HEAD_LIMIT);
    http
}

/// Whether one connection was gone before it was accepted, which says nothing about the next.
pub(super) fn was_of_the_guest(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    [ConnectionAborted, ConnectionRefused, ConnectionReset].contains(&error.kind())
}

/// An error that is not the guest's is the system's shortage (of descriptors, of memory), and asking again at
/// once would only spin.
async fn after_failed_accept(error: &io::Error) {
    if was_of_the_guest(error) {
        return;
    }
    tracing::warn!(%error, "no connection can be accepted at the moment");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

/// That the port is closed and connections have to end, as they hear of it.
///
/// A flag besides the bell, so that a connection that is polled for any other reason (and it is for every
/// request) only reads it: to ask the bell, or a `CancellationToken`, takes a lock that all connections
/// share.
#[derive(Default)]
struct Ending {
    begun: AtomicBool,
    bell: Notify,
}

impl Ending {
    fn begin(&self) {
        self.begun.store(true, SeqCst);
        self.bell.notify_waiters();
    }
}

/// What every connection is served with.
struct House {
    http: http1::Builder,
    router: Router,
    leaving: Arc<Leaving>,
    ending: Arc<Ending>,
    seats: Seats,
}

impl House {
    /// Answers the requests of one connection until either side ends it.
    fn converse(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
    ) -> impl Future<Output = ()> + Send + 'static {
        prepare(&stream);
        let router = self.router.clone();
        let leaving = self.leaving.clone();
        let guest = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(peer));
            // A router is always ready.
            let answer = router.clone().call(request);
            // Looked at when the answer is there: it may have been long in the making.
            let leaving = leaving.clone();
            answer.map_ok(move |answer| {
                if leaving.is_set() {
                    departure::say_goodbye(answer)
                } else {
                    answer
                }
            })
        });
        let mut connection = self.http.serve_connection(TokioIo::new(stream), guest);
        let ending = self.ending.clone();
        async move {
            let mut bell = pin!(ending.bell.notified());
            let mut listens = false;
            let told = poll_fn(|context| {
                if !listens {
                    // This task's waker stays the same, so to leave it once is enough. It is left before the
                    // flag is read: whoever raises that afterwards finds it.
                    let _ = bell.as_mut().poll(context);
                    listens = true;
                }
                if ending.begun.load(SeqCst) {
                    return Poll::Ready(None);
                }
                Pin::new(&mut connection).poll(context).map(Some)
            });
            let ended = match told.await {
                Some(ended) => ended,
                None => {
                    let last = tokio::time::timeout(departure::LAST_WORDS, &mut connection);
                    match last.await {
                        Ok(ended) => ended,
                        Err(_) => {
                            // At once if it is idle, else after the answer that is being made.
                            Pin::new(&mut connection).graceful_shutdown();
                            (&mut connection).await
                        }
                    }
                }
            };
            // Everything else that ends a connection was answered, or there is nobody left to answer.
            if ended.is_err_and(|error| error.is_timeout()) {
                let rest = connection.into_parts();
                // An idle client has asked nothing, so it is told nothing.
                if !rest.read_buf.is_empty() {
                    let late = Problem::new(&REQUEST_TIMEOUT).on_the_wire();
                    let _ = rest.io.into_inner().try_write(&late);
                }
            }
        }
    }
}

/// Answers are small and must not wait for more to send, nor lie unread for ever.
fn prepare(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    #[cfg(target_os = "linux")]
    let _ = socket2::SockRef::from(stream).set_tcp_user_timeout(Some(UNREAD_PATIENCE));
}

/// Tells a client that there is no room, without waiting for what it wants.
async fn refuse(mut stream: TcpStream) {
    let told = async {
        let full = Problem::unavailable("too many connections are open", REFUSAL_PATIENCE);
        stream.write_all(&full.on_the_wire()).await?;
        stream.shutdown().await?;
        // Closing with unread bytes resets the connection, and the answer may be lost.
        let mut thrown_away = [0; 1_024];
        while stream.read(&mut thrown_away).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = tokio::time::timeout(REFUSAL_PATIENCE, told).await;
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
