//! Plays that were recorded, for machines on which a lesson's servers are missing.
//!
//! `RECORD=1 cargo test --test it -- the_recorded_play` plays such a lesson and writes its file.

use super::lesson::Lesson;
use super::timeline::{Ending, Event, Timeline};
use crate::strategy::Words;
use serde::{Deserialize, Serialize};

/// The only lesson with servers of another kind, and its play.
const RECORDED: (&str, &str) = ("b11", include_str!("../../recorded/b11.json"));

#[derive(Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'static"))]
struct Recording {
    events: Vec<Event>,
    endings: Vec<Ending>,
}

/// Whether there is one of this lesson.
pub fn has(lesson: &Lesson) -> bool {
    lesson.id == RECORDED.0
}

/// The play of a lesson as it went with default options; `why` it is not played now.
pub fn of(lesson: &'static Lesson, why: Words) -> Option<Timeline> {
    let file = has(lesson).then_some(RECORDED.1)?;
    let Recording { events, endings } = serde_json::from_str(file).ok()?;
    Some(Timeline { lesson, repeats: 0, recorded: Some(why), events, endings })
}

/// A play as a file.
pub fn written(timeline: &Timeline) -> serde_json::Result<String> {
    let (events, endings) = (timeline.events.clone(), timeline.endings.clone());
    serde_json::to_string(&Recording { events, endings })
}
