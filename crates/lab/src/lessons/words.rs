//! The words of a lesson, from `texts/`: what it says of itself, of its acts, steps and endings.
//!
//! | section | keys |
//! |---|---|
//! | `Options`, `Acts`, `Marks`, `Cast` | the option's, the act's, the act's, the actor's name |
//! | `Steps` | `act.step` or `step`, with `.in`, `.out` and so on for what came of it |
//! | `Endings` | `act.broken`, `act.held`, or without the act |
//!
//! Words that are missing are a bug that the tests find; until then their key stands there.

use super::lesson::{Act, Lesson};
use crate::{strategy::Language, texts};

impl Lesson {
    pub fn title(&self, language: Language) -> &'static str {
        texts::of(self.id, language).map_or(self.id, |text| text.title())
    }

    /// One sentence for a reader who has never heard of locks.
    pub fn lead(&self, language: Language) -> &'static str {
        texts::of(self.id, language).map_or(self.id, |text| text.lead())
    }

    pub fn section(&self, name: &'static str, language: Language) -> &'static str {
        texts::of(self.id, language).and_then(|text| text.section(name)).unwrap_or(name)
    }

    pub fn item(&self, section: &str, key: &str, language: Language) -> Option<&'static str> {
        texts::of(self.id, language)?.item(section, key)
    }

    /// As written in `Cast`; else its id with a capital letter.
    pub fn name_of(&self, actor: &str, language: Language) -> String {
        if let Some(name) = self.item("Cast", actor, language) {
            return name.to_owned();
        }
        let mut letters = actor.chars();
        let first = letters.next().map(|letter| letter.to_ascii_uppercase());
        first.into_iter().chain(letters).collect::<String>().replace('-', " ")
    }
}

impl Act {
    /// Its title, and what to say before it begins: `**title** words`.
    pub fn words(&self, lesson: &Lesson, language: Language) -> (&'static str, &'static str) {
        let item = lesson.item("Acts", self.id, language).unwrap_or(self.id);
        let parts = item.strip_prefix("**").and_then(|rest| rest.split_once("**"));
        parts.map_or((item, item), |(title, say)| (title.trim(), say.trim()))
    }
}
