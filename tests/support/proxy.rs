//! A fault proxy between the program and a server. A fault applies to open connections from the
//! next byte on, except [`Fault::Refuse`], which concerns new ones only; [`Proxy::cut`] ends the
//! open ones.

use flash_sale::embedded::PostgresAddress;
use std::{
    collections::VecDeque,
    fmt, io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};

/// Where a server listens, or this proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Address {
    /// The socket of a Postgres.
    pub fn of_postgres(address: &PostgresAddress) -> Self {
        let name = format!(".s.PGSQL.{}", address.port);
        Self::Unix(address.socket_dir.join(name))
    }
}

/// What stands behind a proxy.
pub type Target = Address;

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// What the network does to the bytes.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// Nothing: everything passes.
    None,
    /// Nobody listens: a new connection is refused by the kernel.
    Refuse,
    /// Bytes vanish, in both directions, and nobody hears of a close. A connection that has lost a
    /// byte stays silent for ever, also when the fault is over: what follows a hole is not the same
    /// conversation any more. (A firewall that forgot its connections does just this.)
    BlackHole,
    /// A black hole for connections that send a request with these bytes in it, from there on.
    SilentTo { request: &'static str },
    /// A black hole for whoever comes from this address.
    SilentFrom(IpAddr),
    /// Every byte arrives that much later, in each direction.
    Latency(Duration),
    /// So many bytes a second, in each direction of each connection.
    Throttle { bytes_per_second: u32 },
    /// A connection is cut after it has passed so many more bytes of requests.
    CutRequest { after: u64 },
    /// The server gets the request and acts on it; then the connection closes without its reply.
    LoseReplies {
        which: Lost,
        /// Only replies to a request with these bytes in it ("FCALL", "COMMIT"); empty: all.
        to: &'static str,
    },
}

/// Which replies are lost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Lost {
    /// The next so many; then all pass again.
    Next(u32),
    /// Each with this probability, from 0 to 1.
    Share(f64),
}

/// What a proxy has done so far. A test that wants a fault looks here whether there was one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub accepted: u64,
    /// Connections ended by [`Proxy::cut`] or [`Fault::CutRequest`].
    pub cut: u64,
    pub lost_replies: u64,
    pub swallowed_bytes: u64,
    /// Pieces that were held back by latency or throttling.
    pub delayed: u64,
    /// Connections closed because the target did not take them.
    pub unreachable: u64,
}

/// See the head of this file.
pub struct Proxy {
    address: Address,
    shared: Arc<Shared>,
    cuts: watch::Sender<u64>,
    listening: watch::Receiver<bool>,
    acceptor: JoinHandle<()>,
}

struct Shared {
    target: Mutex<Target>,
    fault: watch::Sender<Fault>,
    /// How many replies [`Lost::Next`] still takes.
    replies_to_lose: AtomicU32,
    dice: AtomicU64,
    counts: Mutex<Counts>,
}

impl Shared {
    fn count(&self, add: impl FnOnce(&mut Counts)) {
        add(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn target(&self) -> Target {
        let target = self.target.lock().unwrap_or_else(PoisonError::into_inner);
        target.clone()
    }

    /// Whether this reply is to be lost.
    fn loses(&self, which: Lost) -> bool {
        match which {
            Lost::Next(_) => self
                .replies_to_lose
                .fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1))
                .is_ok(),
            Lost::Share(share) => {
                // SplitMix64: good enough dice, and no lock.
                let mut x = self.dice.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed);
                x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                ((x >> 11) as f64 / (1u64 << 53) as f64) < share
            }
        }
    }
}

impl Proxy {
    /// A proxy on a free port of 127.0.0.1.
    pub async fn start(target: Target) -> Self {
        let address = Address::Tcp((Ipv4Addr::LOCALHOST, free_port()).into());
        Self::start_at(address, target).await
    }

    /// A proxy on this port or unix socket.
    pub async fn start_at(address: Address, target: Target) -> Self {
        let (cuts, cut) = watch::channel(0);
        let (heard, listening) = watch::channel(false);
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            fault: watch::Sender::new(Fault::None),
            replies_to_lose: AtomicU32::new(0),
            dice: AtomicU64::new(0),
            counts: Mutex::default(),
        });
        let acceptor = tokio::spawn(accept(address.clone(), shared.clone(), heard, cut));
        let proxy = Self {
            address,
            shared,
            cuts,
            listening,
            acceptor,
        };
        proxy.until_listening(true).await;
        proxy
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The same of a proxy that is not on a socket.
    pub fn tcp_address(&self) -> SocketAddr {
        match &self.address {
            Address::Tcp(address) => *address,
            Address::Unix(path) => panic!("a proxy on a socket: {}", path.display()),
        }
    }

    /// New connections go there from now on; open ones stay where they are ([`Proxy::cut`] ends them).
    pub fn set_target(&self, target: Target) {
        let mut current = (self.shared.target.lock()).unwrap_or_else(PoisonError::into_inner);
        *current = target;
    }

    /// The fault from now on. When this returns, it is in force.
    pub async fn set(&self, fault: Fault) {
        if let Fault::LoseReplies {
            which: Lost::Next(replies),
            ..
        } = fault
        {
            self.shared.replies_to_lose.store(replies, Relaxed);
        }
        let refuse = fault == Fault::Refuse;
        self.shared.fault.send_replace(fault);
        self.until_listening(!refuse).await;
    }

    /// Closes all connections that are open now.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    pub fn counts(&self) -> Counts {
        *(self.shared.counts.lock()).unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the dice of [`Lost::Share`] reproducible.
    pub fn seed(&self, seed: u64) {
        self.shared.dice.store(seed, Relaxed);
    }

    async fn until_listening(&self, wanted: bool) {
        let mut listening = self.listening.clone();
        listening
            .wait_for(|is_listening| *is_listening == wanted)
            .await
            .expect("the acceptor lives as long as its proxy");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The connections end because the sender of the cuts goes with this value.
        self.acceptor.abort();
        if let Address::Unix(path) = &self.address {
            std::fs::remove_file(path).ok();
        }
    }
}

