//! A fault proxy, and a network of them. Open connections feel a fault from the next byte, or end
//! by [`Proxy::cut`].

use crate::support::prelude::*;
use embedded::PostgresAddress;
use std::{io, net::IpAddr};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep, sleep_until};
use tokio::{net::UnixStream, sync::mpsc};
use tokio_util::{either::Either, sync::CancellationToken};

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

#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    None,
    Refuse,
    /// Bytes vanish and a close is not passed on; a connection that has lost one stays silent.
    BlackHole,
    /// A black hole for connections that send a request with these bytes in it, from there on.
    SilentTo(&'static str),
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
    /// The server acts on a request with these bytes in it ("FCALL", "COMMIT"; empty: on any); then
    /// the connection closes without its reply.
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
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    /// `None` while connections are refused.
    acceptor: Mutex<Option<JoinHandle<()>>>,
}

struct State {
    target: Address,
    fault: Fault,
    dice: Random,
    counts: Counts,
    /// Of the connections of now; the next ones get another.
    cut: CancellationToken,
}

impl Proxy {
    pub async fn start(target: Address) -> Self {
        Self::start_at((Ipv4Addr::LOCALHOST, free_port()).into(), target).await
    }

    pub async fn start_at(address: SocketAddr, target: Address) -> Self {
        let state = State {
            target,
            fault: Fault::None,
            dice: Random::new(0),
            counts: Counts::default(),
            cut: CancellationToken::new(),
        };
        let state = Arc::new(Mutex::new(state));
        let proxy = Self { address, state, acceptor: Mutex::default() };
        proxy.set(Fault::None).await;
        proxy
    }

    /// New connections go there from now on; open ones stay ([`Proxy::cut`]).
    pub fn set_target(&self, target: Address) {
        locked(&self.state).target = target;
    }

    /// The fault from now on. When this returns, it is in force.
    pub async fn set(&self, fault: Fault) {
        let refuses = fault == Fault::Refuse;
        locked(&self.state).fault = fault;
        if refuses {
            let acceptor = locked(&self.acceptor).take();
            if let Some(acceptor) = acceptor {
                acceptor.abort();
                acceptor.await.ok();
            }
        } else if locked(&self.acceptor).is_none() {
            let bind = async || TcpListener::bind(self.address).await.ok();
            let listener = wait_for!("the proxy's port is free", bind().await);
            let acceptor = tokio::spawn(accept(listener, self.state.clone()));
            *locked(&self.acceptor) = Some(acceptor);
        }
    }

    /// Open connections end: who was connected to the old target has to come again.
    pub fn lead_to(&self, target: Address) {
        self.set_target(target);
        self.cut();
    }

    pub fn cut(&self) {
        std::mem::take(&mut locked(&self.state).cut).cancel();
    }

