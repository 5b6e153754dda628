//! TCP and unix sockets as one.

use embedded::PostgresAddress;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::{fmt, io, path::PathBuf};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// Where a server listens, or this proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Address {
    /// The socket of a Postgres.
    pub fn of_postgres(address: &PostgresAddress) -> Self {
        Self::Unix(address.socket_dir.join(format!(".s.PGSQL.{}", address.port)))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
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

pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

fn without_delay(stream: TcpStream) -> Box<dyn Stream> {
    // A piece must not wait for more to come; failing to ask for that harms nothing.
    stream.set_nodelay(true).ok();
    Box::new(stream)
}

impl Listener {
    pub async fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => TcpListener::bind(address).await.map(Self::Tcp),
            Address::Unix(path) => {
                std::fs::remove_file(path).ok();
                UnixListener::bind(path).map(Self::Unix)
            }
        }
    }

    pub async fn accept(&self) -> io::Result<(Box<dyn Stream>, Option<IpAddr>)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, from) = listener.accept().await?;
                Ok((without_delay(stream), Some(from.ip())))
            }
            Self::Unix(listener) => Ok((Box::new(listener.accept().await?.0), None)),
        }
    }
}

pub async fn connect(target: &Address) -> io::Result<Box<dyn Stream>> {
    match target {
        Address::Tcp(address) => Ok(without_delay(TcpStream::connect(address).await?)),
        Address::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
    }
}
