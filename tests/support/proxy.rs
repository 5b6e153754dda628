//! A fault proxy. Open connections feel a fault from the next byte, or end by [`Proxy::cut`].

use crate::support::prelude::*;
use embedded::PostgresAddress;
use std::{collections::VecDeque, io, net::IpAddr};
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};
use tokio::time::{Instant, sleep, sleep_until};
use tokio::{net::UnixStream, sync::watch};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Address {
    pub fn of_postgres(address: &PostgresAddress) -> Self {
        Self::Unix(address.socket_dir.join(format!(".s.PGSQL.{}", address.port)))
    }
}

/// Below the ports of outgoing connections, so that it is still free after a crash.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    const RANGE: Range<u32> = 15_000..32_000;
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

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

fn without_delay(stream: TcpStream) -> Box<dyn Stream> {
    // A piece must not wait for more to come; failing to ask for that harms nothing.
    stream.set_nodelay(true).ok();
    Box::new(stream)
}

async fn connect(target: &Address) -> io::Result<Box<dyn Stream>> {
    match target {
        Address::Tcp(address) => Ok(without_delay(TcpStream::connect(address).await?)),
        Address::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    None,
    Refuse,
    /// Bytes vanish and a close is not passed on; a connection that has lost one stays silent.
    BlackHole,
    /// A black hole for connections that send a request with these bytes in it, from there on.
    SilentTo {
        request: &'static str,
    },
    SilentFrom(IpAddr),
    Latency(Duration),
    /// In each direction of each connection.
    Throttle {
        bytes_per_second: u32,
    },
    /// A connection is cut after it has passed so many more bytes of requests.
    CutRequest {
        after: u64,
    },
    /// The server acts on a request with the bytes `to` in it ("FCALL", "COMMIT"; empty: on any);
    /// then the connection closes without its reply.
    LoseReplies {
        which: Lost,
        to: &'static str,
    },
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Lost {
    Next(u32),
    Share(f64),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub accepted: u64,
    /// Connections ended by [`Proxy::cut`] or [`Fault::CutRequest`].
    pub cut: u64,
    pub lost_replies: u64,
    pub swallowed_bytes: u64,
    pub delayed: u64,
}

pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    cuts: watch::Sender<u64>,
    listening: watch::Receiver<bool>,
    acceptor: JoinHandle<()>,
}

struct Shared {
    target: Mutex<Address>,
    fault: watch::Sender<Fault>,
    replies_to_lose: AtomicU32,
    dice: Mutex<Random>,
    counts: Mutex<Counts>,
}

impl Shared {
    fn count(&self, add: impl FnOnce(&mut Counts)) {
        add(&mut locked(&self.counts));
    }

    fn loses(&self, which: Lost) -> bool {
        match which {
            Lost::Next(_) => {
                let left = &self.replies_to_lose;
                left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
            }
            Lost::Share(share) => locked(&self.dice).chance(share),
        }
    }
}

impl Proxy {
    pub async fn start(target: Address) -> Self {
        Self::start_at((Ipv4Addr::LOCALHOST, free_port()).into(), target).await
    }

    pub async fn start_at(address: SocketAddr, target: Address) -> Self {
        let (cuts, cut) = watch::channel(0);
        let (heard, listening) = watch::channel(false);
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            fault: watch::Sender::new(Fault::None),
            replies_to_lose: AtomicU32::new(0),
            dice: Mutex::new(Random::new(0)),
            counts: Mutex::default(),
        });
        let acceptor = tokio::spawn(accept(address, shared.clone(), heard, cut));
        let proxy = Self { address, shared, cuts, listening, acceptor };
        proxy.until_listening(true).await;
        proxy
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// New connections go there from now on; open ones stay ([`Proxy::cut`]).
    pub fn set_target(&self, target: Address) {
        *locked(&self.shared.target) = target;
    }

    /// The fault from now on. When this returns, it is in force.
    pub async fn set(&self, fault: Fault) {
        if let Fault::LoseReplies { which: Lost::Next(replies), .. } = fault {
            self.shared.replies_to_lose.store(replies, Relaxed);
        }
        let refuse = fault == Fault::Refuse;
        self.shared.fault.send_replace(fault);
        self.until_listening(!refuse).await;
    }

    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    pub fn counts(&self) -> Counts {
        *locked(&self.shared.counts)
    }

    pub fn seed(&self, seed: u64) {
        *locked(&self.shared.dice) = Random::new(seed);
    }

    async fn until_listening(&self, wanted: bool) {
        let mut listening = self.listening.clone();
        let changed = listening.wait_for(|is_listening| *is_listening == wanted);
        changed.await.expect("the acceptor lives as long as its proxy");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The connections end because the sender of the cuts goes with this value.
        self.acceptor.abort();
    }
}

async fn accept(address: SocketAddr, shared: Arc<Shared>, heard: watch::Sender<bool>, cut: Cuts) {
    let mut fault = shared.fault.subscribe();
    let is_over = |fault: &Fault| *fault != Fault::Refuse;
    // The sender is in `shared`, so waiting for a fault never fails.
    while fault.wait_for(is_over).await.is_ok() {
        let Ok(listener) = TcpListener::bind(address).await else {
            // The port is still in use for a moment.
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        heard.send_replace(true);
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
                        tokio::spawn(serve(without_delay(client), from.ip(), shared.clone(), cut));
                    }
                    // Out of file descriptors: they come back when connections end.
                    Err(_) => sleep(Duration::from_millis(10)).await,
                },
            }
        }
        drop(listener);
        heard.send_replace(false);
    }
}

