//! What a measurement came to: a table for people, and the same as JSON.

use crate::Options;
use serde::Serialize;
use serde_json::Value;
use std::{collections::BTreeMap, fs, process::Command};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// Where, what and how was measured.
#[derive(Serialize)]
pub struct Machine {
    cores: usize,
    cpu: String,
    kernel: String,
    commit: String,
    profile: String,
    at: String,
    /// Of the last minute, when the measurement began: other work is in the figures.
    load_average: String,
    rounds: usize,
    connections: u16,
    server_env: BTreeMap<String, String>,
}

impl Machine {
    pub fn look(options: &Options) -> Self {
        let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
        let cpus = read("/proc/cpuinfo");
        let model = cpus.lines().find(|line| line.starts_with("model name"));
        let model = model.and_then(|line| line.split_once(": "));
        let repository = env!("CARGO_MANIFEST_DIR");
        let git = |arguments: &[&str]| output("git", &[&["-C", repository], arguments].concat());
        let mut commit = git(&["rev-parse", "--short=12", "HEAD"]);
        if !git(&["status", "--porcelain"]).is_empty() {
            commit += " with changes";
        }
        let profile = match cfg!(debug_assertions) {
            true => "dev: the figures mean nothing",
            false => "release",
        };
        let load = read("/proc/loadavg");
        Self {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            cpu: model.map_or("unknown", |(_, name)| name.trim()).to_owned(),
            kernel: output("uname", &["-sr"]),
            commit,
            profile: profile.to_owned(),
            at: OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default(),
            load_average: load.split(' ').next().unwrap_or_default().to_owned(),
            rounds: options.rounds(),
            connections: options.connections,
            server_env: options.server_env.iter().cloned().collect(),
        }
    }
}

/// What a command prints, if it succeeds.
fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().ok();
    let output = output.filter(|output| output.status.success());
    output.map_or(String::new(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A bound that was asked for, and what was reached.
#[derive(Serialize)]
pub struct Goal {
    what: String,
    bound: String,
    reached: f64,
    met: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    pub fn is_met(self, reached: f64) -> bool {
        match self {
            Self::AtLeast(least) => reached >= least,
            Self::AtMost(most) => reached <= most,
        }
    }
}

/// One measurement.
#[derive(Default, Serialize)]
pub struct Section {
    /// As the subcommand is called.
    pub name: String,
    pub title: String,
    headings: Vec<String>,
    rows: Vec<Vec<String>>,
    /// How it was measured, and what that does to the figures.
    notes: Vec<String>,
    goals: Vec<Goal>,
    /// What was answered or stored wrongly.
    pub failures: Vec<String>,
    /// Every figure, also those that the table leaves out.
    pub figures: Value,
    pub seconds: f64,
}

impl Section {
    pub fn new(name: &str, title: impl Into<String>, headings: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            title: title.into(),
            headings: headings.iter().map(|heading| (*heading).to_owned()).collect(),
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
        let (what, met) = (what.into(), bound.is_met(reached));
        let bound = match bound {
            Bound::AtLeast(least) => format!("≥ {least}"),
            Bound::AtMost(most) => format!("≤ {most}"),
        };
        self.goals.push(Goal { what, bound, reached, met });
    }

    /// As Markdown, whose tables are aligned, so that people can read it too.
    pub fn text(&self) -> String {
        let mut text = format!("\n### {} ({:.0} s)\n\n", self.title, self.seconds);
        text += &table(&self.headings, &self.rows);
        for note in &self.notes {
            text += &format!("\n{note}\n");
        }
        if !self.goals.is_empty() {
            let headings = ["target", "bound", "reached", ""].map(str::to_owned);
            let row = |goal: &Goal| {
                let verdict = if goal.met { "met" } else { "**not met**" };
                let reached = format!("{:.3}", goal.reached);
                vec![goal.what.clone(), goal.bound.clone(), reached, verdict.to_owned()]
            };
            let rows: Vec<_> = self.goals.iter().map(row).collect();
            text += &format!("\n{}", table(&headings, &rows));
        }
        for failure in &self.failures {
            text += &format!("\n**Wrong:** {failure}\n");
        }
        if self.failures.is_empty() {
            text += "\nEvery answer was right, and so were the rows.\n";
        }
        text
    }
}

fn table(headings: &[String], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| &row[column]).chain([&headings[column]]);
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let line = |row: &[String]| {
        let cells = row.iter().enumerate();
        let cells = cells.map(|(column, cell)| format!("{cell:>0$}", width(column)));
        format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
    };
    let rule: Vec<String> = (0..headings.len()).map(|column| "-".repeat(width(column))).collect();
    [headings, &rule[..]].into_iter().chain(rows.iter().map(|row| &row[..])).map(line).collect()
}

/// What is written to a file.
#[derive(Serialize)]
pub struct Record {
    pub machine: Machine,
    pub section: Section,
}

/// `(least, median, most)`.
pub fn spread(values: impl Iterator<Item = f64>) -> Option<(f64, f64, f64)> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let (least, most) = (*values.first()?, *values.last()?);
    let middle = values.len() / 2;
    let other = middle - usize::from(values.len().is_multiple_of(2));
    Some((least, (values[middle] + values[other]) / 2.0, most))
}

pub fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    spread(values).map(|(_, median, _)| median)
}

/// A figure of a table; "" if there is none.
pub fn figure(value: Option<f64>, decimals: usize) -> String {
    value.map_or(String::new(), |value| format!("{value:.decimals$}"))
}

/// `1234567` as `1,234,567`.
pub fn thousands(value: f64) -> String {
    indicatif::HumanCount(value.round() as u64).to_string()
}
