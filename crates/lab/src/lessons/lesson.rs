//! What a lesson is: its cast, its knobs and its acts. Its words stand in `texts/`, see [`words`].
//!
//! [`words`]: super::words

use crate::error::LabError;
use crate::options::{self, Options};
use crate::strategy::{Need, OptionSpec};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// The node that lessons use which need only one.
pub const REDIS_NODE: &str = "redis";
/// The lock of all lessons.
pub const LOCK: &str = "lock:phone";

/// The nodes of lessons that use several.
pub const NODES: [&str; 3] = ["redis-1", "redis-2", "redis-3"];

/// One lesson: a failure, how it is forced, its cure.
#[derive(Debug)]
pub struct Lesson {
    pub number: u8,
    pub id: &'static str,
    pub needs: &'static [Need],
    pub options: &'static [OptionSpec],
    pub cast: &'static [Actor],
    pub acts: &'static [Act],
}

impl Lesson {
    pub fn actor(&self, id: &str) -> Option<&'static str> {
        self.cast.iter().find(|actor| actor.id == id).map(|actor| actor.id)
    }

    /// The options of one play.
    pub fn read_options(&self, asked: &Map<String, Value>) -> Result<Options, LabError> {
        Options::among(self.id, self.options.iter(), &[], asked)
    }
}

/// One of the cast.
#[derive(Debug, Clone, Copy)]
pub struct Actor {
    pub id: &'static str,
    pub part: Part,
}

pub const fn client(id: &'static str) -> Actor {
    Actor { id, part: Part::Client }
}

pub const fn node(id: &'static str) -> Actor {
    Actor { id, part: Part::Redis }
}

pub const ALICE: Actor = client("alice");
pub const BOB: Actor = client("bob");
pub const CAROL: Actor = client("carol");
pub const REDIS: Actor = node(REDIS_NODE);
pub const SHOP: Actor = Actor { id: "postgres", part: Part::Resource };

/// Who can stand on the stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = ActorKind)]
pub enum Part {
    Client,
    Redis,
    Postgres,
    ZooKeeper,
    /// What the lock is there to protect.
    Resource,
}

/// One act, as its lesson announces it.
#[derive(Debug, Clone, Copy)]
pub struct Act {
    pub id: &'static str,
    pub kind: Kind,
    /// The lines that decide.
    pub marks: &'static [Mark],
}

/// What an act shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ActKind)]
pub enum Kind {
    Failure,
    Cure,
    FlawOfTheCure,
}

/// A `//= FLAW` or `//= CURE` of a source: the one above a line with this code.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    pub file: &'static str,
    pub code: &'static str,
}

pub const fn mark(file: &'static str, code: &'static str) -> Mark {
    Mark { file, code }
}

pub const fn failure(id: &'static str, marks: &'static [Mark]) -> Act {
    Act { id, kind: Kind::Failure, marks }
}

pub const fn cure(id: &'static str, marks: &'static [Mark]) -> Act {
    Act { id, kind: Kind::Cure, marks }
}

pub const fn flaw_of_the_cure(id: &'static str, marks: &'static [Mark]) -> Act {
    Act { id, kind: Kind::FlawOfTheCure, marks }
}

pub use options::choice;

pub const LEASE_MS: OptionSpec = whole("lease_ms", 300, 200, 3_000);
pub const PAUSE_MS: OptionSpec = whole("pause_ms", 450, 0, 5_000);

pub const fn whole(name: &'static str, default: i64, min: i64, max: i64) -> OptionSpec {
    options::whole(name, (default, min, max))
}

/// Files whose lines decide in several lessons.
pub const SHOPPING: &str = "crates/lab/src/lessons/stage/shopping.rs";
pub const TOKEN_RELEASE: &str = "crates/locks/src/scripts/token_release.lua";