/// A port that nobody listens on now. Below the range from which the kernel takes the ports of
/// outgoing connections, so that it is still free when somebody comes back to it after a crash.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    const RANGE: std::ops::Range<u32> = 15_000..32_000;
    // Processes that run at once begin far from each other.
    let start = std::process::id().wrapping_mul(7_919);
    for _ in RANGE {
        let offset = start.wrapping_add(NEXT.fetch_add(1, Relaxed)) % (RANGE.end - RANGE.start);
        let port = u16::try_from(RANGE.start + offset).expect("the range ends below 65536");
        if std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no port of {RANGE:?} is free");
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Either kind of stream.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

fn without_delay(stream: TcpStream) -> Box<dyn Stream> {
    // A piece must not wait for more to come; failing to ask for that harms nothing.
    stream.set_nodelay(true).ok();
    Box::new(stream)
}

impl Listener {
    async fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => TcpListener::bind(address).await.map(Self::Tcp),
            Address::Unix(path) => {
                std::fs::remove_file(path).ok();
                UnixListener::bind(path).map(Self::Unix)
            }
        }
    }

    /// A connection, and where it comes from.
    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Option<IpAddr>)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, from) = listener.accept().await?;
                Ok((without_delay(stream), Some(from.ip())))
            }
            Self::Unix(listener) => Ok((Box::new(listener.accept().await?.0), None)),
        }
    }
}

async fn connect(target: &Target) -> io::Result<Box<dyn Stream>> {
    match target {
        Address::Tcp(address) => Ok(without_delay(TcpStream::connect(address).await?)),
        Address::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
    }
}

