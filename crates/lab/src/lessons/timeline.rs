//! What a play leaves behind: who was on stage, what each did and was answered, what the keys held,
//! who believed to hold the lock. And its shape for the page and for scripts.

use super::code::SOURCES;
use super::lesson::{Act, Actor, Kind, Lesson, Part};
use crate::marks::Excerpt;
use crate::strategy::{Language, Words};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use utoipa::ToSchema;

/// What an actor, an act or a step is called in its lesson and in the texts.
pub type Name = &'static str;

/// A text in both languages.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Said {
    pub en: String,
    pub zh: String,
}

impl Said {
    pub fn say(&self, language: Language) -> &str {
        [&self.en, &self.zh][language as usize]
    }
}

/// How an act ended: judged by what was recorded and by the resource's rows.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Ending {
    pub broken: bool,
    pub why: Said,
}

/// What a key held at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyState {
    /// `null`: there is no such key.
    pub value: Option<String>,
    /// `null`: it never expires (or is not there).
    pub ttl_ms: Option<i64>,
    /// The actor who wrote this value.
    #[serde(borrow = "'static")]
    pub owner: Option<&'static str>,
}

impl KeyState {
    /// Whose value it is, nobody knows yet.
    pub fn of(value: Option<String>, ttl_ms: Option<i64>) -> Self {
        Self { value, ttl_ms, owner: None }
    }
}

/// By name.
pub type Keys = BTreeMap<String, KeyState>;

/// One step.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Event {
    pub t_ms: f64,
    pub act: usize,
    pub actor: &'static str,
    #[serde(borrow = "'static")]
    pub to: Option<&'static str>,
    pub step: &'static str,
    pub command: Option<String>,
    pub reply: Option<String>,
    pub say: Said,
    /// The line of source that sent the command, or of the lesson that made it happen.
    #[serde(skip)]
    pub line: Option<(&'static str, u32)>,
    pub keys: Keys,
    #[serde(borrow = "'static")]
    pub believers: Vec<&'static str>,
    /// Played by the stage, in the place of what a server or a clock would do.
    pub is_staged: bool,
}

impl Event {
    pub fn of(actor: &'static str, step: &'static str) -> Self {
        Self { actor, step, ..Self::default() }
    }

    /// Whether two hold the lock at once.
    pub fn is_overlap(&self) -> bool {
        self.believers.len() > 1
    }
}

/// A whole play.
#[derive(Debug, Clone)]
pub struct Timeline {
    pub lesson: &'static Lesson,
    /// How often it was begun again because this machine had stood still.
    pub repeats: u32,
    /// From a file, as it went when it was recorded; and why it was not played now.
    pub recorded: Option<Words>,
    pub events: Vec<Event>,
    /// One for each act of the lesson.
    pub endings: Vec<Ending>,
}

/// What is told while a play runs.
#[derive(Debug, Clone)]
pub enum Moment {
    Step(Box<Event>),
    /// The machine stood still for too long, and the play begins again: forget the steps so far.
    Again,
}

// --- its shape outside

#[derive(Debug, Serialize, ToSchema)]
pub struct Play {
    #[schema(example = "b03")]
    pub lesson: &'static str,
    pub title: &'static str,
    /// How often it was begun again because the pause detector had seen this machine stand still;
    /// at most three times.
    pub repeats: u32,
    /// Not played now, but from a recording: this machine lacks a server.
    pub recorded: bool,
    pub actors: Vec<ActorBody>,
    pub acts: Vec<ActBody>,
    pub events: Vec<PlayEvent>,
    /// The text of every source file that an event points into.
    pub code: BTreeMap<&'static str, &'static str>,
    pub verdict: PlayVerdict,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct PlayCast {
    pub lesson: &'static str,
    pub title: &'static str,
    pub actors: Vec<ActorBody>,
    pub acts: Vec<ActBody>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Actor)]
pub struct ActorBody {
    #[schema(example = "alice")]
    pub id: &'static str,
    pub name: String,
    pub kind: Part,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Act)]
pub struct ActBody {
    pub id: &'static str,
    pub title: &'static str,
    pub kind: Kind,
    pub say: &'static str,
    /// The lines that decide, of the lesson or of its lock.
    pub marks: Vec<Excerpt>,
    /// Index of its first event; before the play has come to it, `null`.
    pub first: Option<usize>,
    pub last: Option<usize>,
    pub verdict: Option<PlayVerdict>,
}

