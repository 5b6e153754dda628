//! The inbox of webhooks: each event is applied once, in the transaction that stores it.

use super::{Ledger, LedgerError, Orders};
use crate::provider::Event;
use crate::signature::WebhookSecret;
use serde_json::Value;
use stores::sql::run;
use time::OffsetDateTime;

/// An index takes no longer ones. Those of providers have some thirty bytes.
const LONGEST_NAME: usize = 255;

/// The event, and the JSON to store. Serde passes over what it does not need, and Postgres would
/// refuse it: so all of it is read.
fn read(body: &[u8]) -> Result<(Event, String), LedgerError> {
    let malformed = |error: serde_json::Error| LedgerError::Malformed(error.to_string());
    let event: Event = serde_json::from_slice(body).map_err(malformed)?;
    let json: Value = serde_json::from_slice(body).map_err(malformed)?;
    if [&event.id, &event.kind, &event.charge.id].iter().any(|name| name.len() > LONGEST_NAME) {
        return Err(LedgerError::Malformed("a name in it is too long".to_owned()));
    }
    if holds_zero(&json) {
        return Err(LedgerError::Malformed("it holds a zero byte".to_owned()));
    }
    Ok((event, json.to_string()))
}

fn holds_zero(json: &Value) -> bool {
    match json {
        Value::String(text) => text.contains('\0'),
        Value::Array(all) => all.iter().any(holds_zero),
        Value::Object(all) => all.iter().any(|(key, one)| key.contains('\0') || holds_zero(one)),
        _ => false,
    }
}

impl<O: Orders> Ledger<O> {
    /// Verifies a webhook and applies its event.
    pub async fn receive(
        &self,
        secret: &WebhookSecret,
        signature: &str,
        body: &[u8],
        now: OffsetDateTime,
    ) -> Result<(), LedgerError> {
        secret.verify(signature, body, now)?;
        let (event, json) = read(body)?;
        let mut transaction = self.postgres.begin("BEGIN").await?;
        let stored = run(
            &mut *transaction,
            "INSERT INTO webhook_events (event_id, kind, body) VALUES ($1, $2, $3::text::jsonb)
             ON CONFLICT DO NOTHING",
            (&*event.id, &*event.kind, &*json),
        );
        if stored.await? == 0 {
            return Ok(transaction.rollback().await?);
        }
        self.apply_and_commit(transaction, &event.charge).await.map(drop)
    }

    /// Forgets old events: signatures count for minutes, and what is applied again changes nothing.
    /// Answers how many.
    pub async fn forget_step(&self) -> Result<u64, LedgerError> {
        let old = "DELETE FROM webhook_events WHERE received_at < now() - interval '30 days'";
        Ok(run(&self.postgres, old, ()).await?)
    }
}
