//! The knobs of an arena, and their ranges.

use super::strategy::{ArenaOptionKind, OptionSpec, Strategy};
use crate::error::{LabError, Result};
use serde::Serialize;
use serde_json::{Map, Value};
use std::time::Duration;

/// The knobs that every strategy has. `crash_at` is one of the strategy's crash points, or never.
pub const GENERAL: &[OptionSpec] = &[
    whole("work_ms", (0, 0, 2_000)),
    choice("interleave", &["on", "off"]),
    whole("pause_ms", (0, 0, 5_000)),
    choice("crash_at", &["never"]),
    whole("crash_node", (0, 0, 7)),
    whole("crash_after", (1, 1, 10_000)),
    whole("restart_ms", (50, 0, 10_000)),
];

/// The knob of the strategies that try again when somebody else was faster.
pub const fn retries(default: i64) -> OptionSpec {
    whole("retries", (default, 0, 10_000))
}

/// The knob of the strategies with a lock that ends by itself.
pub const LEASE_MS: OptionSpec = whole("lease_ms", (2_000, 10, 60_000));

/// The knob of the strategies that wait for a lock.
pub const WAIT_MS: OptionSpec = whole("wait_ms", (5_000, 0, 20_000));

/// A knob of one strategy only. `range`: default, least, most.
pub const fn whole(name: &'static str, range: (i64, i64, i64)) -> OptionSpec {
    let (default, min, max) = range;
    OptionSpec { name, kind: ArenaOptionKind::Whole { default, min, max } }
}

/// A knob of one strategy only. The first value is the default.
pub const fn choice(name: &'static str, values: &'static [&'static str]) -> OptionSpec {
    OptionSpec { name, kind: ArenaOptionKind::Choice { default: values[0], values } }
}

/// How many of the lock's Redis servers lose their data while the first buyer holds the lock.
pub const fn redis_node_loss(max: i64) -> OptionSpec {
    whole("redis_node_loss", (0, 0, max))
}

/// How many of the lock's Redis servers cannot be reached at all.
pub const fn redis_nodes_down(max: i64) -> OptionSpec {
    whole("redis_nodes_down", (0, 0, max))
}

/// The options of one arena or play: every knob has a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Options(pub Map<String, Value>);

impl Options {
    /// The options of an arena, as asked for.
    pub fn read(strategy: &Strategy, asked: &Map<String, Value>) -> Result<Self> {
        let known = strategy.options.iter().chain(GENERAL);
        Self::among(strategy.id, known, strategy.crash_points, asked)
    }

    /// Numbers, or texts as a command line has them. Unknown names and values out of range are
    /// refused.
    pub fn among<'a>(
        owner: &str,
        known: impl Iterator<Item = &'a OptionSpec> + Clone,
        crash_points: &[&str],
        asked: &Map<String, Value>,
    ) -> Result<Self> {
        let default = |knob: &OptionSpec| (knob.name.to_owned(), knob.kind.default());
        let mut options: Map<_, _> = known.clone().map(default).collect();
        for (name, value) in asked {
            let shown: String = name.chars().take(40).collect();
            let bad = |why: String| LabError::invalid(format!("options.{shown}"), why);
            let read = match known.clone().find(|knob| knob.name == name).map(|knob| knob.kind) {
                None => Err(format!("{owner} has no such option")),
                Some(ArenaOptionKind::Whole { min, max, .. }) => read_whole(value, min, max),
                Some(ArenaOptionKind::Choice { values, .. }) if name == "crash_at" => {
                    read_choice(value, &[values, crash_points].concat())
                }
                Some(ArenaOptionKind::Choice { values, .. }) => read_choice(value, values),
            };
            options.insert(name.clone(), read.map_err(bad)?);
        }
        Ok(Self(options))
    }

    /// The whole number of this name; 0 if there is no such option.
    pub fn whole(&self, name: &str) -> i64 {
        self.0.get(name).and_then(Value::as_i64).unwrap_or(0)
    }

    /// The choice of this name; empty if there is no such option.
    pub fn choice(&self, name: &str) -> &str {
        self.0.get(name).and_then(Value::as_str).unwrap_or("")
    }

    pub fn is(&self, name: &str, value: &str) -> bool {
        self.choice(name) == value
    }

    pub fn millis(&self, name: &str) -> Duration {
        Duration::from_millis(u64::try_from(self.whole(name)).unwrap_or(0))
    }

    /// Milliseconds, or `otherwise` if there is no such option.
    pub fn millis_or(&self, name: &str, otherwise: Duration) -> Duration {
        if self.0.contains_key(name) { self.millis(name) } else { otherwise }
    }
}

fn read_whole(value: &Value, min: i64, max: i64) -> Result<Value, String> {
    let number = match value {
        Value::String(text) => text.parse().ok(),
        value => value.as_i64(),
    };
    let number = number.filter(|number| (min..=max).contains(number));
    number.map(Value::from).ok_or_else(|| format!("must be a whole number from {min} to {max}"))
}

fn read_choice(value: &Value, values: &[&str]) -> Result<Value, String> {
    let chosen = match value {
        Value::Bool(true) => "on",
        Value::Bool(false) => "off",
        value => value.as_str().unwrap_or(""),
    };
    if !values.contains(&chosen) {
        return Err(format!("must be one of: {}", values.join(", ")));
    }
    Ok(chosen.into())
}
