//! The machine, and the paired session as a table for people and as JSON for programs.

use crate::{
    Options,
    cpu::Usage,
    scenarios::Scenario,
    section::{Bound, Section, median, spread, thousands},
    session::{Paired, Results},
    stage::{Run, latencies},
};
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use std::{fs, path::Path, process::Command};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// Where and what was measured.
pub struct Machine {
    cores: usize,
    cpu: String,
    kernel: String,
    file_system: String,
    commit: String,
    profile: &'static str,
    at: String,
    /// Of the last minute, when the measurement began: somebody else's work is in the figures.
    load_average: Option<f64>,
}

impl Machine {
    pub fn look(data: &Path) -> Self {
        let cpu_info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpu_info
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let sysctl = || output("sysctl", &["-n", "machdep.cpu.brand_string"]);
        let commit = output_in_repository(&["rev-parse", "--short=12", "HEAD"]).map(|commit| {
            let changed = output_in_repository(&["status", "--porcelain"]).is_some();
            if changed {
                format!("{commit} with changes")
            } else {
                commit
            }
        });
        let unknown = || "unknown".to_owned();
        Self {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            cpu: model
                .map(|(_, name)| name.trim().to_owned())
                .or_else(sysctl)
                .unwrap_or_else(unknown),
            kernel: output("uname", &["-sr"]).unwrap_or_else(unknown),
            file_system: file_system(data).unwrap_or_else(unknown),
            commit: commit.unwrap_or_else(|| "none".to_owned()),
            profile: if cfg!(debug_assertions) {
                "dev: the figures mean nothing"
            } else {
                "release"
            },
            at: OffsetDateTime::now_utc()
                .format(&Rfc3339)
                .unwrap_or_else(|_| unknown()),
            load_average: fs::read_to_string("/proc/loadavg")
                .ok()
                .and_then(|text| text.split(' ').next()?.parse().ok()),
        }
    }
}

/// What a command prints, if it succeeds and prints something.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

fn output_in_repository(arguments: &[&str]) -> Option<String> {
    output(
        "git",
        &[&["-C", env!("CARGO_MANIFEST_DIR")], arguments].concat(),
    )
}

/// The type of the file system that holds a folder: on tmpfs an fsync costs nothing.
fn file_system(folder: &Path) -> Option<String> {
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    let mounts = mounts.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (at, kind) = (fields.next()?, fields.next()?);
        folder
            .starts_with(at)
            .then_some((at.len(), kind.to_owned()))
    });
    mounts
        .max_by_key(|(length, _)| *length)
        .map(|(_, kind)| kind)
}

pub fn median_cpu<'a>(runs: impl Iterator<Item = &'a Run> + Clone) -> Option<Usage> {
    let of =
        |part: fn(&Usage) -> f64| median(runs.clone().filter_map(|run| run.cpu.as_ref().map(part)));
    Some(Usage {
        app: of(|cpu| cpu.app)?,
        redis: of(|cpu| cpu.redis)?,
        postgres: of(|cpu| cpu.postgres)?,
        generator: of(|cpu| cpu.generator)?,
    })
}

fn runs_of(paired: &[Paired]) -> impl Iterator<Item = &Run> + Clone {
    paired.iter().map(|paired| &paired.run)
}

/// What each scenario should reach at least, as a ratio to bare.
const TARGETS: [(Scenario, f64); 3] = [
    (Scenario::Accepted, 0.55),
    (Scenario::SoldOutKeyless, 0.85),
    (Scenario::SoldOut, 0.85),
];
/// The most app CPU of an accepted purchase, as a ratio to bare's.
const MOST_CPU: f64 = 1.4;
/// How much faster an accepted purchase should be than the baseline, at least.
const LEAST_OVER_BASELINE: f64 = 8.0;

