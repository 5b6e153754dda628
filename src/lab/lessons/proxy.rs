//! A wire that can be cut: between a client and a server, so that neither notices anything but silence.

use std::net::SocketAddr;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::AbortHandle,
};

/// Passes connections on until it is cut. Dropping it ends it.
pub struct Proxy {
    pub address: SocketAddr,
    cut: watch::Sender<bool>,
    accepting: AbortHandle,
}

impl Proxy {
    /// `to`: `host:port`.
    pub async fn start(to: String) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let cut = watch::Sender::new(false);
        let seen = cut.subscribe();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, to.clone(), seen.clone()));
            }
        });
        Ok(Self {
            address,
            cut,
            accepting: accepting.abort_handle(),
        })
    }

    /// From now on nothing gets through, in either direction, and no connection is closed.
    pub fn cut(&self) {
        self.cut.send_replace(true);
    }

    /// New connections get through again.
    pub fn mend(&self) {
        self.cut.send_replace(false);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn pass(mut client: TcpStream, to: String, mut cut: watch::Receiver<bool>) {
    let is_cut = *cut.borrow_and_update();
    let server = if is_cut {
        None
    } else {
        TcpStream::connect(to).await.ok()
    };
    if let Some(mut server) = server {
        tokio::select! {
            _ = copy_bidirectional(&mut client, &mut server) => return,
            _ = cut.changed() => {}
        }
        // Silence: both ends stay open until the wire is mended, or the play over.
        let _ = cut.changed().await;
        return;
    }
    let _ = cut.changed().await;
}
