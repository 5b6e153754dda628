//! How a play is written down: each step, what the keys held after it, and who believed to hold the
//! lock.

use super::super::error::Result;
use super::super::timeline::{Event, KeyState, Moment, Said};
use super::{Stage, record::Written};
use crate::strategy::Language;
use futures_util::future::BoxFuture;
use std::time::{Duration, Instant};
use std::{collections::BTreeMap, panic::Location};

/// One step; awaiting it writes it down.
#[must_use]
pub struct Step<'a> {
    stage: &'a Stage,
    actor: &'static str,
    to: Option<&'static str>,
    id: &'static str,
    said: Option<(String, String)>,
    line: Option<(&'static str, u32)>,
    is_staged: bool,
}

impl<'a> Step<'a> {
    /// A command and its reply.
    pub fn with(mut self, command: impl Into<String>, reply: impl Into<String>) -> Self {
        self.said = Some((command.into(), reply.into()));
        self
    }

    pub fn to(self, to: impl Into<Option<&'static str>>) -> Self {
        Self { to: to.into(), ..self }
    }

    pub(super) fn staged(self, is_staged: bool) -> Self {
        Self { is_staged, ..self }
    }

    pub(super) fn at(self, file: &'static str, line: u32) -> Self {
        Self { line: Some((file, line)), ..self }
    }
}

impl<'a> IntoFuture for Step<'a> {
    type Output = Result;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.stage.write(self))
    }
}

impl Stage {
    pub(super) fn step(&self, actor: &'static str, id: &'static str) -> Step<'_> {
        Step { stage: self, actor, to: None, id, said: None, line: None, is_staged: false }
    }

    /// Something happens that no client of a lock sends: a pause, a crash, a command of the
    /// director.
    #[track_caller]
    pub fn happens(&self, actor: &'static str, id: &'static str) -> Step<'_> {
        let at = Location::caller();
        self.step(actor, id).at(at.file(), at.line())
    }

    /// The stage plays it: no server and no client did it by itself.
    #[track_caller]
    pub fn plays(&self, actor: &'static str, id: &'static str) -> Step<'_> {
        self.happens(actor, id).staged(true)
    }

    async fn write(&self, step: Step<'_>) -> Result {
        let t_ms = (self.0.started.elapsed().as_secs_f64() * 10_000.0).round() / 10.0;
        let asked = Instant::now();
        let seen = self.look().await?;
        let looked = Instant::now();
        self.0.pauses.note(looked - asked);
        let mut record = self.0.record.lock();
        let scene = &mut record.scene;
        let mut keys = BTreeMap::new();
        for (name, value, ttl_ms) in seen {
            let owner = match (&value, scene.owners.get(&name)) {
                (None, _) => None,
                (Some(value), Some(before)) if before.is_still(value, asked) => before.owner,
                // Its writer has just acted.
                (Some(_), _) => Some(step.actor),
            };
            let left = ttl_ms.and_then(|left| u64::try_from(left).ok());
            let ends = left.map(|left| looked + Duration::from_millis(left));
            match value.clone() {
                Some(value) => scene.owners.insert(name.clone(), Written { value, owner, ends }),
                None => scene.owners.remove(&name),
            };
            keys.insert(name, KeyState { value, ttl_ms, owner });
        }
        let (act, believers) = (scene.act, scene.believers.clone());
        let say = self.caption(act, step.actor, step.to, step.id, None);
        let (command, reply) = step.said.unzip();
        record.events.push(Event {
            t_ms,
            act,
            actor: step.actor,
            to: step.to,
            step: step.id,
            command: command.map(|text| self.readable(&text)),
            reply: reply.map(|text| self.readable(&text)),
            say,
            line: step.line,
            keys,
            believers,
            is_staged: step.is_staged,
        });
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
        let act = self.0.lesson.acts.get(act).map_or("", |act| act.id);
        let outcome = outcome.into_iter();
        let keys = outcome.flat_map(|it| [format!("{act}.{id}.{it}"), format!("{id}.{it}")]);
        let keys: Vec<String> = keys.chain([format!("{act}.{id}"), id.to_owned()]).collect();
        self.says("Steps", &keys, [actor, to.unwrap_or_default()])
    }

    /// The first of these texts, with the actors' names and the play's own times in the gaps.
    pub(super) fn says(&self, section: &str, keys: &[String], actors: [&str; 2]) -> Said {
        let lesson = self.0.lesson;
        let said = lesson.say(section, keys);
        let fill = |text: String, language| {
            let [who, to] = actors.map(|actor| lesson.name_of(actor, language));
            let [lease, pause] =
                [self.lease(), self.pause()].map(|time| time.as_millis().to_string());
            let gaps = [("{who}", who), ("{to}", to), ("{lease}", lease), ("{pause}", pause)];
            gaps.iter().fold(text, |text, (gap, words)| text.replace(gap, words))
        };
        Said { en: fill(said.en, Language::En), zh: fill(said.zh, Language::Zh) }
    }

    /// What came of the last step, once its client knows.
    pub(super) fn came_of_it(&self, client: &'static str, outcome: &str) {
        let mut record = self.0.record.lock();
        if let Some(last) = record.events.last_mut().filter(|last| last.actor == client) {
            last.say = self.caption(last.act, last.actor, last.to, last.step, Some(outcome));
        }
    }

    pub(super) fn tell(&self, keep: usize) {
        let Some(told) = &self.0.told else { return };
        let mut record = self.0.record.lock();
        while record.told + keep < record.events.len() {
            let event = record.events[record.told].clone();
            record.told += 1;
            // Nobody listens any more: the play goes on to its end, which is near.
            let _ = told.send(Moment::Step(Box::new(event)));
        }
    }

    /// A client's belief changes with the step that was just recorded.
    pub(super) fn believes(&self, client: &'static str, holds: bool) {
        self.stops_believing(client);
        let mut record = self.0.record.lock();
        if holds {
            record.scene.believers.push(client);
        }
        let believers = record.scene.believers.clone();
        if let Some(last) = record.events.last_mut() {
            last.believers = believers;
        }
    }

    /// From the next step on.
    pub(super) fn stops_believing(&self, client: &'static str) {
        self.0.record.lock().scene.believers.retain(|believer| *believer != client);
    }

    /// Without the prefix that keeps plays apart, and with the first of many random digits.
    pub(super) fn readable(&self, text: &str) -> String {
        shortened(&text.replace(&self.0.prefix, "").replace(&self.0.id, "play"))
    }
}

/// Runs of many hexadecimal digits are cut: six tell two tokens apart.
fn shortened(text: &str) -> String {
    let is_digit = |letter: char| matches!(letter, '0'..='9' | 'a'..='f');
    let mut short = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_digit) {
        let run = &rest[start..];
        let length = run.find(|letter| !is_digit(letter)).unwrap_or(run.len());
        short.push_str(&rest[..start]);
        short.push_str(if length >= 32 { &run[..6] } else { &run[..length] });
        rest = &run[length..];
    }
    short + rest
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
