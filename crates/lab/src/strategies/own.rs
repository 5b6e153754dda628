//! Strategies of one's own, which `flash-sale lab new` adds (docs/exercises.md). They are not among
//! those that are taught.

mod example;

strategies!["own/"; example];
