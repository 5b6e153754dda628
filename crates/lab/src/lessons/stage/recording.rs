//! How it is written down: each step, what the keys held after it, and who believed to hold the
//! lock.

use super::{
    super::{
        error::Trouble,
        timeline::{Event, KeyState, Moment, Said},
    },
    Stage,
    record::Written,
};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

impl Stage {
    /// Something happens that is no request: a pause, a crash, a failover.
    pub async fn happens(
        &self,
        actor: &'static str,
        step: &'static str,
        say: impl Into<Said>,
    ) -> Result<(), Trouble> {
        self.write(actor, None, step, None, None, None, say.into()).await
    }

    /// The director's own command to a node, with its reply.
    pub async fn orders(
        &self,
        actor: &'static str,
        step: &'static str,
        command: impl Into<String>,
        reply: impl Into<String>,
        say: impl Into<Said>,
    ) -> Result<(), Trouble> {
        let (command, reply) = (command.into(), reply.into());
        self.write(actor, None, step, Some(command), Some(reply), None, say.into()).await
    }

    /// What a client of the lesson's own sends.
    pub async fn orders_to(
        &self,
        actor: &'static str,
        to: &'static str,
        step: &'static str,
        command: impl Into<String>,
        reply: impl Into<String>,
        say: impl Into<Said>,
    ) -> Result<(), Trouble> {
        let (command, reply) = (Some(command.into()), Some(reply.into()));
        self.write(actor, Some(to), step, command, reply, None, say.into()).await
    }

    #[expect(clippy::too_many_arguments, reason = "one step is made of so much")]
    pub(super) async fn write(
        &self,
        actor: &'static str,
        to: Option<&'static str>,
        step: &'static str,
        command: Option<String>,
        reply: Option<String>,
        line: Option<(&'static str, u32)>,
        say: Said,
    ) -> Result<(), Trouble> {
        let t_ms = (self.0.started.elapsed().as_secs_f64() * 10_000.0).round() / 10.0;
        let asked = Instant::now();
        let seen = self.look().await?;
        let looked = Instant::now();
        let mut record = self.record();
        let mut keys = BTreeMap::new();
        for (name, value, ttl_ms) in seen {
            let owner = match (&value, record.owners.get(&name)) {
                (None, _) => None,
                (Some(value), Some(before)) if before.is_still(value, asked) => before.owner,
                // Its writer has just acted.
                (Some(_), _) => Some(actor),
            };
            let left = ttl_ms.and_then(|left| u64::try_from(left).ok());
            match &value {
                Some(value) => record.owners.insert(
                    name.clone(),
                    Written {
                        value: value.clone(),
                        owner,
                        ends: left.map(|left| looked + Duration::from_millis(left)),
                    },
                ),
                None => record.owners.remove(&name),
            };
            keys.insert(name, KeyState { value, ttl_ms, owner });
        }
        let event = Event {
            t_ms,
            act: record.act,
            actor,
            to,
            step,
            command: command.map(|text| self.readable(&text)),
            reply: reply.map(|text| self.readable(&text)),
            say,
            line,
            keys,
            believers: record.believers.clone(),
        };
        record.events.push(event);
        drop(record);
        // The last one may still learn what its client made of the reply.
        self.tell(1);
        Ok(())
    }

    pub(super) fn tell(&self, keep: usize) {
        let Some(told) = &self.0.told else { return };
        let mut record = self.record();
        while record.told + keep < record.events.len() {
            let event = record.events[record.told].clone();
            record.told += 1;
            // Nobody listens any more: the play goes on to its end, which is near.
            let _ = told.send(Moment::Step(Box::new(event)));
        }
    }

    /// A client's belief changes with the step that was just recorded.
    pub(super) fn believes(&self, client: &'static str, holds: bool) {
        let mut record = self.record();
        record.believers.retain(|believer| *believer != client);
        if holds {
            record.believers.push(client);
        }
        let believers = record.believers.clone();
        if let Some(last) = record.events.last_mut() {
            last.believers = believers;
        }
    }

    /// From the next step on.
    pub(super) fn stops_believing(&self, client: &'static str) {
        self.record().believers.retain(|believer| *believer != client);
    }

    /// Without the prefix that keeps plays apart, and with the first of many random digits.
    pub(super) fn readable(&self, text: &str) -> String {
        shortened(&text.replace(&self.0.prefix, "").replace(&self.0.id, "play"))
    }
}

/// Runs of many hexadecimal digits are cut: six tell two tokens apart.
fn shortened(text: &str) -> String {
    let mut short = String::with_capacity(text.len());
    let mut run = String::new();
    for letter in text.chars().chain(['\n']) {
        if letter.is_ascii_hexdigit() && !letter.is_ascii_uppercase() {
            run.push(letter);
            continue;
        }
        short.push_str(if run.len() >= 32 { &run[..6] } else { &run });
        run.clear();
        short.push(letter);
    }
    short.pop();
    short
}

#[cfg(test)]
mod tests {
    use super::shortened;

    #[test]
    fn long_random_digits_are_cut_and_nothing_else() {
        let token = "0123456789abcdef0123456789abcdef";
        assert_eq!(shortened(&format!("SET k alice-{token} PX 200")), "SET k alice-012345 PX 200");
        assert_eq!(shortened("GET 1798123456789"), "GET 1798123456789");
        assert_eq!(shortened(token), "012345");
    }
}
