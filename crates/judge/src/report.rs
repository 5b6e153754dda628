//! The findings, in words, as JSON and as one page.

use crate::adapter::is_misread;
use crate::history::{Counts, History, Meaning, Phase, Request, Row, name_of};
use crate::verdict::{self, Code, Finding};
use minijinja::Environment;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Held,
    Broken,
    /// Could not be judged, for reasons that the report gives.
    Undecided,
}

/// Reasons against a verdict of *held*.
#[derive(Debug, Default)]
pub struct Doubts {
    pub reasons: Vec<(Code, String)>,
    /// Remarks that leave the verdict as it is.
    pub notes: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Latency {
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub verdict: Verdict,
    pub server: String,
    pub stock: usize,
    pub buyers: usize,
    pub requests: usize,
    pub answers: Counts,
    pub stored: Option<usize>,
    pub remaining: Option<i64>,
    pub seconds: f64,
    pub rate_per_s: f64,
    pub latency_ms: Latency,
    pub findings: Vec<Finding>,
    pub doubts: Vec<String>,
    pub doubt_codes: Vec<Code>,
    pub notes: Vec<String>,
}

impl Doubts {
    /// Of a history that somebody else has recorded, too.
    pub fn look_at(&mut self, history: &History) {
        if !history.requests.iter().any(|request| request.means.is_an_answer()) {
            let first = history.requests.first().map(answer_of);
            let first = first.unwrap_or_else(|| "nothing was asked".to_owned());
            let why = format!("no answer means anything to the adapter; the first: {first}");
            self.reasons.push((Code::Adapter, why));
            return;
        }
        let odd = |request: &&Request| request.means == Meaning::Unexpected;
        let mut odd: Vec<&Request> = history.requests.iter().filter(odd).collect();
        let mut balance = HashMap::<Option<u16>, i64>::new();
        for request in &history.requests {
            let more = if request.means.is_an_answer() { 1 } else { -1 };
            *balance.entry(request.status).or_default() += more;
        }
        let is_misread = |request: &Request| {
            let is_known = balance.get(&request.status).is_some_and(|balance| *balance >= 0);
            request.error.as_ref().is_some_and(|error| is_misread(error, is_known))
        };
        // First those that the adapter has misread.
        odd.sort_by_key(|request| !is_misread(request));
        let said = odd.first().map(|first| {
            let count = odd.len();
            format!("{count} answers mean nothing to the adapter; the first: {}", answer_of(first))
        });
        let is_misread = odd.first().is_some_and(|first| is_misread(first));
        match is_misread {
            true => self.reasons.extend(said.map(|said| (Code::Adapter, said))),
            false => self.notes.extend(said),
        }
        let stored = history.stored.as_ref().map_or(0, |stored| stored.orders.len());
        if stored > 0 && !history.requests.iter().any(|request| request.means == Meaning::Sold) {
            let why = format!("{stored} orders are stored, and no answer means sold");
            self.reasons.push((Code::Adapter, why));
        }
        self.reasons.extend(verdict::misfit(history));
        self.notes.extend(verdict::oddities(history));
        let (left, unserved) = (verdict::left(history), verdict::unserved(history));
        let is_last = |request: &&Request| request.phase == Phase::LastCall;
        let mut heard = Counts::default();
        history.requests.iter().filter(is_last).for_each(|request| heard.add(request.means));
        let is_refused = heard.of(Meaning::SoldOut) + heard.of(Meaning::AlreadyOrdered) > 0;
        if history.stored.is_some() && left > 0 && !unserved.is_empty() && !is_refused {
            let why = format!(
                "{left} units are left and {} buyers have none; the last to ask heard: {}",
                unserved.len(),
                in_words(&heard)
            );
            self.reasons.push((Code::PutOff, why));
        }
        if unserved.is_empty() {
            self.notes.push("nobody was refused: more buyers than units show more".to_owned());
        }
    }
}

impl Report {
    /// The verdict on a history that is complete.
    pub fn on(history: &History) -> Self {
        let mut doubts = Doubts::default();
        if history.stored.is_none() {
            let why = "the history does not say what is stored".to_owned();
            doubts.reasons.push((Code::NotRead, why));
        }
        doubts.look_at(history);
        Self::of(history, doubts)
    }

