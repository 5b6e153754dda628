//! The server under judgement, outside of the storm.

use crate::adapter::{Adapter, Call};
use crate::client::{Client, Outgoing, Target};
use crate::event::{Event, Progress};
use crate::faults;
use crate::history::Stored;
use crate::stored::{self, Sql, answered, misfit};
use crate::template::{Scope, Variables};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// For all that is stored.
pub const READING: Duration = Duration::from_secs(30);
/// For a server to answer, and to be as the setup makes it.
const STARTING: Duration = Duration::from_secs(5);
/// For a sign that the server is there.
const LOOKING: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(50);
/// Connections in a row that break before a kill.
const TRIES: usize = 3;
/// No server starts again as fast as this.
const GAP: Duration = Duration::from_millis(5);

pub struct Server {
    pub client: Client,
    pub adapter: Arc<Adapter>,
    pub sql: Option<Sql>,
    /// Of the environment and of the setup.
    pub variables: Variables,
}

impl Server {
    pub async fn set_up(&mut self, progress: &Progress) -> Result<(), String> {
        // It may have been started a moment ago.
        let deadline = Instant::now() + STARTING;
        while !self.client.connect().await && Instant::now() < deadline {
            progress(Event::Absent);
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
        let calls = self.adapter.setup.iter().map(|call| format!("{} {}", call.method, call.path));
        let setup = format!("setup: after {:?}", calls.collect::<Vec<_>>());
        loop {
            let why = match self.stored().await {
                Err(why) => why,
                Ok(stored) if !stored.orders.is_empty() => {
                    format!("{setup} {} orders are stored, not none", stored.orders.len())
                }
                Ok(Stored { remaining: Some(units), .. }) if units != stock as i64 => {
                    format!("{setup} {units} units remain, not {stock}: did it do anything?")
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
#[derive(Clone)]
pub struct Probe {
    target: Target,
    request: Outgoing,
}

impl Probe {
    pub fn of(server: &Server) -> Result<Self, String> {
        let (target, adapter) = (server.client.target().clone(), &server.adapter);
        // A listing is heavy.
        let remaining = adapter.remaining.as_ref().map(|remaining| &remaining.request);
        let call = remaining.or(adapter.orders.as_ref().map(|orders| &orders.request));
        // A GET of some path might be a purchase.
        let call = call.cloned().unwrap_or_else(|| Call::options("/"));
        let request = target.request(&call, Scope(&[&server.variables]))?;
        Ok(Self { target, request })
    }

    /// Any answer will do: what the server says while it recovers is for the storm to judge. Only
    /// a proxy with nobody behind it is no server. `None`: it says nothing in time. On a new
    /// connection: a server may close an open one whenever it likes.
    pub async fn answers(&self, limit: Duration) -> Option<bool> {
        let mut client = Client::new(&self.target, faults::LIMIT);
        let reply = timeout(limit, client.read_all(self.request.clone())).await.ok()?;
        Some(reply.is_ok_and(|reply| !matches!(reply.status, 502 | 504)))
    }

    /// Not just once: in a storm any connection may break.
    pub async fn turns_away(&self, limit: Duration) -> bool {
        for _ in 0..TRIES {
            if self.answers(limit).await != Some(false) {
                return false;
            }
            sleep(PAUSE).await;
        }
        true
    }

    /// Until the server that was there is gone: a new connection is refused or breaks.
    pub async fn gone(&self) {
        while self.answers(LOOKING).await != Some(false) {
            sleep(GAP).await;
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
