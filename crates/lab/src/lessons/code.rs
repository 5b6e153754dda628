//! The source files that a timeline can point into, as the page shows them, and their marks.

use super::lesson::{Act, Kind, Lesson, Mark};
use crate::lock_sources;
use crate::marks::{self, Excerpt, Source};
use crate::strategy::Language;
use std::sync::LazyLock;

macro_rules! sources {
    ($($file:literal),* $(,)?) => {
        &[$(($file, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../", $file)))),*]
    };
}

/// Besides those of the locks.
const OTHERS: &[(&str, &str)] = sources![
    "crates/locks/src/driver.rs",
    "crates/locks/src/hold.rs",
    "crates/locks/src/scripts/token_acquire.lua",
    "crates/lab/src/lessons/stage/shopping.rs",
    "crates/lab/src/lessons/scripts/counting_acquire.lua",
    "crates/lab/src/lessons/b01_crash_between.rs",
    "crates/lab/src/lessons/b02_expired_stamp.rs",
    "crates/lab/src/lessons/b03_foreign_delete.rs",
    "crates/lab/src/lessons/b04_lease_over.rs",
    "crates/lab/src/lessons/b05_counted_twice.rs",
    "crates/lab/src/lessons/b06_watchdog.rs",
    "crates/lab/src/lessons/b07_lost_wakeup.rs",
    "crates/lab/src/lessons/b08_foreign_unlock.rs",
    "crates/lab/src/lessons/b09_failover.rs",
    "crates/lab/src/lessons/b10_redlock.rs",
    "crates/lab/src/lessons/b11_zookeeper.rs",
    "crates/lab/src/lessons/b12_before_commit.rs",
    "crates/lab/src/lessons/b13_paid_and_expired.rs",
];

/// File and text.
pub static SOURCES: LazyLock<Vec<(&str, &str)>> = LazyLock::new(|| {
    let of_locks = lock_sources::SOURCES.iter().map(|(_, source)| (source.file, source.text));
    of_locks.chain(OTHERS.iter().copied()).collect()
});

impl Act {
    /// Its marked lines, with what stands around them: cures in a cure, flaws elsewhere. The words
    /// are those of the lesson's text.
    pub fn excerpts(&self, lesson: &Lesson, language: Language) -> Vec<Excerpt> {
        let kind = match self.kind {
            Kind::Cure => marks::Kind::Cure,
            Kind::Failure | Kind::FlawOfTheCure => marks::Kind::Flaw,
        };
        let found = self.marks.iter().filter_map(|mark| mark.excerpt(kind));
        let in_words = |mut excerpt: Excerpt| {
            let words = lesson.item("Marks", self.id, language);
            excerpt.words = words.map_or(excerpt.words, str::to_owned);
            excerpt
        };
        found.map(in_words).collect()
    }
}

impl Mark {
    fn excerpt(&self, kind: marks::Kind) -> Option<Excerpt> {
        let &(file, text) = SOURCES.iter().find(|(known, _)| *known == self.file)?;
        let is_meant = |excerpt: &Excerpt| {
            let marked = text.lines().nth(excerpt.marked_line);
            excerpt.kind == kind && marked.is_some_and(|line| line.contains(self.code))
        };
        marks::excerpts(Source { file, text }).into_iter().find(is_meant)
    }
}
