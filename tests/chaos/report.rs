//! What a run says: a line for each fault, and what was wrong with it.

use crate::faults::{Fault, Strikes, points::EXIT};
use crate::support::checkers::{Evidence, Violation};
use crate::support::stores::{Error, Result};
use crate::support::{history::Answer, prelude::*};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    Violated,
    #[default]
    Void,
}

#[derive(Debug, Clone, Default)]
pub struct TrialReport {
    pub fault: String,
    pub verdict: Verdict,
    pub operations: usize,
    pub accepted: usize,
    pub unknown: usize,
    pub shed: usize,
    pub strikes: u64,
    pub kills: u64,
    pub recoveries_ms: Vec<f64>,
    pub seconds_to_rest: Option<f64>,
    pub violations: Vec<String>,
    pub void: Option<String>,
    pub notes: Vec<String>,
    pub took: Duration,
}

impl TrialReport {
    pub fn of(fault: Fault, evidence: &Evidence, found: &[Violation], strikes: &Strikes) -> Self {
        let history = &evidence.history;
        Self {
            fault: fault.name().to_owned(),
            operations: history.count(|one| one.answer != Answer::NeverSent),
            accepted: history.count(|one| one.answer == Answer::Accepted),
            unknown: history.count(|one| matches!(one.answer, Answer::Unknown | Answer::HungUp)),
            shed: history
                .count(|one| matches!(one.answer, Answer::Unavailable | Answer::RateLimited)),
            strikes: strikes.count,
            kills: strikes.kills,
            violations: found.iter().map(Violation::to_string).collect(),
            notes: strikes.notes.clone(),
            ..Self::default()
        }
    }

    pub fn failed(fault: Fault, error: &Error) -> Self {
        Self {
            fault: fault.name().to_owned(),
            void: Some(format!("the trial could not be done: {error}")),
            ..Self::default()
        }
    }

    pub fn judge(&mut self, violations: &[Violation]) {
        self.verdict = match (violations.is_empty(), &self.void) {
            (false, _) => Verdict::Violated,
            (true, Some(_)) => Verdict::Void,
            (true, None) => Verdict::Passed,
        };
    }

    pub fn line(&self) -> String {
        let recovery = median(&self.recoveries_ms).map_or("-".into(), |ms| format!("{ms:.0} ms"));
        let at_rest = self.seconds_to_rest.map_or("-".into(), |after| format!("{after:.1} s"));
        format!(
            "{:<24}{:>10}{:>10}{:>9}{:>8}{:>7}{:>6}{:>11}{:>8}  {:?}",
            self.fault,
            self.operations,
            self.accepted,
            self.unknown,
            self.shed,
            self.strikes,
            self.kills,
            recovery,
            at_rest,
            self.verdict,
        )
    }

    pub fn remarks(&self) -> Vec<String> {
        let mut remarks: Vec<String> = self.violations.clone();
        let is_told = |note: &&String| {
            self.verdict != Verdict::Passed || note.starts_with(EXIT) || note.contains(" checked")
        };
        remarks.extend(self.notes.iter().filter(is_told).cloned());
        remarks.extend(self.void.iter().map(|why| format!("void: {why}")));
        remarks
    }
}

pub const HEADINGS: &str = "fault                   operations  accepted  unknown    shed \
                            strikes kills   recovery at rest  verdict";

pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

/// To be asked for when a run starts: in its hours the working tree may become another.
pub fn machine() -> String {
    let said = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output();
        let output = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        output.unwrap_or_default().trim().to_owned()
    };
    let commit = said("git", &["rev-parse", "--short", "HEAD"]);
    let is_changed = !said("git", &["status", "--porcelain"]).is_empty();
    let changes = if is_changed { " with changes" } else { "" };
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let [kernel, redis] = [said("uname", &["-sr"]), said("redis-server", &["--version"])];
    format!("commit {commit}{changes}, {profile} build, {cores} cores, {kernel}\n{redis}")
}

#[derive(Debug, Clone)]
pub struct Measure {
    pub what: String,
    pub measured: String,
    pub target: String,
    pub held: bool,
}

impl Measure {
    pub fn line(&self) -> String {
        let Self { what, measured, target, held } = self;
        let verdict = if *held { "held" } else { "MISSED" };
        format!("{what:<84}{measured:>10}  target {target:<12}{verdict}")
    }
}

pub fn summary(trials: &[TrialReport], passed: bool) -> String {
    let operations: usize = trials.iter().map(|trial| trial.operations).sum();
    let kills: u64 = trials.iter().map(|trial| trial.kills).sum();
    let violations: usize = trials.iter().map(|trial| trial.violations.len()).sum();
    let verdict = if passed { "passed" } else { "FAILED" };
    format!("{operations} operations checked, {kills} kills, {violations} violations: {verdict}")
}

static SAID: Mutex<String> = Mutex::new(String::new());

pub fn say(line: &str) {
    eprintln!("{line}");
    *locked(&SAID) += &format!("{line}\n");
}

pub fn write(folder: &Path) -> Result {
    let created = fs::create_dir_all(folder);
    created.map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
    Ok(fs::write(folder.join("report.txt"), locked(&SAID).as_bytes())?)
}
