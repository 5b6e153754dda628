//! What a lesson says of itself: the failure, its cure, the cast and the acts.

use super::options::OptionSpec;
use crate::strategy::{Need, Words};
use serde::Serialize;
use utoipa::ToSchema;

/// The node that lessons use which need only one.
pub const REDIS_NODE: &str = "redis";

/// One lesson: a failure, how it is forced, its cure.
pub struct Lesson {
    pub number: u8,
    pub id: &'static str,
    pub title: Words,
    pub failure: Words,
    pub forced_how: Words,
    pub cure: Words,
    /// Where the idea comes from, what that gets right and what it misses.
    pub source: Words,
    pub needs: &'static [Need],
    pub options: &'static [OptionSpec],
    pub cast: &'static [Actor],
    pub acts: &'static [Act],
}

impl std::fmt::Debug for Lesson {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.id)
    }
}

impl Lesson {
    pub fn actor(&self, id: &str) -> Option<&'static str> {
        self.cast.iter().find(|actor| actor.id == id).map(|actor| actor.id)
    }
}

pub const fn client(id: &'static str, name: &'static str) -> Actor {
    Actor { id, name: Words::new(name, name), part: Part::Client }
}

pub const ALICE: Actor = client("alice", "Alice");
pub const BOB: Actor = client("bob", "Bob");
pub const CAROL: Actor = client("carol", "Carol");
pub const REDIS: Actor =
    Actor { id: REDIS_NODE, name: Words::new("Redis", "Redis"), part: Part::Redis };
pub const SHOP: Actor = Actor {
    id: "postgres",
    name: Words::new("The phone (Postgres)", "手机库存（Postgres）"),
    part: Part::Resource,
};

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

/// What an act shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ActKind)]
pub enum Kind {
    Failure,
    Cure,
    FlawOfTheCure,
}

/// One of the cast.
#[derive(Debug, Clone, Copy)]
pub struct Actor {
    pub id: &'static str,
    pub name: Words,
    pub part: Part,
}

/// One act, as its lesson announces it.
#[derive(Debug, Clone, Copy)]
pub struct Act {
    pub id: &'static str,
    pub kind: Kind,
    pub title: Words,
    pub say: Words,
}
