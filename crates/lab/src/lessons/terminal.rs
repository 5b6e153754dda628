//! A timeline as text, at most 100 columns wide. It is laid out in `templates/lesson.txt`.

use super::{
    LessonBody, LessonsBody,
    lesson::{Actor, Part},
    timeline::Timeline,
};
use crate::{
    command::table, order_numbers::SectionBody, strategy::Language, templates::render,
    terminal::wrapped,
};
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt::Write;

const WIDTH: usize = 100;

/// How to write: in colours only where somebody sees them.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    pub language: Language,
    pub colours: bool,
}

/// What is written before a text of this colour, and after it.
#[derive(Default, Serialize)]
struct Colours {
    bold: &'static str,
    dim: &'static str,
    red: &'static str,
    green: &'static str,
    blue: &'static str,
    off: &'static str,
}

impl Colours {
    fn of(style: Style) -> Self {
        if !style.colours {
            return Self::default();
        }
        Self {
            bold: "\x1b[1m",
            dim: "\x1b[2m",
            red: "\x1b[1;31m",
            green: "\x1b[1;32m",
            blue: "\x1b[36m",
            off: "\x1b[0m",
        }
    }
}

#[derive(Serialize)]
struct Page<T> {
    #[serde(flatten)]
    colours: Colours,
    #[serde(flatten)]
    shown: T,
}

fn page(name: &str, style: Style, shown: impl Serialize) -> String {
    let page = Page { colours: Colours::of(style), shown };
    render(name, style.language, &page)
}

/// All lessons, one after the other.
pub fn list(lessons: &LessonsBody, style: Style) -> String {
    page("lessons.txt", style, lessons)
}

/// A whole play.
pub fn play(timeline: &Timeline, style: Style) -> String {
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

/// Words and tables, as in the lesson on order numbers.
pub fn sections(sections: &[SectionBody]) -> String {
    let mut text = String::new();
    for section in sections {
        let _ = writeln!(text, "{}", section.title);
        let head = section.columns.iter().flatten().map(|title| (*title).to_owned());
        let cells = |row: &Vec<Value>| -> Vec<String> {
            let shown =
                row.iter().map(|cell| cell.as_str().map_or(cell.to_string(), str::to_owned));
            shown.collect()
        };
        let rows = section.rows.iter().flatten().map(cells);
        let rows: Vec<Vec<String>> = [head.collect()].into_iter().chain(rows).collect();
        let left: Vec<usize> = (0..rows[0].len()).collect();
        let table = table(&rows, &left);
        let words = wrapped(&section.text, WIDTH - 2).into_iter();
        let code = section.code.map(str::to_owned);
        for line in words.chain(table.lines().map(str::to_owned)).chain(code) {
            let _ = writeln!(text, "  {line}");
        }
        text.push('\n');
    }
    text
}
