//! `{name}` in the paths, headers and bodies of an adapter.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use std::collections::BTreeMap;

pub type Variables = BTreeMap<String, Value>;

pub enum Part<'a> {
    Text(&'a str),
    Name(&'a str),
}

/// A brace that does not enclose a name stands for itself, so JSON may be written as text.
pub fn parts(template: &str) -> Vec<Part<'_>> {
    let is_name = |text: &str| {
        let may = |letter: char| letter.is_ascii_alphanumeric() || "_:".contains(letter);
        !text.is_empty() && text.chars().all(may)
    };
    let (mut parts, mut rest) = (Vec::new(), template);
    while let Some(open) = rest.find('{') {
        let inside = rest[open + 1..].split_once('}').map(|(name, _)| name);
        let name = inside.filter(|name| is_name(name));
        parts.push(Part::Text(&rest[..open + usize::from(name.is_none())]));
        parts.extend(name.map(Part::Name));
        rest = &rest[open + 1 + name.map_or(0, |name| name.len() + 1)..];
    }
    parts.push(Part::Text(rest));
    parts
}

/// The variables that one request sees; the last map that has a name gives its value.
#[derive(Clone, Copy)]
pub struct Scope<'a>(pub &'a [&'a Variables]);

impl Scope<'_> {
    fn value(&self, name: &str) -> Option<&Value> {
        self.0.iter().rev().find_map(|variables| variables.get(name))
    }

    pub fn text(&self, template: &str) -> String {
        self.with(template, str::to_owned)
    }

    pub fn path(&self, template: &str) -> String {
        self.with(template, |value| utf8_percent_encode(value, NON_ALPHANUMERIC).to_string())
    }

    fn with(&self, template: &str, encode: impl Fn(&str) -> String) -> String {
        let part = |part| match part {
            Part::Text(text) => text.to_owned(),
            Part::Name(name) => encode(&self.value(name).and_then(scalar).unwrap_or_default()),
        };
        parts(template).into_iter().map(part).collect()
    }

    /// A string that is one name and nothing else becomes its value, with its type.
    pub fn json(&self, template: &Value) -> Value {
        match template {
            Value::String(text) => match parts(text)[..] {
                [Part::Text(""), Part::Name(name), Part::Text("")] => {
                    self.value(name).cloned().unwrap_or_default()
                }
                _ => Value::String(self.text(text)),
            },
            Value::Array(items) => items.iter().map(|item| self.json(item)).collect(),
            Value::Object(members) => {
                let filled = members.iter().map(|(name, value)| (name.clone(), self.json(value)));
                Value::Object(filled.collect())
            }
            other => other.clone(),
        }
    }
}

/// As much of it as an error shows.
pub fn short(text: &str) -> String {
    text.chars().take(200).collect()
}

/// A text, number or truth value as text.
pub fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        _ => None,
    }
}
