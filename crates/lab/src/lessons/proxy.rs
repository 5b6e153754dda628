//! A wire that can fall silent, swallow replies, or be cut: between a client and a server.

use crate::loopback::OwnPort;
use std::{io, net::SocketAddr};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Wire {
    fault: Fault,
    /// How often all open connections were closed.
    cuts: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Fault {
    #[default]
    None,
    /// Nothing gets through, in either direction, and no connection is closed.
    Silence,
    /// Requests get through, replies do not.
    OneWay,
}

impl Proxy {
    /// `to`: `host:port`.
    pub async fn start(to: String) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let wire = watch::Sender::new(Wire::default());
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
        self.wire.send_modify(|wire| wire.fault = Fault::Silence);
    }

    /// From now on the server gets what is sent to it, and its replies are thrown away.
    pub fn swallows_replies(&self) {
        self.wire.send_modify(|wire| wire.fault = Fault::OneWay);
    }

    /// Closes what is open, as conversations with a hole in them cannot go on. New connections get
    /// through.
    pub fn mend(&self) {
        self.wire.send_modify(|wire| {
            wire.fault = Fault::None;
            wire.cuts += 1;
        });
    }
}

/// Until the wire is so, or the proxy has gone.
async fn until(wire: &mut watch::Receiver<Wire>, is_so: impl FnMut(&Wire) -> bool) {
    // The guard that `wait_for` answers with must not live across an await.
    drop(wire.wait_for(is_so).await);
}

/// One connection, until either side ends it or the wire is mended.
async fn pass(client: TcpStream, to: String, mut wire: watch::Receiver<Wire>) {
    let Wire { fault, cuts } = *wire.borrow_and_update();
    let silent = wire.clone();
    let carried = async {
        if fault == Fault::Silence {
            return std::future::pending().await;
        }
        let Ok(server) = TcpStream::connect(to).await else {
            return;
        };
        let (mut from_client, to_client) = client.into_split();
        let (from_server, mut to_server) = server.into_split();
        let mut heard = silent.clone();
        let requests = async {
            tokio::select! {
                _ = copy(&mut from_client, &mut to_server) => {}
                // The half that is not read any more stays open.
                () = until(&mut heard, |wire| wire.fault ==
                    Fault::Silence) => std::future::pending().await,
            }
        };
        tokio::select! {
            () = requests => {}
            _ = replies(from_server, to_client, &silent, cuts) => {}
        }
    };
    tokio::select! {
        () = carried => {}
        () = until(&mut wire, |wire| wire.cuts != cuts) => {}
    }
}

async fn replies(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    wire: &watch::Receiver<Wire>,
    cuts: u64,
) -> io::Result<()> {
    let mut piece = vec![0; 16 * 1024];
    loop {
        let length = from.read(&mut piece).await?;
        // What was swallowed stays swallowed: a wire that was mended meanwhile is another one.
        let passes = *wire.borrow() == (Wire { fault: Fault::None, cuts });
        match (length, passes) {
            // Nobody on the other side hears of the end either.
            (0, false) => return std::future::pending().await,
            (0, true) => return Ok(()),
            (_, true) => to.write_all(&piece[..length]).await?,
            (_, false) => {}
        }
    }
}