    pub fn counts(&self) -> Counts {
        locked(&self.state).counts
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Also those that are being accepted: they get a token that is cancelled.
        locked(&self.state).cut.cancel();
        if let Some(acceptor) = locked(&self.acceptor).take() {
            acceptor.abort();
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Mutex<State>>) {
    loop {
        let Ok((client, from)) = listener.accept().await else {
            // Out of file descriptors: they come back when connections end.
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        let shared = shared.clone();
        let cut = {
            let mut state = locked(&shared);
            state.counts.accepted += 1;
            state.cut.clone()
        };
        tokio::spawn(async move {
            let served = cut.run_until_cancelled(serve(client, from.ip(), &shared)).await;
            locked(&shared).counts.cut += u64::from(served.is_none());
        });
    }
}

struct Connection {
    from: IpAddr,
    is_silent: bool,
    /// A reply that [`Fault::LoseReplies`] is about.
    awaits: bool,
    /// See [`Fault::CutRequest`].
    request_bytes_left: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Requests,
    Replies,
}

const PIECE: usize = 16 * 1024;
const PIECES_IN_FLIGHT: usize = 4 * 1024;

async fn serve(mut client: TcpStream, from: IpAddr, shared: &Mutex<State>) {
    if locked(shared).fault.swallows(from) {
        let mut piece = vec![0; PIECE];
        while let Ok(length @ 1..) = client.read(&mut piece).await {
            locked(shared).counts.swallowed_bytes += length as u64;
        }
        return;
    }
    let target = locked(shared).target.clone();
    let server = match &target {
        Address::Tcp(address) => TcpStream::connect(address).await.map(Either::Left),
        Address::Unix(path) => UnixStream::connect(path).await.map(Either::Right),
    };
    let Ok(server) = server else { return };
    // A piece must not wait for more to come; failing to ask for that harms nothing.
    client.set_nodelay(true).ok();
    if let Either::Left(server) = &server {
        server.set_nodelay(true).ok();
    }
    let connection = Connection { from, is_silent: false, awaits: false, request_bytes_left: None };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = tokio::io::split(server);
    let both = (shared, &Mutex::new(connection));
    // Neither protocol behind this proxy closes one direction and goes on with the other.
    tokio::select! {
        _ = carry(Direction::Requests, from_client, to_server, both) => {}
        _ = carry(Direction::Replies, from_server, to_client, both) => {}
    }
}

impl Fault {
    fn swallows(&self, from: IpAddr) -> bool {
        *self == Self::BlackHole || *self == Self::SilentFrom(from)
    }
}

impl State {
    /// How many bytes of a piece pass, and whether the connection ends then.
    fn treat(
        &mut self,
        connection: &mut Connection,
        direction: Direction,
        piece: &[u8],
    ) -> (usize, bool) {
        connection.is_silent |= match &self.fault {
            Fault::SilentTo(request) => {
                direction == Direction::Requests && contains(piece, request)
            }
            fault => fault.swallows(connection.from),
        };
        if connection.is_silent {
            self.counts.swallowed_bytes += piece.len() as u64;
            return (0, false);
        }
        match (&mut self.fault, direction) {
            (Fault::CutRequest { after }, Direction::Requests) => {
                let left = connection.request_bytes_left.get_or_insert(*after);
                if *left <= piece.len() as u64 {
                    self.counts.cut += 1;
                    return (*left as usize, true);
                }
                *left -= piece.len() as u64;
            }
            (Fault::CutRequest { .. }, Direction::Replies) => {}
            (Fault::LoseReplies { to, .. }, Direction::Requests) => {
                connection.awaits |= contains(piece, to);
            }
            (Fault::LoseReplies { which, to }, Direction::Replies) => {
                let awaits = std::mem::take(&mut connection.awaits) || to.is_empty();
                if awaits && which.takes(&mut self.dice) {
                    self.counts.lost_replies += 1;
                    return (0, true);
                }
            }
            (fault, _) => {
                let delays = matches!(fault, Fault::Latency(_) | Fault::Throttle { .. });
                self.counts.delayed += u64::from(delays);
                connection.request_bytes_left = None;
            }
        }
        (piece.len(), false)
    }
}

impl Lost {
    fn takes(&mut self, dice: &mut Random) -> bool {
        match self {
            Self::Next(left) => left.checked_sub(1).map(|less| *left = less).is_some(),
            Self::Share(share) => dice.chance(*share),
        }
    }
}

async fn carry(
    direction: Direction,
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    (shared, connection): (&Mutex<State>, &Mutex<Connection>),
) -> io::Result<()> {
    // Pieces on their way, with the time of their arrival: latency must not lower the throughput.
    let (departed, mut in_flight) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES_IN_FLIGHT);
    let departing = async move {
        let mut piece = vec![0; PIECE];
        loop {
            let length = from.read(&mut piece).await?;
            if length == 0 && direction == Direction::Replies && locked(connection).is_silent {
                // A close of the server does not come through a black hole either.
                return std::future::pending().await;
            } else if length == 0 {
                return Ok(());
            }
            let ((passes, ends), fault) = {
                let mut state = locked(shared);
                let treated = state.treat(&mut locked(connection), direction, &piece[..length]);
                (treated, state.fault.clone())
            };
            if let Fault::Throttle { bytes_per_second } = fault {
                // One piece after the other, each for as long as its bytes take.
                let time = length as f64 / f64::from(bytes_per_second.max(1));
                sleep(Duration::from_secs_f64(time)).await;
            }
            let delay = if let Fault::Latency(delay) = fault { delay } else { Duration::ZERO };
            let arrival = Instant::now() + delay;
            departed.send((arrival, piece[..passes].to_vec())).await.ok();
            if ends {
                return Ok(());
            }
        }
    };
    let arriving = async {
        while let Some((arrival, bytes)) = in_flight.recv().await {
            // Even a sleep until now would take until the timer's next tick.
            if arrival > Instant::now() {
                sleep_until(arrival).await;
            }
            if !locked(connection).is_silent {
                to.write_all(&bytes).await?;
            }
        }
        to.shutdown().await
    };
    tokio::try_join!(departing, arriving).map(drop)
}

fn contains(bytes: &[u8], searched: &str) -> bool {
    searched.is_empty() || bytes.windows(searched.len()).any(|part| part == searched.as_bytes())
}

#[derive(Debug, Clone, Copy)]
pub struct Ports {
    pub clients: u16,
    pub bus: u16,
}

/// Where instances come from: the one that is split off, and the others.
pub const ALONE: Ipv4Addr = Ipv4Addr::new(127, 0, 2, 1);
pub const OTHERS: Ipv4Addr = Ipv4Addr::new(127, 0, 2, 2);

/// A network that can be split: node M comes from 127.0.1.M, an instance from 127.0.2.S. To each
/// node lead two ways of other nodes (bus, replication), and one of an instance of each side.
pub struct Network {
    ways: Vec<[Proxy; 4]>,
}

impl Network {
    pub async fn start(nodes: &[Ports]) -> Self {
        let proxy = async |address: Ipv4Addr, port: u16| {
            let target = Address::Tcp((Ipv4Addr::LOCALHOST, port).into());
            Proxy::start_at((address, port).into(), target).await
        };
        let mut ways = Vec::new();
        for (number, ports) in nodes.iter().enumerate() {
            let own = Self::address_of(number);
            ways.push([
                proxy(own, ports.bus).await,
                proxy(own, ports.clients).await,
                proxy(ALONE, ports.clients).await,
                proxy(OTHERS, ports.clients).await,
            ]);
        }
        Self { ways }
    }

    /// Where other nodes find this one, and where it comes from.
    pub fn address_of(node: usize) -> Ipv4Addr {
        Ipv4Addr::new(127, 0, 1, u8::try_from(node + 1).expect("few nodes"))
    }

    /// This node and one instance have only each other; what is on its way vanishes.
    pub async fn split_off(&self, alone: usize) {
        for (number, ways) in self.ways.iter().enumerate() {
            let [bus, clients, from_alone, from_others] = ways;
            let (from_nodes, across) = if number == alone {
                (Fault::BlackHole, from_others)
            } else {
                (Fault::SilentFrom(Self::address_of(alone).into()), from_alone)
            };
            for way in [bus, clients] {
                way.set(from_nodes.clone()).await;
            }
            across.set(Fault::BlackHole).await;
        }
    }

    pub async fn heal(&self) {
        for way in self.ways.iter().flatten() {
            way.set(Fault::None).await;
            way.cut();
        }
    }
}