/// Takes connections, except while the fault is to refuse them.
async fn accept(
    address: Address,
    shared: Arc<Shared>,
    listening: watch::Sender<bool>,
    cut: watch::Receiver<u64>,
) {
    let mut fault = shared.fault.subscribe();
    // The sender is in `shared`, so waiting for a fault never fails.
    while fault
        .wait_for(|fault| *fault != Fault::Refuse)
        .await
        .is_ok()
    {
        let listener = match Listener::bind(&address).await {
            Ok(listener) => listener,
            Err(_) => {
                // Somebody still has the port for a moment; whoever waits for this proxy goes on waiting.
                sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        listening.send_replace(true);
        loop {
            // The guard that `wait_for` answers with must not live across an await.
            let refused = async { drop(fault.wait_for(|fault| *fault == Fault::Refuse).await) };
            tokio::select! {
                biased;
                () = refused => break,
                accepted = listener.accept() => match accepted {
                    Ok((client, from)) => {
                        shared.count(|counts| counts.accepted += 1);
                        let mut cut = cut.clone();
                        cut.mark_unchanged();
                        tokio::spawn(serve(client, from, shared.clone(), cut));
                    }
                    // Out of file descriptors: they come back when connections end.
                    Err(_) => sleep(Duration::from_millis(10)).await,
                },
            }
        }
        drop(listener);
        listening.send_replace(false);
    }
}

/// What both directions of a connection know.
#[derive(Default)]
struct Connection {
    from: Option<IpAddr>,
    /// It has lost a byte in a black hole.
    silent: AtomicBool,
    /// A request whose reply may be lost is on its way.
    awaited: AtomicBool,
}

impl Connection {
    /// Whether nothing of it comes through.
    fn is_swallowed_by(&self, fault: &Fault) -> bool {
        match fault {
            Fault::BlackHole => true,
            Fault::SilentFrom(address) => self.from == Some(*address),
            _ => false,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Requests,
    Replies,
}

/// One connection, from accept to its end.
async fn serve(
    client: Box<dyn Stream>,
    from: Option<IpAddr>,
    shared: Arc<Shared>,
    mut cut: watch::Receiver<u64>,
) {
    let carried = async {
        let (from_client, to_client) = tokio::io::split(client);
        let connection = Connection {
            from,
            ..Connection::default()
        };
        let is_swallowed = connection.is_swallowed_by(&shared.fault.borrow());
        if is_swallowed {
            connection.silent.store(true, Relaxed);
            let nowhere = tokio::io::split(Box::new(tokio::io::empty()) as Box<dyn Stream>).1;
            let _ = carry(
                Direction::Requests,
                from_client,
                nowhere,
                &shared,
                &connection,
            )
            .await;
            return;
        }
        let Ok(server) = connect(&shared.target()).await else {
            shared.count(|counts| counts.unreachable += 1);
            return;
        };
        let (from_server, to_server) = tokio::io::split(server);
        // Whichever side ends first ends the connection: neither protocol behind this proxy closes
        // one direction and goes on with the other.
        tokio::select! {
            _ = carry(Direction::Requests, from_client, to_server, &shared, &connection) => {}
            _ = carry(Direction::Replies, from_server, to_client, &shared, &connection) => {}
        }
    };
    tokio::select! {
        () = carried => {}
        changed = cut.changed() => {
            // An error means that the proxy itself has gone.
            if changed.is_ok() {
                shared.count(|counts| counts.cut += 1);
            }
        }
    }
}

/// The most that is read at once, and how many such pieces a latency may hold.
const PIECE: usize = 16 * 1024;
const PIECES_IN_FLIGHT: usize = 4 * 1024;

/// Carries bytes one way until one side ends or a fault ends it.
async fn carry(
    direction: Direction,
    mut from: ReadHalf<Box<dyn Stream>>,
    mut to: WriteHalf<Box<dyn Stream>>,
    shared: &Shared,
    connection: &Connection,
) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    // Pieces on their way, with the time of their arrival: latency must not lower the throughput.
    let mut in_flight: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    let mut request_bytes_left: Option<u64> = None;
    loop {
        let next_arrival = in_flight.front().map(|(arrival, _)| *arrival);
        let length = tokio::select! {
            () = sleep_until(next_arrival.unwrap_or_else(Instant::now)), if next_arrival.is_some() => {
                if let Some((_, bytes)) = in_flight.pop_front() {
                    to.write_all(&bytes).await?;
                }
                continue;
            }
            read = from.read(&mut piece), if in_flight.len() < PIECES_IN_FLIGHT => read?,
        };
        let fault = shared.fault.borrow().clone();
        if length == 0 {
            if direction == Direction::Replies && connection.silent.load(Relaxed) {
                // A close of the server does not come through a black hole either.
                return std::future::pending().await;
            }
            for (arrival, bytes) in in_flight {
                sleep_until(arrival).await;
                to.write_all(&bytes).await?;
            }
            return to.shutdown().await;
        }
        let falls_silent = match &fault {
            Fault::SilentTo { request } => {
                direction == Direction::Requests && contains(&piece[..length], request.as_bytes())
            }
            fault => connection.is_swallowed_by(fault),
        };
        if falls_silent || connection.silent.load(Relaxed) {
            connection.silent.store(true, Relaxed);
            in_flight.clear();
            shared.count(|counts| counts.swallowed_bytes += length as u64);
            continue;
        }
        let mut bytes = &piece[..length];
        let mut cut_here = false;
        match (&fault, direction) {
            (Fault::CutRequest { after }, Direction::Requests) => {
                let left = request_bytes_left.get_or_insert(*after);
                cut_here = *left <= length as u64;
                bytes = &bytes[..length.min(usize::try_from(*left).unwrap_or(length))];
                *left = left.saturating_sub(length as u64);
            }
            (Fault::LoseReplies { to: marker, .. }, Direction::Requests) => {
                let expected = marker.is_empty() || contains(bytes, marker.as_bytes());
                connection.awaited.fetch_or(expected, Relaxed);
            }
            (Fault::LoseReplies { which, to: marker }, Direction::Replies) => {
                let expected = connection.awaited.swap(false, Relaxed) || marker.is_empty();
                if expected && shared.loses(*which) {
                    shared.count(|counts| counts.lost_replies += 1);
                    return Ok(());
                }
            }
            _ => request_bytes_left = None,
        }
        let delay = match fault {
            Fault::Latency(delay) => delay,
            Fault::Throttle { bytes_per_second } => {
                // One piece after the other, each for as long as its bytes take.
                let time = length as f64 / f64::from(bytes_per_second.max(1));
                shared.count(|counts| counts.delayed += 1);
                sleep(Duration::from_secs_f64(time)).await;
                Duration::ZERO
            }
            _ => Duration::ZERO,
        };
        if delay.is_zero() && in_flight.is_empty() {
            to.write_all(bytes).await?;
        } else {
            // Also a piece without delay waits behind those that have one: bytes stay in order.
            shared.count(|counts| counts.delayed += 1);
            in_flight.push_back((Instant::now() + delay, bytes.to_vec()));
        }
        if cut_here {
            shared.count(|counts| counts.cut += 1);
            return Ok(());
        }
    }
}

fn contains(bytes: &[u8], searched: &[u8]) -> bool {
    bytes
        .windows(searched.len())
        .any(|window| window == searched)
}
