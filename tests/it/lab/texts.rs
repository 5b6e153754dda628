//! The texts: in both languages the same headings and keys, nothing unused, nothing missing.

use crate::support::{lessons::has_chinese, prelude::*};
use lab::strategy::Language::{En, Zh};
use lab::{STRATEGIES, Strategy, options::GENERAL, texts};

const PROSE: [&str; 5] = ["Idea", "Source", "How it fails", "Break it", "Instead"];
const LISTS: [&str; 3] = ["Demonstrations", "Options", "Marks"];

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
            for name in text.sections() {
                assert!(PROSE.contains(&name) || LISTS.contains(&name), "{id}: {name}");
            }
            for name in LISTS {
                let shared = texts::of("options", En).expect("a text");
                // An option that all share may be told in one's own words.
                let is_own = |key: &&str| name != "Options" || shared.item(name, key).is_none();
                let here = text.items(name).map(|(key, _)| key).filter(is_own);
                let here: BTreeSet<String> = here.map(str::to_owned).collect();
                assert_eq!(here, keys(strategy, name), "{id}, {language:?}: {name}");
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
        assert!(en.sections().eq(zh.sections()), "{id}: other sections");
        for section in en.sections() {
            let keys = [en, zh].map(|text| text.items(section).map(|(key, _)| key));
            let [here, there] = keys.map(Iterator::collect::<Vec<_>>);
            assert_eq!(here, there, "{id}: {section}");
            assert!(zh.section(section).is_some_and(has_chinese), "{id}: {section}");
            let outside_titles = |text: &str| text.split(['《', '》']).step_by(2).any(has_chinese);
            assert!(!en.section(section).is_some_and(outside_titles), "{id}: {section}");
        }
        assert!(has_chinese(zh.title()) && has_chinese(zh.lead()), "{id}");
        assert!(!has_chinese(en.title()) && !has_chinese(en.lead()), "{id}");
    }
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
