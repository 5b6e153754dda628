//! A timeline as text, at most 100 columns wide. It is laid out in `templates/lesson.txt`.

use super::lesson::{Actor, Part};
use super::{LessonBody, Lessons, timeline::Timeline};
use crate::{strategy::Language, templates::render};
use minijinja::Error;
use serde_json::{Value, json};

/// How to write: in colours only where somebody sees them.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    pub language: Language,
    pub colours: bool,
}

/// What is written before a text of this colour, and after it.
const COLOURS: [(&str, &str); 6] = [
    ("bold", "\x1b[1m"),
    ("dim", "\x1b[2m"),
    ("red", "\x1b[1;31m"),
    ("green", "\x1b[1;32m"),
    ("blue", "\x1b[36m"),
    ("off", "\x1b[0m"),
];

fn page(name: &str, style: Style, mut shown: Value) -> Result<String, Error> {
    for (colour, code) in COLOURS {
        shown[colour] = Value::from(if style.colours { code } else { "" });
    }
    render(name, style.language, &shown)
}

/// All lessons, one after the other.
pub fn list(lessons: &Lessons, style: Style) -> Result<String, Error> {
    page("lessons.txt", style, json!(lessons))
}

/// A whole play.
pub fn play(timeline: &Timeline, style: Style) -> Result<String, Error> {
    let (lesson, language) = (timeline.lesson, style.language);
    let letter = |actor: &Actor| {
        let digit = actor.id.chars().last().filter(char::is_ascii_digit);
        // Several servers are told apart by their digit.
        let digit = digit.filter(|_| actor.part != Part::Client);
        digit.or_else(|| lesson.name_of(actor.id, Language::En).chars().next())
    };
    let shown = json!({
        "lesson": LessonBody::of(lesson, None, language),
        "play": timeline.body(language),
        "letters": lesson.cast.iter().map(letter).collect::<Vec<_>>(),
        "why": timeline.recorded.map(|why| why.say(language)),
    });
    page("lesson.txt", style, shown)
}
