//! How it is written down: each step, what the keys held after it, and who believed to hold the
//! lock.

use super::{
    super::{
        error::Trouble,
        timeline::{Event, KeyState, Moment, Said},
    },
    Stage,
    record::{Step, Written},
};
use crate::strategy::Language;
use std::{
    collections::BTreeMap,
    panic::Location,
    time::{Duration, Instant},
};

impl Stage {
    /// Something happens that is no request: a pause, a crash, a failover.
    #[track_caller]
    pub fn happens(
        &self,
        actor: &'static str,
        id: &'static str,
    ) -> impl Future<Output = Result<(), Trouble>> + Send + '_ {
        self.write(Step::new(actor, id).at(Location::caller()))
    }

    /// The stage plays it: no server and no client did it by itself.
    #[track_caller]
    pub fn plays(
        &self,
        actor: &'static str,
        id: &'static str,
    ) -> impl Future<Output = Result<(), Trouble>> + Send + '_ {
        let step = Step::new(actor, id).at(Location::caller());
        self.write(Step { is_staged: true, ..step })
    }

    /// The director's own command to a node, with its reply.
    pub async fn orders(
        &self,
        actor: &'static str,
        id: &'static str,
        command: impl Into<String>,
        reply: impl Into<String>,
    ) -> Result<(), Trouble> {
        self.write(Step::new(actor, id).with(command, reply)).await
    }

    /// The same, in the place of what the node would do by itself.
    pub async fn plays_by(
        &self,
        actor: &'static str,
        id: &'static str,
        command: impl Into<String>,
        reply: impl Into<String>,
    ) -> Result<(), Trouble> {
        let step = Step::new(actor, id).with(command, reply);
        self.write(Step { is_staged: true, ..step }).await
    }

    /// What a client of the lesson's own sends.
    #[track_caller]
    pub fn orders_to(
        &self,
        actor: &'static str,
        to: &'static str,
        id: &'static str,
        command: impl Into<String>,
        reply: impl Into<String>,
    ) -> impl Future<Output = Result<(), Trouble>> + Send + '_ {
        let step = Step::new(actor, id).with(command, reply).at(Location::caller());
        self.write(Step { to: Some(to), ..step })
    }

    pub(super) async fn write(&self, step: Step) -> Result<(), Trouble> {
        let t_ms = (self.0.started.elapsed().as_secs_f64() * 10_000.0).round() / 10.0;
        let asked = Instant::now();
        let seen = self.look().await?;
        let looked = Instant::now();
        self.0.pauses.note(looked - asked);
        let mut record = self.record();
        let mut keys = BTreeMap::new();
        for (name, value, ttl_ms) in seen {
            let owner = match (&value, record.owners.get(&name)) {
                (None, _) => None,
                (Some(value), Some(before)) if before.is_still(value, asked) => before.owner,
                // Its writer has just acted.
                (Some(_), _) => Some(step.actor),
            };
            let left = ttl_ms.and_then(|left| u64::try_from(left).ok());
            let ends = left.map(|left| looked + Duration::from_millis(left));
            match value.clone() {
                Some(value) => record.owners.insert(name.clone(), Written { value, owner, ends }),
                None => record.owners.remove(&name),
            };
            keys.insert(name, KeyState { value, ttl_ms, owner });
        }
        let act = record.act;
        let event = Event {
            t_ms,
            act,
            actor: step.actor,
            to: step.to,
            step: step.id,
            command: step.command.map(|text| self.readable(&text)),
            reply: step.reply.map(|text| self.readable(&text)),
            say: self.caption(act, step.actor, step.to, step.id, None),
            line: step.line,
            keys,
            believers: record.believers.clone(),
            is_staged: step.is_staged,
        };
        record.events.push(event);
        drop(record);
        // The last one may still learn what its client made of the reply.
        self.tell(1);
        Ok(())
    }

    /// The words of a step; with what came of it, if that is known and they depend on it.
    fn caption(
        &self,
        act: usize,
        actor: &'static str,
        to: Option<&'static str>,
        id: &str,
        outcome: Option<&str>,
    ) -> Said {
        let lesson = self.0.lesson;
        let act = lesson.acts.get(act).map_or("", |act| act.id);
        let mut keys = Vec::with_capacity(4);
        if let Some(outcome) = outcome {
            keys.extend([format!("{act}.{id}.{outcome}"), format!("{id}.{outcome}")]);
        }
        keys.extend([format!("{act}.{id}"), id.to_owned()]);
        let name = |actor, language| lesson.name_of(actor, language);
        self.filled(lesson.say("Steps", &keys), |text, language| {
            let text = text.replace("{who}", &name(actor, language));
            text.replace("{to}", &name(to.unwrap_or(""), language))
        })
    }

    /// With the play's own times in the gaps.
    pub(super) fn filled(&self, said: Said, fill: impl Fn(&str, Language) -> String) -> Said {
        let whole = |text: &str, language| {
            let text = fill(text, language);
            let text = text.replace("{lease}", &self.lease().as_millis().to_string());
            text.replace("{pause}", &self.pause().as_millis().to_string())
        };
        Said { en: whole(&said.en, Language::En), zh: whole(&said.zh, Language::Zh) }
    }

    /// What came of the last step, once its client knows.
    pub(super) fn came_of_it(&self, client: &'static str, outcome: &str) {
        let mut record = self.record();
        if let Some(last) = record.events.last_mut().filter(|last| last.actor == client) {
            last.say = self.caption(last.act, last.actor, last.to, last.step, Some(outcome));
        }
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
