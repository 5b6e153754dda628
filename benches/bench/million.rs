//! A million people want ten phones, from ten thousand connections: what saying "sold out" costs
//! beside an endpoint that does nothing else. Exactly ten rows, ten times 202, and `sold_out` for
//! all others.

use crate::load::{Requests, Run, milliseconds};
use crate::report::{Bound, Section, figure, median, spread, thousands};
use crate::scenarios::{ACCEPTED, SOLD_OUT};
use crate::stage::{Stage, of_runs};
use crate::{Options, Result, process::Workspace};
use serde::Serialize;
use serde_json::json;
use std::{net::SocketAddr, sync::Arc};

const ATTEMPTS: usize = 1_000_000;
const PHONES: usize = 10;
const CONNECTIONS: usize = 10_000;
const AT_MOST: f64 = 1.15;

/// One variant's rounds.
#[derive(Serialize)]
struct Variant {
    title: &'static str,
    keys: bool,
    ratios: Vec<f64>,
    runs: Vec<Run>,
}

pub async fn run(options: &Options, workspace: &Workspace) -> Result<Section> {
    const NAME: &str = "ten phones";
    let mut stage = Stage::new(options, workspace)?;
    let bare = stage.bare()?;
    let target = stage.serve("million", "always", "off")?;
    let attempts = options.scaled(ATTEMPTS);
    let connections = CONNECTIONS.min(attempts);
    let variant = |(title, keys)| Variant { title, keys, ratios: Vec::new(), runs: Vec::new() };
    let mut variants = [("without a retry key", false), ("with a retry key", true)].map(variant);
    let mut bare_runs = Vec::new();
    // A first round that does not count.
    for round in 0..=options.rounds().min(3) {
        let count = if round == 0 { attempts / 10 } else { attempts }.max(connections);
        for variant in &mut variants {
            let sale = target.client.create_sale(NAME, PHONES).await?;
            let tokens = stage.tokens(count);
            let requests =
                Requests::purchases(target.process.address, &sale, &tokens, variant.keys);
            let requests = Arc::new(requests);
            drop(tokens);
            let load = |stage: &Stage<'_>, at: SocketAddr| {
                let mut load = stage.load(at, &requests, count, ACCEPTED);
                load.connections = connections;
                load
            };
            let before = stage.measure("bare", &bare, load(&stage, bare.address)).await?;
            let mut attempt = load(&stage, target.process.address);
            attempt.expected = vec![SOLD_OUT, ACCEPTED];
            let run = stage.measure(NAME, &target.process, attempt).await?;
            if run.kinds != [count - PHONES, PHONES] {
                let what = format!("{count} wanted {PHONES}; sold out, sold: {:?}", run.kinds);
                stage.fail(NAME, what);
            }
            stage.check_sold(NAME, &target, &sale, PHONES).await?;
            let after = stage.measure("bare", &bare, load(&stage, bare.address)).await?;
            if round == 0 {
                continue;
            }
            let ratio = run.seconds / ((before.seconds + after.seconds) / 2.0);
            let (title, seconds) = (variant.title, run.seconds);
            eprintln!("round {round}, {title}: {seconds:.1} s, {ratio:.3} × bare");
            variant.ratios.push(ratio);
            variant.runs.push(run);
            bare_runs.extend([before, after]);
        }
    }
    let (count, from) = (thousands(attempts as f64), thousands(connections as f64));
    let title = format!("{count} attempts for {PHONES} phones, from {from} connections");
    let mut section = table(title, &variants, &bare_runs);
    section.failures = stage.finish([target].iter_mut());
    section.figures = json!({"bare": bare_runs, "variants": variants});
    Ok(section)
}

fn table(title: String, variants: &[Variant], bare: &[Run]) -> Section {
    let headings = ["", "seconds", "× bare's time", "p50 ms", "p99", "app µs", "redis µs"];
    let mut section = Section::new("million", title, &headings);
    let row = |title: &str, runs: &[Run], ratio: String| {
        let runs: Vec<&Run> = runs.iter().collect();
        [
            title.to_owned(),
            figure(of_runs(&runs, |run| Some(run.seconds)), 1),
            ratio,
            figure(of_runs(&runs, |run| Some(milliseconds(&run.latency, 0.5))), 1),
            figure(of_runs(&runs, |run| Some(milliseconds(&run.latency, 0.99))), 1),
            figure(of_runs(&runs, |run| Some(run.cpu?.app)), 1),
            figure(of_runs(&runs, |run| Some(run.cpu?.redis)), 1),
        ]
    };
    section.row(row("bare endpoint", bare, "1".to_owned()));
    for variant in variants {
        let ratios = variant.ratios.iter().copied();
        let text = spread(ratios.clone())
            .map(|(least, median, most)| format!("{median:.3} ({least:.3}–{most:.3})"));
        section.row(row(variant.title, &variant.runs, text.unwrap_or_default()));
        if let Some(reached) = median(ratios) {
            let what = format!("a million, {}, × bare's time", variant.title);
            section.goal(what, Bound::AtMost(AT_MOST), reached);
        }
    }
    section.note(
        "A purchase with an Idempotency-Key is decided by Redis even when nothing is left: another \
         instance may have sold to this very key a moment ago, and the same key must get the same \
         answer. One without is refused from memory.",
    );
    section
}
