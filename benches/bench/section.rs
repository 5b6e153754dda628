//! What a measurement came to: a table for people, and the same as JSON, as it was printed, so that
//! `bench markdown` can print it again.

use serde_json::{Value, json};
use std::fmt::Write;

/// A bound that was asked for, and what was reached.
pub struct Goal {
    pub what: String,
    pub bound: Bound,
    pub reached: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Goal {
    pub fn new(what: impl Into<String>, bound: Bound, reached: f64) -> Self {
        Self {
            what: what.into(),
            bound,
            reached,
        }
    }

    pub fn is_met(&self) -> bool {
        match self.bound {
            Bound::AtLeast(least) => self.reached >= least,
            Bound::AtMost(most) => self.reached <= most,
        }
    }

    fn bound(&self) -> String {
        match self.bound {
            Bound::AtLeast(least) => format!("≥ {least}"),
            Bound::AtMost(most) => format!("≤ {most}"),
        }
    }

    fn verdict(&self) -> &'static str {
        if self.is_met() { "met" } else { "NOT met" }
    }
}

/// One measurement.
#[derive(Default)]
pub struct Section {
    /// As the subcommand is called.
    pub name: &'static str,
    pub title: String,
    /// How it was measured, and what that does to the figures.
    pub notes: Vec<String>,
    pub headings: Vec<String>,
    pub rows: Vec<Vec<String>>,
    pub goals: Vec<Goal>,
    /// What was answered or stored wrongly.
    pub failures: Vec<String>,
    /// Every figure, also those that the table leaves out.
    pub figures: Value,
    pub seconds: f64,
}

impl Section {
    pub fn new(name: &'static str, title: &str, headings: &[&str]) -> Self {
        Self {
            name,
            title: title.to_owned(),
            headings: headings
                .iter()
                .map(|heading| (*heading).to_owned())
                .collect(),
            ..Self::default()
        }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    pub fn goal(&mut self, what: impl Into<String>, bound: Bound, reached: f64) {
        self.goals.push(Goal::new(what, bound, reached));
    }

    pub fn text(&self) -> String {
        let mut text = format!("\n{} ({:.0} s)\n\n", self.title, self.seconds);
        let mut rows = vec![self.headings.clone()];
        rows.extend(self.rows.iter().cloned());
        write_aligned(&mut text, &rows);
        if !self.notes.is_empty() {
            text.push('\n');
        }
        for note in &self.notes {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{note}");
        }
        text.push('\n');
        for goal in &self.goals {
            let (what, bound, verdict) = (&goal.what, goal.bound(), goal.verdict());
            let _ = writeln!(
                text,
                "target: {what} {bound}: {verdict} ({:.3})",
                goal.reached
            );
        }
        for failure in &self.failures {
            let _ = writeln!(text, "WRONG: {failure}");
        }
        if self.failures.is_empty() {
            text.push_str("every answer was right, and so were the rows\n");
        }
        text
    }

    pub fn json(&self) -> Value {
        let goals: Vec<Value> = self
            .goals
            .iter()
            .map(|goal| {
                json!({
                    "what": goal.what,
                    "bound": goal.bound(),
                    "reached": goal.reached,
                    "met": goal.is_met(),
                })
            })
            .collect();
        json!({
            "name": self.name,
            "title": self.title,
            "seconds": self.seconds,
            "table": {"headings": self.headings, "rows": self.rows},
            "notes": self.notes,
            "targets": goals,
            "failures": self.failures,
            "figures": self.figures,
        })
    }
}

/// A record of a section as Markdown.
pub fn markdown(record: &Value) -> String {
    let section = &record["section"];
    let texts = |value: &Value| -> Vec<String> {
        let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        list.iter().map(text).collect()
    };
    let mut text = format!("### {}\n\n", section["title"].as_str().unwrap_or_default());
    let headings = texts(&section["table"]["headings"]);
    if !headings.is_empty() {
        let _ = writeln!(text, "| {} |", headings.join(" | "));
        let _ = writeln!(text, "|{}", "---|".repeat(headings.len()));
    }
    let rows = section["table"]["rows"].as_array();
    for row in rows.map(Vec::as_slice).unwrap_or_default() {
        let _ = writeln!(text, "| {} |", texts(row).join(" | "));
    }
    for note in texts(&section["notes"]) {
        let _ = write!(text, "\n{note}\n");
    }
    let goals = section["targets"].as_array();
    let goals = goals.map(Vec::as_slice).unwrap_or_default();
    if !goals.is_empty() {
        text.push_str("\n| target | bound | reached | |\n|---|---|---|---|\n");
    }
    for goal in goals {
        let verdict = if goal["met"] == true {
            "met"
        } else {
            "**not met**"
        };
        let _ = writeln!(
            text,
            "| {} | {} | {:.3} | {verdict} |",
            goal["what"].as_str().unwrap_or_default(),
            goal["bound"].as_str().unwrap_or_default(),
            goal["reached"].as_f64().unwrap_or(f64::NAN),
        );
    }
    for failure in texts(&section["failures"]) {
        let _ = write!(text, "\n**Wrong:** {failure}\n");
    }
    let _ = write!(
        text,
        "\nCommit {}, {}; {} rounds, {} connections; load of the machine when it began: {}.\n",
        record["commit"].as_str().unwrap_or("unknown"),
        record["at"].as_str().unwrap_or("at an unknown time"),
        record["settings"]["rounds"],
        record["settings"]["connections"],
        record["machine"]["load_average"],
    );
    text
}

pub fn write_aligned(text: &mut String, rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let _ = if column == 0 {
                write!(text, "{cell:<width$}")
            } else {
                write!(text, "  {cell:>width$}")
            };
        }
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
}

/// `(least, median, most)`.
pub fn spread(values: impl Iterator<Item = f64>) -> Option<(f64, f64, f64)> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let (least, most) = (*values.first()?, *values.last()?);
    let middle = values.len() / 2;
    let median = if values.len() % 2 == 1 {
        values[middle]
    } else {
        (values[middle - 1] + values[middle]) / 2.0
    };
    Some((least, median, most))
}

pub fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    spread(values).map(|(_, median, _)| median)
}

/// `median (least–most)`.
pub fn spread_text(values: impl Iterator<Item = f64>, decimals: usize) -> String {
    spread(values).map_or(String::new(), |(least, median, most)| {
        format!("{median:.decimals$} ({least:.decimals$}–{most:.decimals$})")
    })
}

/// `1234567` as `1,234,567`.
pub fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