/// Of an act: `broken` if what the lock promises did not hold, `held` if it did. Of a play:
/// `broken` if a failure happened, `held` if every cure held; both can be true, and by default are.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct PlayVerdict {
    pub held: bool,
    pub broken: bool,
    pub why: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct PlayEvent {
    /// Since the play began.
    pub t_ms: f64,
    pub act: &'static str,
    pub actor: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<&'static str>,
    pub step: &'static str,
    pub detail: PlayDetail,
    pub say: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<SourceLine>,
    pub key_state: BTreeMap<String, KeyState>,
    /// Actors that believe to hold the lock.
    pub believers: Vec<&'static str>,
    /// Two or more of them do.
    pub overlap: bool,
    /// Played by the stage, in the place of what a server or a clock would do by itself.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub staged: bool,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct PlayDetail {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "SET lock:phone alice-3f2a1c PX 200 NX")]
    pub command: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct SourceLine {
    #[schema(example = "crates/locks/src/token.rs")]
    pub file: &'static str,
    pub line: u32,
}

impl PlayEvent {
    pub fn new(event: &Event, lesson: &Lesson, language: Language) -> Self {
        Self {
            t_ms: event.t_ms,
            act: lesson.acts.get(event.act).map_or("", |act| act.id),
            actor: event.actor,
            to: event.to,
            step: event.step,
            detail: PlayDetail { command: event.command.clone(), reply: event.reply.clone() },
            say: event.say.say(language).to_owned(),
            line: event.line.map(|(file, line)| SourceLine { file, line }),
            key_state: event.keys.clone(),
            believers: event.believers.clone(),
            overlap: event.is_overlap(),
            staged: event.is_staged,
        }
    }
}

impl PlayCast {
    pub fn new(lesson: &'static Lesson, language: Language) -> Self {
        let actor = |actor: &Actor| ActorBody {
            id: actor.id,
            name: lesson.name_of(actor.id, language),
            kind: actor.part,
        };
        let act = |act: &Act| {
            let (title, say) = act.words(lesson, language);
            let marks = act.excerpts(lesson, language);
            let kind = act.kind;
            ActBody { id: act.id, title, kind, say, marks, first: None, last: None, verdict: None }
        };
        Self {
            lesson: lesson.id,
            title: lesson.title(language),
            actors: lesson.cast.iter().map(actor).collect(),
            acts: lesson.acts.iter().map(act).collect(),
        }
    }
}

impl Timeline {
    /// The events of one act.
    pub fn act(&self, act: usize) -> impl Iterator<Item = (usize, &Event)> {
        let events = self.events.iter().enumerate();
        events.filter(move |(_, event)| event.act == act)
    }

    pub fn verdict(&self, language: Language) -> PlayVerdict {
        let of = |kind: Kind| {
            let acts = self.lesson.acts.iter().zip(&self.endings);
            acts.filter(move |(act, _)| act.kind == kind)
        };
        let broken = of(Kind::Failure).any(|(_, ending)| ending.broken);
        let held = of(Kind::Cure).all(|(_, ending)| !ending.broken);
        let told = of(Kind::Failure).take(1).chain(of(Kind::Cure).next_back());
        let why: Vec<&str> = told.map(|(_, ending)| ending.why.say(language)).collect();
        PlayVerdict { held, broken, why: why.join([" ", ""][language as usize]) }
    }

    pub fn body(&self, language: Language) -> Play {
        let PlayCast { lesson, title, actors, mut acts } = PlayCast::new(self.lesson, language);
        for (number, act) in acts.iter_mut().enumerate() {
            act.first = self.act(number).next().map(|(index, _)| index);
            act.last = self.act(number).last().map(|(index, _)| index);
            act.verdict = self.endings.get(number).map(|Ending { broken, why }| PlayVerdict {
                held: !broken,
                broken: *broken,
                why: why.say(language).to_owned(),
            });
        }
        let events = self.events.iter();
        let files: BTreeSet<_> = events.clone().filter_map(|event| Some(event.line?.0)).collect();
        Play {
            lesson,
            title,
            repeats: self.repeats,
            recorded: self.recorded.is_some(),
            actors,
            acts,
            events: events.map(|event| PlayEvent::new(event, self.lesson, language)).collect(),
            code: SOURCES.iter().copied().filter(|(file, _)| files.contains(file)).collect(),
            verdict: self.verdict(language),
        }
    }
}