type Cuts = watch::Receiver<u64>;

struct Connection {
    from: IpAddr,
    silent: AtomicBool,
    awaited: AtomicBool,
}

impl Connection {
    fn is_swallowed_by(&self, fault: &Fault) -> bool {
        match fault {
            Fault::BlackHole => true,
            Fault::SilentFrom(address) => self.from == *address,
            _ => false,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Requests,
    Replies,
}

async fn serve(client: Box<dyn Stream>, from: IpAddr, shared: Arc<Shared>, mut cut: Cuts) {
    let carried = async {
        let (from_client, to_client) = tokio::io::split(client);
        let connection = Connection { from, silent: false.into(), awaited: false.into() };
        if connection.is_swallowed_by(&shared.fault.borrow()) {
            connection.silent.store(true, Relaxed);
            let nowhere = tokio::io::split(Box::new(tokio::io::empty()) as Box<dyn Stream>).1;
            let _ = carry(Direction::Requests, from_client, nowhere, &shared, &connection).await;
            return;
        }
        let target = locked(&shared.target).clone();
        let Ok(server) = connect(&target).await else { return };
        let (from_server, to_server) = tokio::io::split(server);
        // Neither protocol behind this proxy closes one direction and goes on with the other.
        tokio::select! {
            _ = carry(Direction::Requests, from_client, to_server, &shared, &connection) => {}
            _ = carry(Direction::Replies, from_server, to_client, &shared, &connection) => {}
        }
    };
    tokio::select! {
        () = carried => {}
        // An error means that the proxy itself has gone.
        changed = cut.changed() => shared.count(|counts| counts.cut += u64::from(changed.is_ok())),
    }
}

const PIECE: usize = 16 * 1024;
const PIECES_IN_FLIGHT: usize = 4 * 1024;

enum Treated {
    Passes,
    CutAfter(usize),
    Swallowed,
}

/// Applies a fault to a piece. `request_bytes_left`: see [`Fault::CutRequest`].
fn treat(
    fault: &Fault,
    direction: Direction,
    piece: &[u8],
    request_bytes_left: &mut Option<u64>,
    (shared, connection): (&Shared, &Connection),
) -> Treated {
    let falls_silent = match fault {
        Fault::SilentTo { request } => {
            direction == Direction::Requests && contains(piece, request.as_bytes())
        }
        fault => connection.is_swallowed_by(fault),
    };
    if falls_silent || connection.silent.load(Relaxed) {
        connection.silent.store(true, Relaxed);
        shared.count(|counts| counts.swallowed_bytes += piece.len() as u64);
        return Treated::Swallowed;
    }
    match (fault, direction) {
        (Fault::CutRequest { after }, Direction::Requests) => {
            let left = request_bytes_left.get_or_insert(*after);
            if *left <= piece.len() as u64 {
                shared.count(|counts| counts.cut += 1);
                return Treated::CutAfter(usize::try_from(*left).unwrap_or(piece.len()));
            }
            *left -= piece.len() as u64;
        }
        (Fault::LoseReplies { to: marker, .. }, Direction::Requests) => {
            let expected = marker.is_empty() || contains(piece, marker.as_bytes());
            connection.awaited.fetch_or(expected, Relaxed);
        }
        (Fault::LoseReplies { which, to: marker }, Direction::Replies) => {
            let expected = connection.awaited.swap(false, Relaxed) || marker.is_empty();
            if expected && shared.loses(*which) {
                shared.count(|counts| counts.lost_replies += 1);
                return Treated::CutAfter(0);
            }
        }
        _ => *request_bytes_left = None,
    }
    Treated::Passes
}

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
        let arrival = sleep_until(next_arrival.unwrap_or_else(Instant::now));
        let length = tokio::select! {
            () = arrival, if next_arrival.is_some() => {
                if let Some((_, bytes)) = in_flight.pop_front() {
                    to.write_all(&bytes).await?;
                }
                continue;
            }
            read = from.read(&mut piece), if in_flight.len() < PIECES_IN_FLIGHT => read?,
        };
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
        let (fault, both) = (shared.fault.borrow().clone(), (shared, connection));
        let mut bytes = &piece[..length];
        let treated = treat(&fault, direction, bytes, &mut request_bytes_left, both);
        match treated {
            Treated::Passes => {}
            Treated::CutAfter(left) => bytes = &bytes[..left],
            Treated::Swallowed => {
                in_flight.clear();
                continue;
            }
        }
        if let Fault::Throttle { bytes_per_second } = fault {
            // One piece after the other, each for as long as its bytes take.
            let time = length as f64 / f64::from(bytes_per_second.max(1));
            shared.count(|counts| counts.delayed += 1);
            sleep(Duration::from_secs_f64(time)).await;
        }
        let delay = if let Fault::Latency(delay) = fault { delay } else { Duration::ZERO };
        if delay.is_zero() && in_flight.is_empty() {
            to.write_all(bytes).await?;
        } else {
            // A piece without delay waits behind those that have one: bytes stay in order.
            shared.count(|counts| counts.delayed += 1);
            in_flight.push_back((Instant::now() + delay, bytes.to_vec()));
        }
        if let Treated::CutAfter(_) = treated {
            return Ok(());
        }
    }
}

fn contains(bytes: &[u8], searched: &[u8]) -> bool {
    bytes.windows(searched.len()).any(|window| window == searched)
}
