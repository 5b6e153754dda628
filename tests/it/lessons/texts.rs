//! The words of the lessons: nothing is missing, nothing is left over. And the marks.

use lab::lessons::lesson::{Act, Kind};
use lab::{lessons::LESSONS, lessons::code::SOURCES};
use lab::{marks, strategy::Language, texts};
use std::collections::BTreeSet;

const OUTCOMES: [&str; 6] = ["in", "out", "freed", "late", "left", "none"];
const STAGE: [&str; 3] = ["refused", "give-back", "expired"];

fn of_act(key: &str) -> (Option<&str>, &str) {
    key.split_once('.').map_or((None, key), |(act, rest)| (Some(act), rest))
}

#[test]
fn every_key_is_of_something_in_its_lesson() {
    for lesson in LESSONS {
        let id = lesson.id;
        let text = texts::of(id, Language::En).expect("a text");
        let keys = |section| text.items(section).map(|(key, _)| key).collect::<BTreeSet<_>>();
        let acts: BTreeSet<&str> = lesson.acts.iter().map(|act| act.id).collect();
        assert_eq!(keys("Acts"), acts, "{id}");
        assert_eq!(keys("Marks"), acts, "{id}");
        assert_eq!(keys("Options"), lesson.options.iter().map(|knob| knob.name).collect(), "{id}");
        assert!(keys("Cast").iter().all(|actor| lesson.actor(actor).is_some()), "{id}");
        let prefix = format!("crates/lab/src/lessons/{id}_");
        let (_, source) = SOURCES.iter().find(|(file, _)| file.starts_with(&prefix)).expect(id);
        let is_written = |step| STAGE.contains(&step) || source.contains(&format!("\"{step}\""));
        for key in keys("Steps") {
            let whole = key.rsplit_once('.').filter(|(_, last)| OUTCOMES.contains(last));
            let step = whole.map_or(key, |(step, _)| step);
            let (act, step) = of_act(step);
            assert!(is_written(step), "{id}: no step {key}");
            assert!(act.is_none_or(|act| acts.contains(act)), "{id}: no act of {key}");
        }
        for key in keys("Endings") {
            let (act, how) = of_act(key);
            let is_known = ["broken", "held"].contains(&how) || is_written(how);
            assert!(is_known && act.is_none_or(|act| acts.contains(act)), "{id}: {key}");
        }
    }
}

#[test]
fn every_act_has_its_words_and_its_marked_line() {
    for lesson in LESSONS {
        let id = lesson.id;
        for act in lesson.acts {
            for language in [Language::En, Language::Zh] {
                let (title, say) = act.words(lesson, language);
                assert!(title != say && !say.is_empty(), "{id}/{}: no title", act.id);
            }
            assert!(!act.marks.is_empty(), "{id}/{}", act.id);
            let marked = act.excerpts(lesson, Language::En);
            assert_eq!(marked.len(), act.marks.len(), "{id}: {:?}", act.marks);
            let is_short = |one: &marks::Excerpt| one.lines().count() <= marks::MOST_LINES;
            assert!(marked.iter().all(is_short), "{id}: {marked:?}");
            // A cure shows cures only, and everything else flaws; of the other kind none is found.
            let (is_cure, kind) = (act.kind == Kind::Cure, marked[0].kind);
            assert_eq!(is_cure, kind == marks::Kind::Cure, "{id}/{}", act.id);
            let kind = if is_cure { Kind::Failure } else { Kind::Cure };
            let other = Act { kind, ..*act }.excerpts(lesson, Language::En);
            assert!(other.iter().all(|one| one.kind != marked[0].kind), "{other:?}");
        }
        let kinds: Vec<Kind> = lesson.acts.iter().map(|act| act.kind).collect();
        assert_eq!(kinds.first(), Some(&Kind::Failure), "{id}");
        assert!(kinds.contains(&Kind::Cure), "{id}");
    }
    let numbers: Vec<u8> = LESSONS.iter().map(|lesson| lesson.number).collect();
    assert_eq!(numbers, (1..=13).collect::<Vec<u8>>());
}
