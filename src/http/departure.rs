//! How a server goes without refusing anybody.
//!
//! ```text
//! SIGTERM ─▶ leaving: /readyz and /routable say 503, everything else is served, each answer is the last one of
//!            its connection ─▶ (the notice is over; no proxy sends anything any more) ─▶ the port closes behind
//!            whoever had already come ─▶ draining: requests end, event streams end ─▶ the writer drains ─▶ exit
//! ```
//!
//! Two things go wrong where a server merely closes. A proxy keeps idle connections and sends the next request on
//! one of them in the very moment in which the server ends it: the proxy cannot know whether a purchase was taken and
//! must answer 502. So while the server is leaving, each answer says `Connection: close`, and what the proxy has not
//! used during the notice it does not keep either, if it keeps idle connections for less long than the notice is.
//! And a connection that the system has accepted, but this program has not, is reset when the listener closes: so
//! before that, nobody new is let in for a moment, and who is there is taken ([`last_guests`]) and heard ([`LAST_WORDS`]).

use super::connections::was_of_the_guest;
use axum::{
    http::{HeaderValue, header::CONNECTION},
    response::Response,
};
use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};
use tokio::net::{TcpListener, TcpStream};

/// Whether the server was told to go. Asked for every request, so it is one load.
#[derive(Debug, Default)]
pub struct Leaving(AtomicBool);

impl Leaving {
    pub fn set(&self) {
        self.0.store(true, Relaxed);
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }
}

/// Makes this the last answer of its connection.
pub(super) fn say_goodbye(mut response: Response) -> Response {
    let close = const { HeaderValue::from_static("close") };
    response.headers_mut().insert(CONNECTION, close);
    response
}

/// How long a handshake that has begun may take to end before the port closes. Somebody who begins one meanwhile is
/// not answered, asks again after a second as TCP does, and is then refused, which a proxy may answer by asking
/// another instance.
const HANDSHAKES: Duration = Duration::from_millis(100);

/// How long whoever has come is taken at most. Those who wait behind them are refused as the port closes.
const MOST_GUESTS: Duration = Duration::from_millis(500);

/// How long after that a connection may still bring a request that was on its way to it. Without this a connection of
/// which nothing was read yet would be ended at once (by `hyper`), and with it the purchase that a proxy has just sent.
pub(super) const LAST_WORDS: Duration = Duration::from_millis(100);

/// Closes the port; the connections that had come before.
pub(super) async fn last_guests(listener: TcpListener) -> Vec<(TcpStream, SocketAddr)> {
    let mut guests = Vec::new();
    let patience = if let_nobody_in(&listener) {
        HANDSHAKES
    } else {
        // Where that cannot be said, waiting would only let more of them come.
        Duration::ZERO
    };
    let began = Instant::now();
    let enough = tokio::time::sleep(patience);
    tokio::pin!(enough);
    loop {
        tokio::select! {
            biased;
            accepted = listener.accept() => match accepted {
                Ok(guest) => guests.push(guest),
                Err(error) if was_of_the_guest(&error) => {}
                // No descriptor is left: nothing that comes can be served.
                Err(_) => return guests,
            },
            () = &mut enough => return guests,
        }
        // Without the filter a crowd may keep coming for ever.
        if began.elapsed() >= MOST_GUESTS {
            return guests;
        }
    }
}

/// Ignores from now on whoever begins a handshake. Whether the system can do that.
#[cfg(target_os = "linux")]
fn let_nobody_in(listener: &TcpListener) -> bool {
    use socket2::{SockFilter, SockRef};
    // A classic BPF program, over the TCP header: its 14th byte has the flags. (`man 7 socket`, SO_ATTACH_FILTER)
    const LOAD_BYTE: u16 = 0x30;
    const JUMP_IF_SET: u16 = 0x45;
    const RETURN: u16 = 0x06;
    const SYN: u32 = 0x02;
    const FILTER: [SockFilter; 4] = [
        SockFilter::new(LOAD_BYTE, 0, 0, 13),
        SockFilter::new(JUMP_IF_SET, 0, 1, SYN),
        SockFilter::new(RETURN, 0, 0, 0), // drop it
        SockFilter::new(RETURN, 0, 0, u32::MAX),
    ];
    let filtered = SockRef::from(listener).attach_filter(&FILTER);
    if let Err(error) = &filtered {
        tracing::debug!(%error, "the port closes without a filter");
    }
    filtered.is_ok()
}

#[cfg(not(target_os = "linux"))]
fn let_nobody_in(_: &TcpListener) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream as Client;

    /// Many clients connect while the port closes: who is connected is a guest, and nobody is reset.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_is_connected_when_the_port_closes_is_a_guest() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        // In the queue of the system, which nobody has asked yet.
        let early: Vec<Client> = (0..20)
            .map(|_| Client::connect(address).expect("connects"))
            .collect();
        let storm = tokio::task::spawn_blocking(move || {
            let mut late = Vec::new();
            while let Ok(client) = Client::connect_timeout(&address, Duration::from_millis(300)) {
                late.push(client);
            }
            late
        });
        let guests = last_guests(listener).await;
        let late = storm.await.expect("no panic");
        let known: Vec<SocketAddr> = guests.iter().map(|(_, peer)| *peer).collect();
        for client in early.iter().chain(&late) {
            let peer = client.local_addr().expect("an address");
            assert!(
                known.contains(&peer),
                "{peer} was connected and is no guest"
            );
        }
        assert!(Client::connect_timeout(&address, Duration::from_secs(2)).is_err());
    }
}
