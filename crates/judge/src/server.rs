//! The server under judgement, outside of the storm.

use crate::adapter::{Adapter, Call};
use crate::client::{Client, Outgoing};
use crate::faults;
use crate::history::Stored;
use crate::stored::{self, Sql, answered, misfit};
use crate::template::{Scope, Variables};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

/// For all that is stored.
pub const READING: Duration = Duration::from_secs(30);
/// For a server to answer, and to be as the setup makes it.
const STARTING: Duration = Duration::from_secs(5);
/// For a sign that the server is there.
const LOOKING: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(50);

pub struct Server {
    pub client: Client,
    pub adapter: Arc<Adapter>,
    pub sql: Option<Sql>,
    /// Of the environment and of the setup.
    pub variables: Variables,
}

impl Server {
    pub async fn set_up(&mut self) -> Result<(), String> {
        // It may have been started a moment ago.
        let deadline = Instant::now() + STARTING;
        while !self.client.connect().await && Instant::now() < deadline {
            sleep(PAUSE).await;
        }
        for (index, call) in self.adapter.clone().setup.iter().enumerate() {
            let member = format!("setup[{index}]");
            let found = capture(&mut self.client, call, &[&self.variables], &member).await?;
            self.variables.extend(found);
        }
        Ok(())
    }

    pub async fn stored(&mut self) -> Result<Stored, String> {
        let (sql, variables) = (self.sql.as_ref(), &self.variables);
        let read = stored::read(&mut self.client, &self.adapter, sql, variables);
        let late = |_| format!("not read within {} s", READING.as_secs());
        timeout(READING, read).await.map_err(late)?
    }

    /// Older orders would be taken for orders of this storm.
    pub async fn starts_empty(&mut self, stock: usize) -> Result<(), String> {
        let deadline = Instant::now() + STARTING;
        loop {
            let why = match self.stored().await {
                Err(why) => why,
                Ok(stored) if !stored.orders.is_empty() => {
                    format!("after the setup {} orders are stored", stored.orders.len())
                }
                Ok(Stored { remaining: Some(units), .. }) if units != stock as i64 => {
                    format!("after the setup {units} units remain, not {stock}")
                }
                Ok(_) => return Ok(()),
            };
            if Instant::now() > deadline {
                return Err(why);
            }
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Shows whether the server is there, by a call that changes nothing.
pub struct Probe {
    client: Client,
    request: Outgoing,
    held: Option<TcpStream>,
}

impl Probe {
    /// With a connection that stays open as long as the server lives.
    pub async fn of(server: &Server) -> Result<Self, String> {
        let (target, adapter) = (server.client.target(), &server.adapter);
        let listing = adapter.orders.as_ref().map(|orders| &orders.request);
        let call = listing.or(adapter.remaining.as_ref().map(|remaining| &remaining.request));
        let call = call.cloned().unwrap_or_else(|| Call::get("/"));
        let request = target.request(&call, Scope(&[&server.variables]))?;
        let client = Client::new(target, faults::LIMIT);
        let held = timeout(LOOKING, target.connect()).await.ok().and_then(Result::ok);
        Ok(Self { client, request, held })
    }

    /// Any answer will do: what the server says while it recovers is for the storm to judge. Only
    /// a proxy with nobody behind it is no server. `None`: it says nothing in time.
    pub async fn answers(&mut self, patience: Duration) -> Option<bool> {
        let reply = timeout(patience, self.client.read_all(self.request.clone())).await.ok()?;
        Some(reply.is_ok_and(|reply| !matches!(reply.status, 502 | 504)))
    }

    /// Until the server that was there is gone: the connection breaks, or there is none.
    pub async fn gone(&mut self) {
        let held = self.held.take();
        let breaks = async {
            match held {
                Some(mut held) => while held.read(&mut [0; 64]).await.is_ok_and(|read| read > 0) {},
                None => std::future::pending().await,
            }
        };
        let is_refused = async {
            while self.answers(LOOKING).await != Some(false) {
                sleep(PAUSE).await;
            }
        };
        tokio::select! {
            () = breaks => {}
            () = is_refused => {}
        }
    }
}

/// This call of a setup; answers the variables that it found.
pub async fn capture(
    client: &mut Client,
    call: &Call,
    scope: &[&Variables],
    member: &str,
) -> Result<Variables, String> {
    let request = client.target().request(call, Scope(scope))?;
    let what = format!("{member}: {} {}", call.method, request.uri());
    let reply = answered(client.send(request, false).await, &what)?;
    let captured = call.capture.iter().map(|(name, at)| {
        let nothing = || {
            let why = format!("{} {}: nothing at {at:?}: {}", call.method, call.path, reply.body);
            misfit(&format!("{member}.capture.{name}"), &why)
        };
        Ok((name.clone(), reply.at(at).ok_or_else(nothing)?))
    });
    captured.collect()
}
