//! Pages and sentences in both languages, as templates (`templates/`).

use crate::terminal::{pieces, table, wrapped};
use crate::{strategy::Language, texts};
use minijinja::{Environment, Value, value::Serde};
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

macro_rules! templates {
    ($($name:literal)*) => {
        const SOURCES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../templates/", $name)))),*];
    };
}

templates! {
    "grade.txt" "lesson.txt" "lessons.txt" "lock_buys.txt" "locks.txt" "report.html" "run.txt"
    "sections.txt" "strategies.txt" "strategy.txt" "verdict.txt"
}

static ENVIRONMENTS: LazyLock<[Environment; 2]> =
    LazyLock::new(|| [Language::En, Language::Zh].map(environment));

fn environment(language: Language) -> Environment<'static> {
    let mut environment = Environment::new();
    for (name, source) in SOURCES {
        if let Err(error) = environment.add_template(name, source) {
            tracing::error!(%error, name, "a template is wrong");
        }
    }
    let is_english = language == Language::En;
    environment.add_function("say", move |en: Value, zh: Value| if is_english { en } else { zh });
    environment.add_function("place", |axis: Serde<Axis>, value: f64| axis.0.place(value));
    environment.add_filter("wrapped", |text: String, room: usize| wrapped(&text, room));
    environment.add_filter("pieces", |line: String, room: usize| pieces(&line, room));
    // Lines with `¦` between their cells; `sides` has an `l` for each column to the left.
    environment.add_filter("table", |lines: String, sides: String| {
        let cells = |line: &str| line.split('¦').map(|cell| cell.trim().to_owned()).collect();
        let lines = lines.lines().filter(|line| !line.trim().is_empty());
        let rows: Vec<Vec<String>> = lines.map(cells).collect();
        let left: Vec<usize> = sides.match_indices('l').map(|(column, _)| column).collect();
        table(&rows, &left)
    });
    // What a strategy notes has words in both languages.
    environment.add_filter("noted", move |note: String| {
        let words = texts::of("verdict", language).and_then(|text| text.item("Notes", &note));
        words.map_or(note, str::to_owned)
    });
    environment.add_filter("right", |value: Value, width: usize| format!("{value:>width$}"));
    environment.add_filter("whole", |value: f64| number(value, 0));
    environment.add_filter("two", |value: f64| number(value, 2));
    environment.add_filter("short", |value: f64| {
        number(value, usize::from(value.fract() != 0.0 && value < 100.0))
    });
    environment.add_filter("ms", |value: f64| {
        number(value, if value < 10.0 { 2 } else { usize::from(value < 100.0) })
    });
    environment
}

/// The text of the template of this name.
pub fn render(
    name: &str,
    language: Language,
    context: &impl Serialize,
) -> Result<String, minijinja::Error> {
    ENVIRONMENTS[language as usize].get_template(name)?.render(Serde(context))
}

/// An axis on which every step is ten times the one before; from and to whole powers of ten.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Axis {
    first: i32,
    last: i32,
    ticks: Vec<Tick>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Tick {
    label: String,
    /// From 0 to 1.
    at: f64,
}

/// Smaller values are drawn at the start of an axis.
const LEAST: f64 = 0.01;

impl Axis {
    /// Zeros are left out.
    pub fn around(values: impl Iterator<Item = f64>) -> Self {
        let (mut least, mut most) = (f64::INFINITY, LEAST);
        for value in values.filter(|value| *value > 0.0) {
            least = least.min(value.max(LEAST));
            most = most.max(value);
        }
        let first = if least.is_finite() { least.log10().floor() as i32 } else { 0 };
        let last = (most.log10().ceil() as i32).max(first + 1);
        let axis = Self { first, last, ticks: Vec::new() };
        let tick = |decade: i32| {
            let value = 10_f64.powi(decade);
            let label = match decade {
                ..0 => number(value, decade.unsigned_abs() as usize),
                0..3 => number(value, 0),
                3..6 => format!("{}k", value / 1e3),
                _ => format!("{}M", value / 1e6),
            };
            Tick { label, at: axis.place(value) }
        };
        let ticks = (first..=last).map(tick).collect();
        Self { ticks, ..axis }
    }

    fn place(&self, value: f64) -> f64 {
        let above = value.max(LEAST).log10() - f64::from(self.first);
        (above / f64::from((self.last - self.first).max(1))).clamp(0.0, 1.0)
    }
}

/// A number with its thousands set apart.
fn number(value: f64, digits: usize) -> String {
    let text = format!("{:.digits$}", value.abs());
    let (whole, rest) = text.split_once('.').map_or((&*text, ""), |(whole, rest)| (whole, rest));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let sign = if value < 0.0 { "−" } else { "" };
    let point = if rest.is_empty() { "" } else { "." };
    format!("{sign}{grouped}{point}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_are_written_as_one_reads_them() {
        assert_eq!(number(0.0, 0), "0");
        assert_eq!(number(999.0, 0), "999");
        assert_eq!(number(1_234_567.0, 0), "1,234,567");
        assert_eq!(number(-1_234.56, 1), "−1,234.6");
        let ms = |value: f64| {
            ENVIRONMENTS[0]
                .render_str("{{ value|ms }}", Serde(json!({"value": value})))
                .expect("a text")
        };
        assert_eq!([0.42, 12.34, 1_234.5].map(ms), ["0.42", "12.3", "1,234"]);
    }

    #[test]
    fn every_template_is_right() {
        for environment in &*ENVIRONMENTS {
            assert_eq!(environment.templates().count(), SOURCES.len());
        }
    }

    #[test]
    fn an_axis_goes_from_power_to_power_of_ten() {
        let axis = Axis::around([0.0, 30.0, 2_000.0].into_iter());
        assert_eq!((axis.first, axis.last), (1, 4));
        assert_eq!(
            [1.0, 10.0, 10_000.0, 99_999.0].map(|value| axis.place(value)),
            [0.0, 0.0, 1.0, 1.0]
        );
        let labels: Vec<String> = axis.ticks.into_iter().map(|tick| tick.label).collect();
        assert_eq!(labels, ["10", "100", "1k", "10k"]);
        assert_eq!(Axis::around([0.0].into_iter()).ticks.len(), 2);
    }
}
