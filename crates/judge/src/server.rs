//! The server under judgement, outside of the storm.

use crate::adapter::{Adapter, Call};
use crate::client::Client;
use crate::history::Stored;
use crate::stored::{self, Sql, answered};
use crate::template::{Scope, Variables, scalar};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// For all that is stored, and for an answer that only shows that the server is there.
pub const READING: Duration = Duration::from_secs(30);
pub const LOOKING: Duration = Duration::from_secs(1);

pub struct Server {
    pub client: Client,
    pub adapter: Arc<Adapter>,
    pub sql: Option<Sql>,
    /// Of the environment and of the setup.
    pub variables: Variables,
}

impl Server {
    pub async fn set_up(&mut self) -> Result<(), String> {
        for (index, call) in self.adapter.clone().setup.iter().enumerate() {
            let found = capture(&mut self.client, call, &[&self.variables]).await;
            self.variables.extend(found.map_err(|why| format!("setup[{index}]: {why}"))?);
        }
        Ok(())
    }

    pub async fn stored(&mut self) -> Result<Stored, String> {
        let (sql, variables) = (self.sql.as_ref(), &self.variables);
        let read = stored::read(&mut self.client, &self.adapter, sql, variables);
        let late = |_| format!("not read within {} s", READING.as_secs());
        timeout(READING, read).await.map_err(late)?
    }

    /// What was there before would be taken for something that this storm has done.
    pub async fn starts_empty(&mut self, stock: usize) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(5);
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

    /// Any answer will do: what the server says while it recovers is for the storm to judge.
    pub async fn is_ready(&mut self) -> bool {
        let listing = self.adapter.orders.as_ref().map(|orders| &orders.request);
        let call = listing.unwrap_or(&self.adapter.order.request);
        let look = Call { method: "GET".to_owned(), body: None, ..call.clone() };
        match self.client.target().request(&look, Scope(&[&self.variables])) {
            Ok(request) => {
                matches!(timeout(LOOKING, self.client.read_all(request)).await, Ok(Ok(_)))
            }
            Err(_) => true,
        }
    }
}

/// One call of a setup; answers the variables that it found.
pub async fn capture(
    client: &mut Client,
    call: &Call,
    scope: &[&Variables],
) -> Result<Variables, String> {
    let request = client.target().request(call, Scope(scope))?;
    let what = format!("{} {}", call.method, request.uri());
    let reply = answered(client.send(request, false).await, &what)?;
    let captured = call.capture.iter().map(|(name, at)| {
        let value = reply.body.pointer(at).filter(|value| scalar(value).is_some());
        let value = value.ok_or_else(|| format!("{what}: its answer has nothing at {at:?}"))?;
        Ok((name.clone(), value.clone()))
    });
    captured.collect()
}