fn set_goals(section: &mut Section, results: &Results) {
    for (scenario, wanted) in TARGETS {
        if let Some(runs) = results.of(scenario)
            && let Some(reached) = median(runs.iter().map(Paired::ratio))
        {
            let what = format!("{}, × bare", scenario.title());
            section.goal(what, Bound::AtLeast(wanted), reached);
        }
    }
    let accepted = results.of(Scenario::Accepted);
    if let Some(runs) = accepted
        && let (Some(purchase), Some(bare)) =
            (median_cpu(runs_of(runs)), median_cpu(results.bare.iter()))
    {
        let reached = purchase.app / bare.app;
        let what = "app CPU of an accepted purchase, × bare's";
        section.goal(what, Bound::AtMost(MOST_CPU), reached);
    }
    // Of the same round: each is a ratio to the bare runs beside it.
    if let (Some(accepted), Some(baseline)) = (accepted, results.of(Scenario::Baseline)) {
        let rounds = accepted.iter().zip(baseline);
        let ratios = rounds.map(|(accepted, baseline)| accepted.ratio() / baseline.ratio());
        if let Some((least, reached, most)) = spread(ratios) {
            let what = format!("accepted, × the baseline ({least:.1}–{most:.1})");
            section.goal(what, Bound::AtLeast(LEAST_OVER_BASELINE), reached);
        }
    }
}

const HEADINGS: [&str; 14] = [
    "",
    "× bare",
    "min–max",
    "req/s",
    "p50 ms",
    "p95",
    "p99",
    "app µs",
    "redis",
    "postgres",
    "generator",
    "batch",
    "rows/tx",
    "written after ms",
];

pub fn section(results: &Results) -> Section {
    let title = "Against a bare endpoint, in pairs";
    let mut section = Section::new("paired", title, &HEADINGS);
    if !results.bare.is_empty() {
        section.row(row("bare endpoint", None, results.bare.iter()));
    }
    for (scenario, paired) in results.measured() {
        let ratios = spread(paired.iter().map(Paired::ratio));
        section.row(row(scenario.title(), ratios, runs_of(paired)));
    }
    if results.measured().next().is_some() {
        section.note(
            "× bare: requests/s over the mean of the bare runs before and after, median of the rounds. µs: CPU time a \
             request, by process; a purchase's includes writing its order. batch: buyers in one script call. rows/tx: \
             orders in one transaction. written after: from the last 202 until all are in Postgres.",
        );
    }
    if let Some(bytes) = results.peak_memory {
        section.note(format!("most memory of the program: {} MiB", bytes >> 20));
    }
    set_goals(&mut section, results);
    section.failures.clone_from(&results.failures);
    section.figures = json(results);
    section
}

impl Machine {
    pub fn text(&self, options: &Options) -> String {
        let settings = options.server_env.iter();
        let settings = settings.map(|(key, value)| format!(", {key}={value}"));
        format!(
            "{} cores, {}, {}, data on {}\n\
             commit {}, profile {}, {}\n\
             {} rounds, {} connections, {} generator thread(s), Idempotency-Key {}{}\n",
            self.cores,
            self.cpu,
            self.kernel,
            self.file_system,
            self.commit,
            self.profile,
            self.at,
            options.rounds(),
            options.connections,
            options.generator_threads,
            if options.no_keys { "not sent" } else { "sent" },
            settings.collect::<String>(),
        )
    }

    pub fn json(&self, options: &Options) -> Value {
        let settings = options.server_env.iter();
        let settings = settings.map(|(key, value)| (key.clone(), json!(value)));
        json!({
            "at": self.at,
            "commit": self.commit,
            "profile": self.profile,
            "machine": {
                "cores": self.cores,
                "cpu": self.cpu,
                "kernel": self.kernel,
                "data_file_system": self.file_system,
                "load_average": self.load_average,
            },
            "settings": {
                "quick": options.quick,
                "rounds": options.rounds(),
                "connections": options.connections,
                "generator_threads": options.generator_threads,
                "idempotency_key": !options.no_keys,
                "server_env": settings.collect::<serde_json::Map<_, _>>(),
            },
        })
    }
}

