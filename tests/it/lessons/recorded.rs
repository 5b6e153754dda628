//! The plays that are kept for machines without ZooKeeper.

use crate::support::{lessons::*, prelude::*};
use lab::lessons::terminal::{self, Style};
use lab::lessons::{recorded, timeline::Timeline};
use lab::strategy::{Language, Words};

const WHY: Words = Words::new("There is no ZooKeeper.", "没有 ZooKeeper。");
const MOST_BYTES: usize = 60_000;

fn steps(timeline: &Timeline) -> Vec<(usize, &str, &str)> {
    let steps = timeline.events.iter().map(|event| (event.act, event.actor, event.step));
    let mut steps: Vec<_> = steps.collect();
    // How often a queue is asked depends on the moment.
    steps.dedup();
    steps
}

/// With `RECORD=1` it is made anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_recorded_play_is_as_the_lesson_goes_today() {
    let lesson = lesson("b11");
    let kept = recorded::of(lesson, WHY).expect("a recording");
    if can_be_played(lesson).await {
        let theatre = TestTheatre::open("recorded:").await;
        let played = theatre.play(lesson, json!({})).await;
        theatre.close().await;
        if std::env::var_os("RECORD").is_some() {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/lab/recorded/b11.json");
            let written = recorded::written(&played).expect("JSON");
            return std::fs::write(file, written).expect("the file is written");
        }
        assert_eq!(steps(&kept), steps(&played), "RECORD=1 makes it anew");
    }
    is_well_formed(&kept);
    assert!(recorded::written(&kept).expect("JSON").len() <= MOST_BYTES);
    for language in [Language::En, Language::Zh] {
        let body = kept.body(language);
        assert!(body.recorded && body.verdict.broken && body.verdict.held, "{:?}", body.verdict);
    }
    let style = Style { language: Language::En, colours: false };
    let shown = terminal::play(&kept, style).expect("a text");
    assert!(shown.contains("This is a recording. There is no ZooKeeper."), "{shown}");
}
