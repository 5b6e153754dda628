//! A million people want ten phones, from ten thousand connections: what saying "sold out" costs
//! beside an endpoint that does nothing else. Exactly ten rows, ten times 202, and `sold_out` for
//! everybody else.

use crate::{
    Error, Options, cpu,
    load::{Load, Requests},
    process::Workspace,
    scenarios::BARE_EXPECTED,
    section::{Bound, Section, median, spread_text, thousands},
    stage::{ACCEPTED, Run, SOLD_OUT, Stage, Target, quiescent_audit},
};
use serde_json::json;
use std::{net::SocketAddr, sync::Arc};

const ATTEMPTS: usize = 1_000_000;
const PHONES: usize = 10;
const CONNECTIONS: usize = 10_000;
const AT_MOST: f64 = 1.15;

/// One variant's rounds.
#[derive(Default)]
struct Rounds {
    title: &'static str,
    keys: bool,
    ratios: Vec<f64>,
    runs: Vec<Run>,
    resident: Vec<u64>,
}

pub async fn run(options: &Options, workspace: &Workspace) -> Result<Section, Error> {
    let mut stage = Stage::new(options, workspace)?;
    let bare = stage.bare()?;
    let target = stage.serve("million", &[("REDIS_FSYNC", "always"), ("LAB", "off")])?;
    let count = options.scaled(ATTEMPTS);
    let connections = options.crowd(CONNECTIONS).min(count);
    let idle = cpu::resident_memory(target.process.pid());

    let mut variants = [
        Rounds {
            title: "without a retry key",
            ..Rounds::default()
        },
        Rounds {
            title: "with a retry key",
            keys: true,
            ..Rounds::default()
        },
    ];
    let mut bare_runs = Vec::new();
    // A first round that does not count.
    for round in 0..=options.rounds().min(3) {
        let count = if round == 0 {
            (count / 10).max(connections)
        } else {
            count
        };
        for variant in &mut variants {
            let users = stage.users(count);
            let sale = target.client.create_sale("ten phones", PHONES).await?;
            let requests = Requests::purchases(target.address(), &sale, &users, variant.keys);
            let requests = Arc::new(requests);
            drop(users);
            let load = |address: SocketAddr, expected| Load {
                address,
                requests: requests.clone(),
                count,
                connections,
                threads: usize::from(options.generator_threads),
                expected,
                schedule: None,
                follower: None,
            };
            let first = load(bare.address, vec![BARE_EXPECTED]);
            let before = stage.measure("bare", bare.pid(), first).await?;
            let run = attempt(
                &mut stage,
                &target,
                &sale,
                load(target.address(), vec![SOLD_OUT, ACCEPTED]),
            )
            .await?;
            let last = load(bare.address, vec![BARE_EXPECTED]);
            let after = stage.measure("bare", bare.pid(), last).await?;
            if round == 0 {
                continue;
            }
            let ratio = run.seconds / ((before.seconds + after.seconds) / 2.0);
            eprintln!(
                "round {round}, {}: {:.1} s, {ratio:.3} × bare",
                variant.title, run.seconds
            );
            variant.ratios.push(ratio);
            variant
                .resident
                .extend(cpu::resident_memory(target.process.pid()));
            variant.runs.push(run);
            bare_runs.extend([before, after]);
        }
    }
    let peak = cpu::peak_memory(target.process.pid());
    let mut section = table(&variants, &bare_runs);
    let mib =
        |bytes: Option<u64>| bytes.map_or("?".to_owned(), |bytes| format!("{} MiB", bytes >> 20));
    section.title = format!(
        "{} attempts for {PHONES} phones, from {} connections",
        thousands(count as f64),
        thousands(connections as f64)
    );
    section.note(format!(
        "Resident memory of the program: {} before, {} at most.",
        mib(idle),
        mib(peak)
    ));
    stage.check_alive([target].iter_mut());
    section.failures = stage.failures;
    section.figures = json!({
        "attempts": count,
        "connections": connections,
        "bare_seconds": bare_runs.iter().map(|run| run.seconds).collect::<Vec<_>>(),
        "variants": variants.iter().map(|variant| json!({
            "idempotency_key": variant.keys,
            "seconds": variant.runs.iter().map(|run| run.seconds).collect::<Vec<_>>(),
            "ratios": variant.ratios,
            "resident_bytes_after": variant.resident,
        })).collect::<Vec<_>>(),
        "resident_bytes_before": idle,
        "peak_resident_bytes": peak,
    });
    Ok(section)
}

/// Everybody asks once; ten get one.
async fn attempt(
    stage: &mut Stage<'_>,
    target: &Target,
    sale: &str,
    load: Load,
) -> Result<Run, Error> {
    let count = load.count;
    let run = stage
        .measure("ten phones", target.process.pid(), load)
        .await?;
    let [sold_out, accepted] = run.kinds[..] else {
        return Err("a run forgot its kinds".into());
    };
    if (accepted, sold_out) != (PHONES, count - PHONES) {
        let what =
            format!("{accepted} of {count} bought one of {PHONES}, {sold_out} heard sold_out");
        stage.fail("ten phones", &what);
    }
    let audit = quiescent_audit(target, sale).await?;
    if audit.live != PHONES as u64 || !audit.ok || !audit.quiescent {
        let what = format!("{} rows; the audit says {}", audit.live, audit.problems);
        stage.fail("ten phones", &what);
    }
    Ok(run)
}

fn table(variants: &[Rounds], bare: &[Run]) -> Section {
    let headings = [
        "",
        "seconds",
        "× bare's time",
        "p50 ms",
        "p99",
        "app µs",
        "redis µs",
    ];
    let mut section = Section::new("million", "", &headings);
    let row = |title: &str, runs: &[Run], ratio: String| {
        let of = |value: &dyn Fn(&Run) -> Option<f64>, decimals: usize| {
            median(runs.iter().filter_map(value))
                .map_or(String::new(), |value| format!("{value:.decimals$}"))
        };
        [
            title.to_owned(),
            of(&|run| Some(run.seconds), 1),
            ratio,
            of(&|run| Some(run.milliseconds(0.5)), 1),
            of(&|run| Some(run.milliseconds(0.99)), 1),
            of(&|run| run.cpu.map(|cpu| cpu.app), 1),
            of(&|run| run.cpu.map(|cpu| cpu.redis), 1),
        ]
    };
    section.row(row("bare endpoint", bare, "1".to_owned()));
    for variant in variants {
        let ratio = spread_text(variant.ratios.iter().copied(), 3);
        section.row(row(variant.title, &variant.runs, ratio));
        if let Some(reached) = median(variant.ratios.iter().copied()) {
            let what = format!("a million, {}, × bare's time", variant.title);
            section.goal(what, Bound::AtMost(AT_MOST), reached);
        }
    }
    section.note(
        "A purchase with an Idempotency-Key is judged by Redis even when nothing is left: another instance may have sold \
         to this very key a moment ago, and the same key must get the same answer. One without is refused from memory.",
    );
    section
}
