//! A wire that can fall silent, swallow replies, or be cut: between a client and a server.

use crate::loopback::OwnPort;
use std::{io, net::SocketAddr};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// Passes connections on until something is done to it. Dropping it ends it.
pub struct Proxy {
    pub address: SocketAddr,
    wire: watch::Sender<Wire>,
    _accepting: AbortOnDropHandle<()>,
    _port: OwnPort,
}

#[derive(Clone, Copy)]
struct Wire {
    /// Whether they get through.
    requests: bool,
    replies: bool,
    /// How often all open connections were closed.
    cuts: u64,
}

impl Proxy {
    /// `to`: `host:port`.
    pub async fn start(to: String) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let wire = watch::Sender::new(Wire { requests: true, replies: true, cuts: 0 });
        let seen = wire.subscribe();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, to.clone(), seen.clone()));
            }
        });
        let (_accepting, _port) = (AbortOnDropHandle::new(accepting), OwnPort::new(address.port()));
        Ok(Self { address, wire, _accepting, _port })
    }

    /// From now on nothing gets through, in either direction, and no connection is closed.
    pub fn falls_silent(&self) {
        self.wire.send_modify(|wire| (wire.requests, wire.replies) = (false, false));
    }

    /// From now on the server gets what is sent to it, and its replies are thrown away.
    pub fn swallows_replies(&self) {
        self.wire.send_modify(|wire| (wire.requests, wire.replies) = (true, false));
    }

    /// Closes what is open, as conversations with a hole in them cannot go on. New connections get
    /// through.
    pub fn mend(&self) {
        let cut =
            |wire: &mut Wire| *wire = Wire { requests: true, replies: true, cuts: wire.cuts + 1 };
        self.wire.send_modify(cut);
    }
}

/// One connection, until either side ends it or the wire is mended.
async fn pass(client: TcpStream, to: String, mut wire: watch::Receiver<Wire>) {
    let Wire { requests, cuts, .. } = *wire.borrow_and_update();
    let seen = wire.clone();
    let carried = async {
        if !requests {
            return std::future::pending().await;
        }
        let Ok(server) = TcpStream::connect(to).await else {
            return;
        };
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        // What was swallowed stays swallowed: a wire that was mended meanwhile is another one.
        let now = || Some(*seen.borrow()).filter(|wire| wire.cuts == cuts);
        tokio::select! {
            _ = carry(from_client, to_server, || now().is_some_and(|wire| wire.requests)) => {}
            _ = carry(from_server, to_client, || now().is_some_and(|wire| wire.replies)) => {}
        }
    };
    tokio::select! {
        () = carried => {}
        // Or the proxy has gone. The guard must not live across an await.
        () = async { drop(wire.wait_for(|wire| wire.cuts != cuts).await) } => {}
    }
}

async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    passes: impl Fn() -> bool,
) -> io::Result<()> {
    let mut piece = vec![0; 16 * 1024];
    loop {
        let length = from.read(&mut piece).await?;
        match (length, passes()) {
            // Nobody on the other side hears of the end either.
            (0, false) => return std::future::pending().await,
            (0, true) => return Ok(()),
            (_, true) => to.write_all(&piece[..length]).await?,
            (_, false) => {}
        }
    }
}