fn row<'a>(
    title: &str,
    ratios: Option<(f64, f64, f64)>,
    runs: impl Iterator<Item = &'a Run> + Clone,
) -> [String; 14] {
    let all = latencies(runs.clone());
    let milliseconds = |quantile| format!("{:.2}", all.value_at_quantile(quantile) as f64 / 1e6);
    let cpu = median_cpu(runs.clone());
    let cpu = |part: fn(Usage) -> f64| {
        cpu.map(part)
            .map_or("".to_owned(), |value| format!("{value:.1}"))
    };
    let some = |value: Option<f64>, decimals| {
        value.map_or(String::new(), |value| format!("{value:.decimals$}"))
    };
    [
        title.to_owned(),
        ratios.map_or("1".to_owned(), |(_, median, _)| format!("{median:.2}")),
        ratios.map_or(String::new(), |(least, _, most)| {
            format!("{least:.2}–{most:.2}")
        }),
        thousands(median(runs.clone().map(Run::per_second)).unwrap_or(0.0)),
        milliseconds(0.5),
        milliseconds(0.95),
        milliseconds(0.99),
        cpu(|cpu| cpu.app),
        cpu(|cpu| cpu.redis),
        cpu(|cpu| cpu.postgres),
        cpu(|cpu| cpu.generator),
        some(median(runs.clone().filter_map(|run| run.batch_size)), 0),
        some(median(runs.clone().filter_map(|run| run.write_size)), 0),
        some(
            median(runs.filter_map(|run| run.drain_seconds)).map(|seconds| seconds * 1e3),
            0,
        ),
    ]
}

fn json(results: &Results) -> Value {
    let scenarios = results.measured().map(|(scenario, paired)| {
        let rounds: Vec<Value> = paired.iter().map(paired_json).collect();
        let ratio = spread(paired.iter().map(Paired::ratio))
            .map(|(least, median, most)| json!({"median": median, "min": least, "max": most}));
        let mut summary = summary_json(runs_of(paired));
        summary["ratio_to_bare"] = json!(ratio);
        summary["rounds"] = json!(rounds);
        (scenario.name().to_owned(), summary)
    });
    let mut bare = summary_json(results.bare.iter());
    bare["rounds"] = results.bare.iter().map(run_json).collect();
    json!({
        "bare": bare,
        "scenarios": scenarios.collect::<serde_json::Map<_, _>>(),
        "peak_memory_bytes": results.peak_memory,
    })
}

pub fn summary_json<'a>(runs: impl Iterator<Item = &'a Run> + Clone) -> Value {
    json!({
        "requests_per_second": median(runs.clone().map(Run::per_second)),
        "latency_us": latency_json(&latencies(runs.clone())),
        "cpu_us_per_request": cpu_json(median_cpu(runs.clone())),
        "batch_size": median(runs.clone().filter_map(|run| run.batch_size)),
        "orders_per_transaction": median(runs.clone().filter_map(|run| run.write_size)),
        "drain_ms": median(runs.filter_map(|run| run.drain_seconds)).map(|seconds| seconds * 1e3),
    })
}

fn paired_json(paired: &Paired) -> Value {
    let mut run = run_json(&paired.run);
    run["ratio_to_bare"] = json!(paired.ratio());
    run["bare_per_second"] = json!(paired.bare_per_second);
    run
}

fn run_json(run: &Run) -> Value {
    json!({
        "requests": run.requests,
        "seconds": run.seconds,
        "requests_per_second": run.per_second(),
        "latency_us": latency_json(&run.latency),
        "cpu_us_per_request": cpu_json(run.cpu),
        "batch_size": run.batch_size,
        "orders_per_transaction": run.write_size,
        "drain_ms": run.drain_seconds.map(|seconds| seconds * 1e3),
        "unexpected": run.unexpected,
    })
}

pub fn latency_json(latency: &Histogram<u64>) -> Value {
    let at = |quantile| latency.value_at_quantile(quantile) as f64 / 1e3;
    json!({"p50": at(0.5), "p95": at(0.95), "p99": at(0.99), "max": at(1.0)})
}

pub fn cpu_json(cpu: Option<Usage>) -> Value {
    cpu.map_or(Value::Null, |cpu| {
        json!({"app": cpu.app, "redis": cpu.redis, "postgres": cpu.postgres, "generator": cpu.generator})
    })
}