    pub(crate) fn of(history: &History, doubts: Doubts) -> Self {
        let requests = &history.requests;
        let findings = verdict::findings(history);
        let verdict = match (findings.is_empty(), doubts.reasons.is_empty()) {
            (false, _) => Verdict::Broken,
            (true, true) => Verdict::Held,
            (true, false) => Verdict::Undecided,
        };
        let (doubt_codes, reasons) = doubts.reasons.into_iter().unzip();
        let mut answers = Counts::default();
        requests.iter().for_each(|request| answers.add(request.means));
        let users: HashSet<&str> = requests.iter().map(|request| request.user.as_str()).collect();
        let storm = || requests.iter().filter(|request| request.phase == Phase::Storm);
        let first = storm().map(|request| request.start_us).min().unwrap_or(0);
        let last = storm().map(|request| request.end_us).max().unwrap_or(first);
        let seconds = last.saturating_sub(first) as f64 / 1e6;
        Self {
            verdict,
            server: history.run.server.clone(),
            stock: history.run.stock,
            buyers: users.len(),
            requests: requests.len(),
            answers,
            stored: history.stored.as_ref().map(|stored| stored.orders.len()),
            remaining: history.stored.as_ref().and_then(|stored| stored.remaining),
            seconds,
            rate_per_s: if seconds > 0.0 { storm().count() as f64 / seconds } else { 0.0 },
            latency_ms: latency(requests),
            findings,
            doubts: reasons,
            doubt_codes,
            notes: doubts.notes,
        }
    }

    /// For a terminal; its last line is the verdict.
    pub fn table(&self) -> String {
        let Latency { p50, p99, max, .. } = self.latency_ms;
        let mut lines = vec![
            format!("server    {}", self.server),
            format!("stock     {} units, {} buyers", self.stock, self.buyers),
            format!(
                "requests  {}, the storm in {:.2} s ({:.0}/s), p50 {p50:.1} ms, p99 {p99:.1} ms, \
                 slowest {max:.1} ms",
                self.requests, self.seconds, self.rate_per_s
            ),
            format!("answers   {}", in_words(&self.answers)),
        ];
        if let Some(stored) = self.stored {
            let remaining = self.remaining.map(|units| format!(", {units} units remaining"));
            lines.push(format!("stored    {stored} orders{}", remaining.unwrap_or_default()));
        }
        // Findings mean little where the adapter misreads the server.
        lines.extend(self.doubts.iter().map(|doubt| format!("doubt     {doubt}")));
        for finding in &self.findings {
            lines.push(String::new());
            lines.push(format!("{}: {}", name_of(finding.kind), finding.what));
            lines.extend(finding.requests.iter().take(MOST_LINES).map(line_of));
            let row = |row: &Row| format!("  stored: order {} of {}", row.order_id, row.user);
            lines.extend(finding.rows.iter().take(MOST_LINES).map(row));
            if finding.requests.len().max(finding.rows.len()) > MOST_LINES {
                lines.push("  … more with --json or --report".to_owned());
            }
        }
        lines.push(String::new());
        lines.extend(self.notes.iter().map(|note| format!("note: {note}")));
        lines.push(format!("verdict: {}", self.verdict_in_words()));
        lines.iter().map(|line| plain(line) + "\n").collect()
    }

    pub fn verdict_in_words(&self) -> String {
        match self.verdict {
            Verdict::Held => "held".to_owned(),
            Verdict::Broken => {
                let kinds = self.findings.iter().map(|finding| name_of(finding.kind));
                let kinds: Vec<String> = kinds.collect();
                format!("BROKEN ({})", kinds.join(", "))
            }
            Verdict::Undecided => format!("undecided ({})", self.doubts.join("; ")),
        }
    }

