//! The texts of strategies and lessons: Markdown in `texts/{en,zh}/ID.md`, the same headings and
//! keys in both languages.
//!
//! ```text
//! # Title
//!
//! The lead: one sentence for a beginner.
//!
//! ## Idea                          a section; its name is English in both languages
//! One paragraph is one line.
//!
//! ## Options
//! - `retries`: An item, found by its key.
//! ```
//!
//! A strategy has the sections Idea, Source, How it fails, Break it, Instead, Demonstrations
//! (keys: their ids), Options and Marks (keys: 1, 2, … in the order of the source). A lesson has
//! Failure, How it is forced, Cure, Source, Options, Acts, Steps, Endings, Marks, and Cast where a
//! name is its own. What several share stands in `options.md` and, under the name of the lock, in
//! `locks.md`; `servers.md` names what is missing, `verdict.md` what came of a race, `grade.md`
//! what a conformance case is and what breaks in it, and `why.md` is what a link to /lab/why shows
//! where it is shared.

use rust_embed::Embed;
use std::{collections::HashMap, sync::LazyLock};
pub use web::language::Language;

/// A short text in both languages.
#[derive(Debug, Clone, Copy)]
pub struct Words {
    pub en: &'static str,
    pub zh: &'static str,
}

impl Words {
    pub const fn new(en: &'static str, zh: &'static str) -> Self {
        Self { en, zh }
    }

    /// An item of a text.
    pub fn of(id: &str, section: &str, key: &'static str) -> Self {
        let [en, zh] =
            [Language::En, Language::Zh].map(|language| item(id, section, key, language));
        Self { en, zh }
    }

    pub fn say(self, language: Language) -> &'static str {
        [self.en, self.zh][language as usize]
    }
}

/// The files of `texts/`.
#[derive(Embed)]
#[folder = "texts"]
struct Files;

static TEXTS: LazyLock<[HashMap<String, Text>; 2]> = LazyLock::new(|| ["en/", "zh/"].map(texts_in));

fn texts_in(folder: &str) -> HashMap<String, Text> {
    let texts = Files::iter().filter_map(|path| {
        let id = path.strip_prefix(folder)?.strip_suffix(".md")?.to_owned();
        let text = String::from_utf8(Files::get(&path)?.data.into_owned()).ok()?;
        Some((id, Text::read(text.leak()))) // once, for as long as the process lives
    });
    texts.collect()
}

/// The text of a strategy or a lesson.
pub fn of(id: &str, language: Language) -> Option<&'static Text> {
    TEXTS[language as usize].get(id)
}

/// The ids of all texts.
pub fn ids() -> impl Iterator<Item = &'static str> {
    TEXTS[0].keys().map(String::as_str)
}

/// An item of a text, or its key if there is none.
pub fn item(id: &str, section: &str, key: &'static str, language: Language) -> &'static str {
    of(id, language).and_then(|text| text.item(section, key)).unwrap_or(key)
}

/// One file.
#[derive(Debug, Default)]
pub struct Text {
    title: &'static str,
    lead: &'static str,
    /// Name and body.
    sections: Vec<(&'static str, &'static str)>,
}

impl Text {
    fn read(file: &'static str) -> Self {
        let mut parts = file.split("\n## ");
        let (title, lead) = parts.next().unwrap_or("").split_once('\n').unwrap_or(("", ""));
        let sections = parts.map(|part| {
            let (name, body) = part.split_once('\n').unwrap_or((part, ""));
            (name.trim(), body.trim())
        });
        Self {
            title: title.trim_start_matches('#').trim(),
            lead: lead.trim(),
            sections: sections.collect(),
        }
    }

    pub fn title(&self) -> &'static str {
        self.title
    }

    /// One sentence for a beginner.
    pub fn lead(&self) -> &'static str {
        self.lead
    }

    pub fn section(&self, name: &str) -> Option<&'static str> {
        self.sections.iter().find(|section| section.0 == name).map(|section| section.1)
    }

    /// The names of the sections, in the order of the file.
    pub fn sections(&self) -> impl Iterator<Item = &'static str> {
        self.sections.iter().map(|section| section.0)
    }

    /// The words after "- `key`: " in a section.
    pub fn item(&self, section: &str, key: &str) -> Option<&'static str> {
        self.items(section).find(|(known, _)| *known == key).map(|(_, words)| words)
    }

    /// Keys and words of a section, in the order of the file.
    pub fn items(&self, section: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
        let lines = self.section(section).unwrap_or("").lines();
        lines.filter_map(|line| line.strip_prefix("- `")?.split_once("`: "))
    }
}
