//! How a play is written down: each step, what the keys held after it, and who believed to hold the
//! lock.

use super::super::error::Result;
use super::super::timeline::{Event, Moment, Name, Said};
use super::Stage;
use crate::strategy::Language;
use futures_util::future::BoxFuture;
use std::{panic::Location, time::Instant};

/// One step; awaiting it writes it down.
#[must_use]
pub struct Step<'a> {
    stage: &'a Stage,
    pub(super) event: Event,
}

impl Step<'_> {
    /// A command and its reply.
    pub fn with(mut self, command: impl Into<String>, reply: impl Into<String>) -> Self {
        (self.event.command, self.event.reply) = (Some(command.into()), Some(reply.into()));
        self
    }

    pub fn to(mut self, to: &'static str) -> Self {
        self.event.to = Some(to);
        self
    }
}

impl<'a> IntoFuture for Step<'a> {
    type Output = Result;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.stage.write(self.event))
    }
}

impl Stage {
    /// Something happens that no client of a lock sends: a pause, a crash, a command of the
    /// director.
    #[track_caller]
    pub fn happens(&self, actor: Name, id: Name) -> Step<'_> {
        let at = Location::caller();
        let line = Some((at.file(), at.line()));
        Step { stage: self, event: Event { line, ..Event::of(actor, id) } }
    }

    /// The stage plays it: no server and no client did it by itself.
    #[track_caller]
    pub fn plays(&self, actor: Name, id: Name) -> Step<'_> {
        let mut step = self.happens(actor, id);
        step.event.is_staged = true;
        step
    }

    pub(super) async fn write(&self, mut event: Event) -> Result {
        event.t_ms = (self.0.started.elapsed().as_secs_f64() * 10_000.0).round() / 10.0;
        let asked = Instant::now();
        event.keys = self.look().await?;
        let looked = Instant::now();
        self.0.pauses.note(looked - asked);
        let mut record = self.0.record.lock();
        let scene = &mut record.scene;
        for (name, key) in &mut event.keys {
            key.owner = scene.owner_of(name, key, event.actor, asked);
        }
        (scene.keys, scene.looked) = (event.keys.clone(), looked);
        (event.act, event.believers) = (scene.act, scene.believers.clone());
        event.say = self.caption(&event, None);
        for text in [&mut event.command, &mut event.reply].into_iter().flatten() {
            *text = self.readable(text);
        }
        record.events.push(event);
        drop(record);
        // The last one may still learn what its client made of the reply.
        self.tell(1);
        Ok(())
    }

    /// The words of a step; with what came of it, if that is known and they depend on it.
    fn caption(&self, event: &Event, outcome: Option<&str>) -> Said {
        let (act, id) = (self.0.lesson.acts.get(event.act).map_or("", |act| act.id), event.step);
        let outcome = outcome.into_iter();
        let keys = outcome.flat_map(|it| [format!("{act}.{id}.{it}"), format!("{id}.{it}")]);
        let keys: Vec<String> = keys.chain([format!("{act}.{id}"), id.to_owned()]).collect();
        self.says("Steps", &keys, [event.actor, event.to.unwrap_or_default()])
    }

    /// The first of these texts, with the actors' names and the play's own times in the gaps.
    pub(super) fn says(&self, section: &str, keys: &[String], actors: [&str; 2]) -> Said {
        let lesson = self.0.lesson;
        let times = [self.lease(), self.pause()].map(|time| time.as_millis().to_string());
        let said = |language| {
            let found = keys.iter().find_map(|key| lesson.item(section, key, language));
            let text = found.or(keys.last().map(String::as_str)).unwrap_or_default();
            let names = actors.map(|actor| lesson.name_of(actor, language));
            let gaps = ["{who}", "{to}", "{lease}", "{pause}"].into_iter();
            let words = gaps.zip(names.iter().chain(&times));
            words.fold(text.to_owned(), |text, (gap, words)| text.replace(gap, words))
        };
        Said { en: said(Language::En), zh: said(Language::Zh) }
    }

    /// What came of the last step, once its client knows.
    pub(super) fn came_of_it(&self, client: Name, outcome: &str) {
        let mut record = self.0.record.lock();
        if let Some(last) = record.events.last_mut().filter(|last| last.actor == client) {
            last.say = self.caption(last, Some(outcome));
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

    /// Without the prefix that keeps plays apart, and with the first of many random digits.
    pub(super) fn readable(&self, text: &str) -> String {
        shortened(&text.replace(&self.0.prefix, "").replace(&self.0.id, "play"))
    }
}

/// Runs of many hexadecimal digits are cut: six tell two tokens apart.
fn shortened(text: &str) -> String {
    let is_digit = |letter: char| matches!(letter, '0'..='9' | 'a'..='f');
    let letters: Vec<char> = text.chars().collect();
    let runs = letters.chunk_by(|one, next| is_digit(*one) == is_digit(*next));
    let is_long = |run: &[char]| is_digit(run[0]) && run.len() >= 32;
    runs.flat_map(|run| if is_long(run) { &run[..6] } else { run }).collect()
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
