//! What a run says: a line for each fault, and what was wrong with it.

use crate::faults::{Fault, Strikes, points::EXIT};
use crate::support::checkers::{self, Evidence, Violation};
use crate::support::stores::Result;
use crate::support::{history::Answer, prelude::*};

#[derive(Debug, Default)]
pub struct TrialReport {
    pub fault: String,
    pub operations: usize,
    pub accepted: usize,
    pub unknown: usize,
    pub shed: usize,
    pub strikes: Strikes,
    pub recoveries_ms: Vec<f64>,
    pub to_rest: Option<Duration>,
    pub violations: Vec<Violation>,
    pub void: Option<String>,
}

impl TrialReport {
    pub async fn of(fault: Fault, evidence: Evidence, strikes: Strikes) -> Result<Self> {
        let judging = tokio::task::spawn_blocking(move || (checkers::check(&evidence), evidence));
        let (violations, Evidence { history, settled, .. }) = judging.await?;
        Ok(Self {
            fault: fault.name(),
            operations: history.count(|one| one.answer != Answer::NeverSent),
            accepted: history.count(|one| one.answer == Answer::Accepted),
            unknown: history.count(|one| matches!(one.answer, Answer::Unknown | Answer::HungUp)),
            shed: history
                .count(|one| matches!(one.answer, Answer::Unavailable | Answer::RateLimited)),
            strikes,
            to_rest: settled.after,
            violations,
            ..Self::default()
        })
    }

    pub fn passed(&self) -> bool {
        self.violations.is_empty() && self.void.is_none()
    }

    pub fn line(&self) -> String {
        let recovery = median(&self.recoveries_ms).map_or("-".into(), |ms| format!("{ms:.0} ms"));
        let verdict = match (self.violations.as_slice(), &self.void) {
            ([], None) => "Passed",
            ([], Some(_)) => "Void",
            _ => "Violated",
        };
        let at_rest = |after: Duration| format!("{:.1} s", after.as_secs_f64());
        let at_rest = self.to_rest.map_or("-".into(), at_rest);
        let Self { fault, operations, accepted, unknown, shed, .. } = self;
        let Strikes { count, kills, .. } = &self.strikes;
        format!(
            "{fault:<24}{operations:>10}{accepted:>10}{unknown:>9}{shed:>8}{count:>7}{kills:>6}\
             {recovery:>11}{at_rest:>8}  {verdict}"
        )
    }

    pub fn remarks(&self) -> Vec<String> {
        let mut remarks: Vec<String> = self.violations.iter().map(Violation::to_string).collect();
        let is_told =
            |note: &&String| !self.passed() || note.starts_with(EXIT) || note.contains(" checked");
        remarks.extend(self.strikes.notes.iter().filter(is_told).cloned());
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

pub fn summary(trials: &[TrialReport], passed: bool) -> String {
    let operations: usize = trials.iter().map(|trial| trial.operations).sum();
    let kills: u64 = trials.iter().map(|trial| trial.strikes.kills).sum();
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
