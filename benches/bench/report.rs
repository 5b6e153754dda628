//! The table for people and the JSON for programs.

use crate::{
    cpu::Usage,
    scenarios::Scenario,
    session::{Paired, Results, Run, latencies},
};
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use std::{fmt::Write, fs, path::Path, process::Command};
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

/// `(least, median, most)`.
fn spread(values: impl Iterator<Item = f64>) -> Option<(f64, f64, f64)> {
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

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    spread(values).map(|(_, median, _)| median)
}

fn median_cpu<'a>(runs: impl Iterator<Item = &'a Run> + Clone) -> Option<Usage> {
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

/// What a purchase should reach, as a ratio to bare.
const TARGETS: [(Scenario, f64); 2] = [(Scenario::Accepted, 0.4), (Scenario::SoldOut, 0.85)];

/// Each target that was measured: scenario, wanted, reached.
fn targets(results: &Results) -> Vec<(Scenario, f64, f64)> {
    let reached = |wanted: Scenario| {
        let (_, runs) = results
            .scenarios
            .iter()
            .find(|(scenario, _)| *scenario == wanted)?;
        median(runs.iter().map(Paired::ratio))
    };
    TARGETS
        .into_iter()
        .filter_map(|(scenario, wanted)| Some((scenario, wanted, reached(scenario)?)))
        .collect()
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

pub fn table(results: &Results) -> String {
    let mut rows = vec![HEADINGS.map(str::to_owned)];
    if !results.bare.is_empty() {
        rows.push(row("bare endpoint", None, results.bare.iter()));
    }
    for (scenario, paired) in results.measured() {
        let ratios = spread(paired.iter().map(Paired::ratio));
        rows.push(row(scenario.title(), ratios, runs_of(paired)));
    }
    let mut text = heading(results);
    if rows.len() > 1 {
        write_aligned(&mut text, &rows);
    }
    // Writing to a string cannot fail.
    let _ = write_notes(&mut text, results);
    text
}

fn heading(results: &Results) -> String {
    let (machine, options) = (&results.machine, &results.options);
    let settings = options
        .server_env
        .iter()
        .map(|(key, value)| format!(", {key}={value}"));
    format!(
        "\n{} cores, {}, {}, data on {}\n\
         commit {}, profile {}, {}\n\
         {} rounds, {} connections, {} generator thread(s), Idempotency-Key {}{}, {:.0} s in all\n\n",
        machine.cores,
        machine.cpu,
        machine.kernel,
        machine.file_system,
        machine.commit,
        machine.profile,
        machine.at,
        options.rounds(),
        options.connections,
        options.generator_threads,
        if options.no_keys { "not sent" } else { "sent" },
        settings.collect::<String>(),
        results.seconds,
    )
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

fn write_aligned(text: &mut String, rows: &[[String; 14]]) {
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    for row in rows {
        let _ = write!(text, "{:<width$}", row[0], width = width(0));
        for (column, cell) in row.iter().enumerate().skip(1) {
            let _ = write!(text, "  {cell:>width$}", width = width(column));
        }
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
}

fn write_notes(text: &mut String, results: &Results) -> std::fmt::Result {
    if results.measured().next().is_some() {
        writeln!(
            text,
            "\n× bare: requests/s over the mean of the bare runs before and after, median of the rounds. µs: CPU time a\n\
             request, by process; a purchase's includes writing its order. batch: buyers in one script call.\n\
             rows/tx: orders in one transaction. written after: from the last 202 until all are in Postgres."
        )?;
    }
    if let Some(ids) = &results.ids {
        writeln!(
            text,
            "\nids: {}/s in batches of 512 from leased blocks; encode and decode alone {}/s",
            thousands(ids.leased_per_second),
            thousands(ids.encoded_per_second)
        )?;
    }
    let accepted = results
        .scenarios
        .iter()
        .find(|(scenario, _)| *scenario == Scenario::Accepted);
    if let Some((_, paired)) = accepted
        && let (Some(purchase), Some(bare)) =
            (median_cpu(runs_of(paired)), median_cpu(results.bare.iter()))
    {
        writeln!(
            text,
            "\napp CPU of an accepted purchase: {:.2} × bare's",
            purchase.app / bare.app
        )?;
    }
    if let Some(bytes) = results.peak_memory {
        writeln!(text, "most memory of the program: {} MiB", bytes >> 20)?;
    }
    writeln!(text)?;
    for (scenario, wanted, reached) in targets(results) {
        let verdict = if reached >= wanted { "met" } else { "not met" };
        writeln!(
            text,
            "target: {} ≥ {wanted} × bare: {verdict} ({reached:.2})",
            scenario.title()
        )?;
    }
    for failure in &results.failures {
        writeln!(text, "WRONG: {failure}")?;
    }
    if results.failures.is_empty() {
        writeln!(
            text,
            "every answer was right, and every accepted order is in Postgres"
        )?;
    }
    writeln!(text)
}

/// `1234567` as `1,234,567`.
fn thousands(value: f64) -> String {
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

pub fn json(results: &Results) -> Value {
    let (machine, options) = (&results.machine, &results.options);
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
        "schema": 1,
        "at": machine.at,
        "commit": machine.commit,
        "profile": machine.profile,
        "machine": {
            "cores": machine.cores,
            "cpu": machine.cpu,
            "kernel": machine.kernel,
            "data_file_system": machine.file_system,
        },
        "settings": {
            "quick": options.quick,
            "rounds": options.rounds(),
            "connections": options.connections,
            "generator_threads": options.generator_threads,
            "idempotency_key": !options.no_keys,
            "server_env": options.server_env.iter().map(|(key, value)| (key.clone(), json!(value))).collect::<serde_json::Map<_, _>>(),
        },
        "seconds": results.seconds,
        "bare": bare,
        "scenarios": scenarios.collect::<serde_json::Map<_, _>>(),
        "ids": results.ids.as_ref().map(|ids| json!({
            "leased_per_second": ids.leased_per_second,
            "encoded_per_second": ids.encoded_per_second,
        })),
        "peak_memory_bytes": results.peak_memory,
        "targets": targets(results).into_iter().map(|(scenario, wanted, reached)| json!({
            "scenario": scenario.name(),
            "at_least": wanted,
            "reached": reached,
            "met": reached >= wanted,
        })).collect::<Vec<_>>(),
        "failures": results.failures,
    })
}

fn summary_json<'a>(runs: impl Iterator<Item = &'a Run> + Clone) -> Value {
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

fn latency_json(latency: &Histogram<u64>) -> Value {
    let at = |quantile| latency.value_at_quantile(quantile) as f64 / 1e3;
    json!({"p50": at(0.5), "p95": at(0.95), "p99": at(0.99), "max": at(1.0)})
}

fn cpu_json(cpu: Option<Usage>) -> Value {
    cpu.map_or(Value::Null, |cpu| {
        json!({"app": cpu.app, "redis": cpu.redis, "postgres": cpu.postgres, "generator": cpu.generator})
    })
}