    /// One page that needs nothing else.
    pub fn html(&self) -> Result<String, minijinja::Error> {
        let mut environment = Environment::new();
        environment.add_template("report.html", include_str!("../templates/report.html"))?;
        let findings: Vec<Value> = self.findings.iter().map(drawn).collect();
        // The time line is that of the first violation that requests show.
        let starts = self.findings.iter().enumerate().filter_map(|(index, finding)| {
            Some((finding.requests.iter().map(|request| request.start_us).min()?, index))
        });
        let with_time_line = starts.min().map(|(_, index)| index);
        environment.get_template("report.html")?.render(minijinja::value::Serde(json!({
            "report": self,
            "answers": in_words(&self.answers),
            "verdict": self.verdict_in_words(),
            "findings": findings,
            "with_time_line": with_time_line,
        })))
    }
}

/// A server's text must neither steer a terminal nor begin a line.
pub fn plain(text: &str) -> String {
    let escaped = |letter: char| match letter.is_control() {
        true => letter.escape_default().to_string(),
        false => letter.to_string(),
    };
    text.chars().map(escaped).collect()
}

fn in_words(counts: &Counts) -> String {
    let words = counts.0.iter().map(|(means, count)| format!("{} {count}", name_of(means)));
    let words: Vec<String> = words.collect();
    if words.is_empty() { "nothing".to_owned() } else { words.join(", ") }
}

const MOST_LINES: usize = 8;

/// The answer to a request, in words.
pub fn answer_of(request: &Request) -> String {
    let mut words = request.status.map(|status| format!("{status} ")).unwrap_or_default();
    words += &name_of(request.means);
    for more in [&request.order_id, &request.error].into_iter().flatten() {
        words = format!("{words} {more}");
    }
    words
}

fn line_of(request: &Request) -> String {
    let phase = match request.phase {
        Phase::Storm => "",
        Phase::Again => ", asked again",
        Phase::LastCall => ", asked last and alone",
    };
    format!(
        "  {:>9.2} ms to {:>9.2} ms  {:>7}  {}  (key {}{phase})",
        request.start_us as f64 / 1e3,
        request.end_us as f64 / 1e3,
        request.user,
        answer_of(request),
        request.key
    )
}

/// A finding with its requests as bars on one time line, in per cent of it.
fn drawn(finding: &Finding) -> Value {
    let first = finding.requests.iter().map(|request| request.start_us).min().unwrap_or(0);
    let last = finding.requests.iter().map(|request| request.end_us).max().unwrap_or(first);
    let whole = last.saturating_sub(first).max(1) as f64;
    let percent = |us: u64| us.saturating_sub(first) as f64 * 100.0 / whole;
    let bar = |(index, request): (usize, &Request)| {
        json!({
            "x": percent(request.start_us),
            "width": percent(request.end_us.max(request.start_us)) - percent(request.start_us),
            "y": index * 22,
            "user": request.user,
            "key": request.key,
            "means": request.means,
            "phase": request.phase,
            "answer": answer_of(request),
            "from": request.start_us as f64 / 1e3,
            "to": request.end_us as f64 / 1e3,
        })
    };
    let bars: Vec<Value> = finding.requests.iter().enumerate().map(bar).collect();
    json!({
        "kind": finding.kind,
        "what": finding.what,
        "height": finding.requests.len() * 22,
        "first": first as f64 / 1e3,
        "last": last as f64 / 1e3,
        "bars": bars,
        "rows": finding.rows,
    })
}

fn latency(requests: &[Request]) -> Latency {
    let answered = requests.iter().filter(|request| request.status.is_some());
    let mut took: Vec<u64> =
        answered.map(|request| request.end_us.saturating_sub(request.start_us)).collect();
    took.sort_unstable();
    let at = |share: f64| {
        let rank = (took.len() as f64 * share).ceil() as usize;
        took.get(rank.max(1) - 1).map_or(0.0, |us| *us as f64 / 1e3)
    };
    Latency { p50: at(0.50), p95: at(0.95), p99: at(0.99), max: at(1.0) }
}
