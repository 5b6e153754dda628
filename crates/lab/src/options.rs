//! The knobs of an arena: what each may be, and what turning it teaches.

use super::strategy::{OptionKind, OptionSpec, Strategy};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, time::Duration};

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

/// The option of this name, a strategy's own or one that all have.
pub fn option_of(strategy: &Strategy, name: &str) -> Option<&'static OptionSpec> {
    let mut all = strategy.options.iter().chain(GENERAL);
    all.find(|option| option.name == name)
}

/// The knob of the strategies that try again when somebody else was faster.
pub const fn retries(default: i64) -> OptionSpec {
    whole("retries", (default, 0, 10_000))
}

/// The knob of the strategies with a lock that ends by itself.
pub const fn lease_ms(default: i64) -> OptionSpec {
    whole("lease_ms", (default, 10, 60_000))
}

/// The knob of the strategies that wait for a lock.
pub const fn wait_ms(default: i64) -> OptionSpec {
    whole("wait_ms", (default, 0, 20_000))
}

/// A knob of one strategy only. `range`: default, least, most.
pub const fn whole(name: &'static str, range: (i64, i64, i64)) -> OptionSpec {
    let (default, min, max) = range;
    OptionSpec { name, kind: OptionKind::Whole { default, min, max } }
}

/// A knob of one strategy only. The first value is the default.
pub const fn choice(name: &'static str, values: &'static [&'static str]) -> OptionSpec {
    OptionSpec { name, kind: OptionKind::Choice(values) }
}

/// How many of the lock's Redis servers lose their data while the first buyer holds the lock.
pub const fn redis_node_loss(max: i64) -> OptionSpec {
    whole("redis_node_loss", (0, 0, max))
}

/// How many of the lock's Redis servers cannot be reached at all.
pub const fn redis_nodes_down(max: i64) -> OptionSpec {
    whole("redis_nodes_down", (0, 0, max))
}

/// Why an option was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("options.{name}: {why}")]
pub struct BadOption {
    pub name: String,
    pub why: String,
}

/// The options of one arena: every knob of its strategy has a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Options(BTreeMap<&'static str, Setting>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
enum Setting {
    Whole(i64),
    Choice(&'static str),
}

impl Options {
    /// Reads what was asked for: numbers, or texts as a command line has them. Unknown names and
    /// values out of range are refused.
    pub fn read(
        strategy: &'static Strategy,
        asked: &Map<String, Value>,
    ) -> Result<Self, BadOption> {
        let own = strategy.options.iter();
        let mut settings: BTreeMap<_, _> =
            own.chain(GENERAL).map(|option| (option.name, default_of(option))).collect();
        for (name, value) in asked {
            let bad = |why: String| BadOption { name: name.chars().take(40).collect(), why };
            let option = option_of(strategy, name)
                .ok_or_else(|| bad(format!("{} has no such option", strategy.id)))?;
            let setting = if option.name == "crash_at" {
                read_choice(value, ["never"].iter().chain(strategy.crash_points))
            } else {
                match option.kind {
                    OptionKind::Whole { min, max, .. } => read_whole(value, min, max),
                    OptionKind::Choice(values) => read_choice(value, values.iter()),
                }
            };
            settings.insert(option.name, setting.map_err(bad)?);
        }
        Ok(Self(settings))
    }

    /// The whole number of this name; 0 if the strategy has no such option.
    pub fn whole(&self, name: &str) -> i64 {
        match self.0.get(name) {
            Some(Setting::Whole(value)) => *value,
            _ => 0,
        }
    }

    /// The same, or this if the strategy has no such option.
    pub fn millis_or(&self, name: &str, otherwise: Duration) -> Duration {
        if self.0.contains_key(name) { self.millis(name) } else { otherwise }
    }

    /// The choice of this name; empty if the strategy has no such option.
    pub fn choice(&self, name: &str) -> &'static str {
        match self.0.get(name) {
            Some(Setting::Choice(value)) => value,
            _ => "",
        }
    }

    pub fn millis(&self, name: &str) -> Duration {
        Duration::from_millis(u64::try_from(self.whole(name)).unwrap_or(0))
    }

    pub fn to_json(&self) -> Map<String, Value> {
        match json!(self) {
            Value::Object(options) => options,
            _ => Map::new(),
        }
    }
}

fn default_of(option: &OptionSpec) -> Setting {
    match option.kind {
        OptionKind::Whole { default, .. } => Setting::Whole(default),
        OptionKind::Choice(values) => Setting::Choice(values.first().copied().unwrap_or("")),
    }
}

fn read_whole(value: &Value, min: i64, max: i64) -> Result<Setting, String> {
    let number = match value {
        Value::Number(number) => number.as_i64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    number
        .filter(|number| (min..=max).contains(number))
        .map(Setting::Whole)
        .ok_or_else(|| format!("must be a whole number from {min} to {max}"))
}

fn read_choice<'a>(
    value: &Value,
    values: impl Iterator<Item = &'a &'static str> + Clone,
) -> Result<Setting, String> {
    let wanted = match value {
        Value::String(text) => text.as_str(),
        Value::Bool(true) => "on",
        Value::Bool(false) => "off",
        _ => "",
    };
    let found = values.clone().find(|value| **value == wanted);
    found.map(|value| Setting::Choice(value)).ok_or_else(|| {
        let all: Vec<&str> = values.copied().collect();
        format!("must be one of: {}", all.join(", "))
    })
}
