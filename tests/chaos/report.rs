//! What a run says: a line for each fault while it goes on, a table in the end, and the same as
//! JSON.

use crate::faults::{Fault, Strikes};
use crate::support::checkers::{Evidence, Violation};
use crate::support::stores::{Error, Result};
use crate::{planted::PlantedReport, support::history::Answer, trial::tell};
use serde::Serialize;
use std::{fs, path::Path, process::Command, time::Duration};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Passed,
    Violated,
    /// Too little happened to prove anything, which is a failure too.
    #[default]
    Void,
}

/// One trial.
#[derive(Debug, Clone, Default, Serialize)]
pub struct TrialReport {
    pub fault: String,
    pub verdict: Verdict,
    /// Operations of clients that were sent; all of them are judged.
    pub operations: usize,
    pub accepted: usize,
    /// Sent, and not answered.
    pub unknown: usize,
    /// 503 and 429.
    pub shed: usize,
    pub snapshots: usize,
    pub orders: usize,
    pub strikes: u64,
    pub kills: u64,
    /// From each healing to the first accepted purchase.
    pub recoveries_ms: Vec<f64>,
    /// From the last healing until nothing was under way.
    #[serde(skip)]
    pub at_rest_after: Option<Duration>,
    pub at_rest: String,
    pub violations: Vec<String>,
    pub void: Option<String>,
    pub notes: Vec<String>,
    #[serde(skip)]
    pub took: Duration,
}

impl TrialReport {
    pub fn of(
        fault: Fault,
        evidence: &Evidence,
        violations: &[Violation],
        strikes: &Strikes,
    ) -> Self {
        let history = &evidence.history;
        Self {
            fault: fault.name().to_owned(),
            operations: history.count(|one| one.answer != Answer::NeverSent),
            accepted: history.count(|one| one.answer == Answer::Accepted),
            unknown: history.count(|one| one.answer == Answer::Unknown),
            shed: history
                .count(|one| matches!(one.answer, Answer::Unavailable | Answer::RateLimited)),
            snapshots: evidence.snapshots.len(),
            orders: evidence.rows.len(),
            strikes: strikes.count,
            kills: strikes.kills,
            at_rest: tell(&evidence.settled),
            violations: violations.iter().map(Violation::to_string).collect(),
            notes: strikes.notes.clone(),
            ..Self::default()
        }
    }

    /// A trial that could not be done proves nothing.
    pub fn failed(fault: Fault, error: &Error) -> Self {
        Self {
            fault: fault.name().to_owned(),
            void: Some(format!("the trial could not be done: {error}")),
            ..Self::default()
        }
    }

    /// Only on request: a fault that was not exercised is otherwise no pass.
    pub fn excuse_missing_faketime(&mut self) {
        if self.verdict == Verdict::Void
            && let Some(why) = self.void.take_if(|why| why.contains("libfaketime"))
        {
            self.notes.push(format!("NOT EXERCISED: {why}"));
            self.verdict = Verdict::Passed;
        }
    }

    pub fn line(&self) -> String {
        let recovery = median(&self.recoveries_ms).map_or("-".into(), |ms| format!("{ms:.0} ms"));
        let at_rest = self.at_rest_after.map(|after| format!("{:.1} s", after.as_secs_f64()));
        let at_rest = at_rest.unwrap_or("-".into());
        let verdict = match self.verdict {
            Verdict::Passed => "passed",
            Verdict::Violated => "VIOLATED",
            Verdict::Void => "VOID",
        };
        format!(
            "{:<24}{:>10}{:>10}{:>9}{:>8}{:>7}{:>6}{:>11}{:>8}  {verdict}",
            self.fault,
            self.operations,
            self.accepted,
            self.unknown,
            self.shed,
            self.strikes,
            self.kills,
            recovery,
            at_rest,
        )
    }

    /// What has to be said besides the line.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks: Vec<String> = self.violations.clone();
        let is_told = |note: &&String| note.starts_with("NOT EXERCISED") || note.starts_with(EXITS);
        remarks.extend(self.notes.iter().filter(is_told).cloned());
        remarks.extend(self.void.iter().map(|why| format!("void: {why}")));
        remarks
    }
}

/// How the notes begin that say where processes were ended.
pub const EXITS: &str = "exit at fail points";

pub const HEADINGS: &str = "fault                   operations  accepted  unknown    shed \
                            strikes kills   recovery at rest  verdict";

/// The middle of the values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

/// Where and with what this was run.
#[derive(Debug, Serialize)]
pub struct Machine {
    pub cores: usize,
    pub kernel: String,
    pub redis: String,
    pub postgres: String,
    pub commit: String,
    pub profile: &'static str,
}

impl Machine {
    /// To be called when a run starts: in its hours the working tree may become another.
    pub fn look() -> Self {
        let said = |program: &str, arguments: &[&str]| {
            let output = Command::new(program).args(arguments).output();
            output.map_or(String::new(), |output| {
                String::from_utf8_lossy(&output.stdout).trim().to_owned()
            })
        };
        let mut commit = said("git", &["rev-parse", "--short", "HEAD"]);
        if !said("git", &["status", "--porcelain"]).is_empty() {
            commit += " with changes";
        }
        let is_debug = cfg!(debug_assertions);
        Self {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: said("uname", &["-sr"]),
            redis: said("redis-server", &["--version"]),
            postgres: String::new(), // known when the first one was started
            commit,
            profile: if is_debug { "debug" } else { "release" },
        }
    }
}

/// A measured time against its target.
#[derive(Debug, Clone, Serialize)]
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

/// A whole run.
#[derive(Debug, Serialize)]
pub struct Report {
    pub seed: u64,
    pub arguments: Vec<String>,
    pub machine: Machine,
    pub trials: Vec<TrialReport>,
    pub planted: Vec<PlantedReport>,
    pub measures: Vec<Measure>,
    pub operations: usize,
    pub kills: u64,
    pub violations: usize,
    pub passed: bool,
}

impl Report {
    fn text(&self) -> String {
        let machine = &self.machine;
        let mut lines = vec![
            format!(
                "seed {}, commit {}, {} build, {} cores, {}",
                self.seed, machine.commit, machine.profile, machine.cores, machine.kernel
            ),
            machine.redis.clone(),
            machine.postgres.clone(),
            format!("arguments: {}\n", self.arguments.join(" ")),
        ];
        lines.extend((!self.trials.is_empty()).then(|| HEADINGS.to_owned()));
        for trial in &self.trials {
            lines.push(trial.line());
            lines.extend(trial.remarks().into_iter().map(|remark| format!("    {remark}")));
        }
        lines.extend(self.planted.iter().map(PlantedReport::line));
        lines.extend(self.measures.iter().map(Measure::line));
        let verdict = if self.passed { "passed" } else { "FAILED" };
        lines.push(format!(
            "\n{} operations checked, {} kills, {} violations: {verdict}\n",
            self.operations, self.kills, self.violations
        ));
        lines.join("\n")
    }

    pub fn write(&self, folder: &Path) -> Result {
        let created = fs::create_dir_all(folder);
        created.map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
        fs::write(folder.join("report.txt"), self.text())?;
        Ok(fs::write(folder.join("report.json"), serde_json::to_string_pretty(self)?)?)
    }
}
