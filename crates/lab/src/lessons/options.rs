//! The knobs of a lesson: each changes one thing, and the play goes as it then goes.

use crate::{
    options::BadOption,
    strategy::{OptionKind, Words},
};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, time::Duration};

/// A knob of a lesson.
#[derive(Debug, Clone, Copy)]
pub struct OptionSpec {
    pub name: &'static str,
    pub teaches: Words,
    pub kind: OptionKind,
}

pub const LEASE_MS: OptionSpec = whole(
    "lease_ms",
    300,
    50,
    3_000,
    Words::new(
        "How long the lock is granted for. Longer than the pause, and the holder is back in time: \
         the failure does not happen.",
        "锁一次给多久（租期）。比停顿更长，持有者就能及时回来：故障不会发生。",
    ),
);

pub const PAUSE_MS: OptionSpec = whole(
    "pause_ms",
    450,
    0,
    5_000,
    Words::new(
        "How long the holder stands still (garbage collection, a slow disk, a suspended machine). \
         Shorter than the lease, and nothing happens.",
        "持有者停顿多久（GC、慢磁盘、虚拟机被挂起）。比租期短，就什么事也没有。",
    ),
);

pub const fn whole(
    name: &'static str,
    default: i64,
    min: i64,
    max: i64,
    teaches: Words,
) -> OptionSpec {
    OptionSpec { name, teaches, kind: OptionKind::Whole { default, min, max } }
}

pub const fn choice(
    name: &'static str,
    values: &'static [&'static str],
    teaches: Words,
) -> OptionSpec {
    OptionSpec { name, teaches, kind: OptionKind::Choice(values) }
}

/// The options of one play: every knob of its lesson has a value.
#[derive(Debug, Clone)]
pub struct Settings(BTreeMap<&'static str, Setting>);

#[derive(Debug, Clone)]
enum Setting {
    Whole(i64),
    Choice(&'static str),
}

impl Settings {
    /// Numbers, or texts as a command line has them. Unknown names and values out of range are
    /// refused.
    pub fn read(
        specs: &'static [OptionSpec],
        asked: &Map<String, Value>,
    ) -> Result<Self, BadOption> {
        let mut settings: BTreeMap<_, _> =
            specs.iter().map(|spec| (spec.name, default_of(spec))).collect();
        for (name, value) in asked {
            let bad = |why: String| BadOption { name: name.chars().take(40).collect(), why };
            let spec = specs
                .iter()
                .find(|spec| spec.name == name)
                .ok_or_else(|| bad("this lesson has no such option".to_owned()))?;
            settings.insert(spec.name, setting(spec, value).map_err(bad)?);
        }
        Ok(Self(settings))
    }

    /// The whole number of this name; 0 if the lesson has no such option.
    pub fn whole(&self, name: &str) -> i64 {
        match self.0.get(name) {
            Some(Setting::Whole(value)) => *value,
            _ => 0,
        }
    }

    pub fn is(&self, name: &str, value: &str) -> bool {
        matches!(self.0.get(name), Some(Setting::Choice(chosen)) if *chosen == value)
    }

    pub fn millis(&self, name: &str) -> Duration {
        Duration::from_millis(u64::try_from(self.whole(name)).unwrap_or(0))
    }
}

fn default_of(spec: &OptionSpec) -> Setting {
    match spec.kind {
        OptionKind::Whole { default, .. } => Setting::Whole(default),
        OptionKind::Choice(values) => Setting::Choice(values.first().copied().unwrap_or("")),
    }
}

fn setting(spec: &OptionSpec, value: &Value) -> Result<Setting, String> {
    match spec.kind {
        OptionKind::Whole { min, max, .. } => {
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
        OptionKind::Choice(values) => {
            let wanted = match value {
                Value::String(text) => text.as_str(),
                Value::Bool(true) => "on",
                Value::Bool(false) => "off",
                _ => "",
            };
            let found = values.iter().find(|value| **value == wanted);
            found
                .map(|value| Setting::Choice(value))
                .ok_or_else(|| format!("must be one of: {}", values.join(", ")))
        }
    }
}
