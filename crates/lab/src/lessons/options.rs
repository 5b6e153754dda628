//! The options of one play.

use crate::{
    options::BadOption,
    strategy::{OptionKind, OptionSpec},
};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, time::Duration};

/// The options of one play: every knob of its lesson has a value.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings(BTreeMap<&'static str, Setting>);

#[derive(Debug, Clone, PartialEq)]
enum Setting {
    Whole(i64),
    Choice(&'static str),
}

impl Settings {
    /// Numbers, or texts as a command line has them. Unknown names and values out of range are
    /// refused.
    pub fn read(specs: &[OptionSpec], asked: &Map<String, Value>) -> Result<Self, BadOption> {
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
