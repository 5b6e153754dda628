//! The texts: in both languages the same headings and keys, nothing unused, nothing missing.

use crate::support::lessons::is_chinese;
use lab::{
    STRATEGIES, Strategy,
    options::GENERAL,
    strategy::Language::{En, Zh},
    texts,
};
use std::{collections::BTreeSet, path::Path};

/// The sections of a strategy that are prose.
const PROSE: [&str; 5] = ["Idea", "Source", "How it fails", "Break it", "Instead"];

/// What a strategy needs in this section.
fn keys(strategy: &Strategy, section: &str) -> BTreeSet<String> {
    let own = |name: &&str| !GENERAL.iter().any(|general| general.name == *name);
    match section {
        "Demonstrations" => strategy.demonstrations.iter().map(|one| one.id.to_owned()).collect(),
        "Options" => {
            let shared = texts::of("options", En).expect("a text");
            let options = strategy.options.iter().map(|option| option.name);
            let own = options.filter(|name| own(name) && shared.item("Options", name).is_none());
            own.map(str::to_owned).collect()
        }
        // Those of locks stand in `locks.md`.
        _ => {
            let sources = std::iter::once(&strategy.code).chain(strategy.scripts).copied();
            let marks = sources.flat_map(lab::marks::excerpts).count();
            (1..=marks).map(|number| number.to_string()).collect()
        }
    }
}

#[test]
fn every_strategy_has_its_texts_and_uses_them() {
    for strategy in STRATEGIES {
        let id = strategy.id;
        for language in [En, Zh] {
            let text = texts::of(id, language).unwrap_or_else(|| panic!("{id} has no text"));
            let known = |name: &&str| PROSE.contains(name);
            for name in text.sections().filter(|name| !known(name)) {
                let here: BTreeSet<String> =
                    text.items(name).map(|(key, _)| key.to_owned()).collect();
                let needed = keys(strategy, name);
                // An option that all share may be told in one's own words.
                let shared = texts::of("options", En).expect("a text");
                let extra = |key: &&String| name != "Options" || shared.item(name, key).is_none();
                let here: BTreeSet<String> = here.iter().filter(extra).cloned().collect();
                assert_eq!(here, needed, "{id}, {language:?}: {name}");
            }
            for name in ["Demonstrations", "Options", "Marks"] {
                let missing = text.section(name).is_none() && !keys(strategy, name).is_empty();
                assert!(!missing, "{id}, {language:?}: {name}");
            }
            for name in PROSE {
                assert!(text.section(name).is_some_and(|body| !body.is_empty()), "{id}: {name}");
            }
            let one_paragraph = !text.lead().is_empty() && !text.lead().contains('\n');
            assert!(one_paragraph && !text.title().is_empty(), "{id}: {}", text.lead());
        }
    }
}

#[test]
fn both_languages_say_the_same_things() {
    for id in texts::ids() {
        let (en, zh) = (texts::of(id, En).expect(id), texts::of(id, Zh).expect(id));
        let (sections, chinese) = (en.sections(), zh.sections());
        assert_eq!(sections.collect::<Vec<_>>(), chinese.collect::<Vec<_>>(), "{id}");
        for section in en.sections() {
            let keys = |text: &texts::Text| -> Vec<&str> {
                text.items(section).map(|(key, _)| key).collect()
            };
            assert_eq!(keys(en), keys(zh), "{id}: {section}");
            let (english, chinese) = (en.section(section), zh.section(section));
            assert!(chinese.is_some_and(|text| text.chars().any(is_chinese)), "{id}: {section}");
            let outside_titles = |text: &str| text.split(['《', '》']).step_by(2).any(has_chinese);
            assert!(!english.is_some_and(outside_titles), "{id}: {section}");
        }
        assert!(zh.title().chars().any(is_chinese) && zh.lead().chars().any(is_chinese), "{id}");
        assert!(!has_chinese(en.title()) && !has_chinese(en.lead()), "{id}");
    }
}

fn has_chinese(text: &str) -> bool {
    text.chars().any(is_chinese)
}

#[test]
fn every_file_of_texts_is_embedded() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/lab/texts");
    for language in ["en", "zh"] {
        let files = std::fs::read_dir(folder.join(language)).expect("a folder");
        let names = files.map(|file| file.expect("a file").file_name());
        let names = names.map(|name| name.to_string_lossy().replace(".md", ""));
        let embedded: BTreeSet<String> = texts::ids().map(str::to_owned).collect();
        assert_eq!(names.collect::<BTreeSet<_>>(), embedded, "{language}");
    }
}
