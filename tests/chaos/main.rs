//! The chaos run (docs/chaos.md, `--help`). Without arguments its short form, as in `cargo test`.

mod cluster;
mod faults;
mod instance;
mod measures;
mod payments;
mod planted;
mod report;
mod trial;

#[path = "../support/mod.rs"]
mod support;

use clap::Parser;
use faults::Fault;
use report::{HEADINGS, TrialReport, Verdict, say};
use std::{env, process::ExitCode, sync::OnceLock};
use support::{prelude::*, stores::Result};
use trial::Plan;

/// What `cargo test` runs: a fault of each kind.
const SHORT: &[&str] = &["many", "redis-cut", "postgres-kill", "net-lost-replies"];
const SHORT_SECONDS: u64 = 2;

const MEASURES: &str = "measures";

/// Breaks the program while shoppers buy, and judges what came of it.
///
/// Without arguments: the short form, some seconds for each kind of fault. Every run prints its
/// seed; the same seed makes the same decisions (when what dies, who buys what), though the machine
/// decides how they interleave.
#[derive(Debug, Parser)]
#[command(name = "chaos", after_help = list_of_faults())]
struct Arguments {
    /// Only these, comma-separated
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,

    /// Every fault, not only those of the short form
    #[arg(long)]
    all: bool,

    /// How long each fault strikes, again and again
    #[arg(long, value_name = "N", default_value_t = SHORT_SECONDS)]
    seconds: u64,

    /// How long the mixed faults strike; as long as the others if it is not said
    #[arg(long, value_name = "N")]
    mixed_seconds: Option<u64>,

    /// Only prove the checkers: plant each bug (or the named ones, with --only) and see that it is
    /// caught
    #[arg(long)]
    planted: bool,

    /// Decides everything; printed by every run
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// How many clients at once
    #[arg(long, value_name = "N", default_value_t = 24)]
    clients: u16,

    /// Writes report.txt there, and the logs of what failed
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,

    // What `cargo test` hands to every test binary. Names of tests choose whether this one runs.
    #[arg(hide = true)]
    filters: Vec<String>,
    #[arg(long, hide = true)]
    exact: bool,
    #[arg(long, hide = true)]
    nocapture: bool,
    #[arg(long, hide = true)]
    list: bool,
    #[arg(long, hide = true)]
    test_threads: Option<usize>,
}

fn list_of_faults() -> String {
    let mut text = "Faults, for --only:".to_owned();
    for fault in Fault::ALL {
        text += &format!("\n  {:<24}{}", fault.name(), fault.about());
    }
    text + &format!("\n  {MEASURES:<24}no fault: promised times against their targets")
}

static KEEP_LOGS_IN: OnceLock<PathBuf> = OnceLock::new();

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filters = &arguments.filters;
    let is_meant = filters.is_empty() || filters.iter().any(|one| "chaos".contains(&one[..]));
    if arguments.list || !is_meant {
        return ExitCode::SUCCESS;
    }
    let runtime = tokio::runtime::Runtime::new();
    let ran = match runtime {
        Ok(runtime) => runtime.block_on(run(arguments)),
        Err(error) => Err(error.into()),
    };
    match ran {
        Ok(passed) => ExitCode::from(u8::from(!passed)),
        Err(error) => {
            eprintln!("chaos: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn try_fault(fault: Fault, plan: Plan, arguments: &Arguments) -> TrialReport {
    let is_mixed = matches!(fault, Fault::Mixed | Fault::MixedLoss);
    let seconds = arguments.mixed_seconds.filter(|_| is_mixed);
    let length = seconds.map_or(plan.length, Duration::from_secs);
    let plan = Plan {
        length: length.max(fault.least_length()),
        terminal_within: fault.terminal_within(),
        least_accepted: fault.least_accepted().unwrap_or(plan.least_accepted),
        ..plan
    };
    let report = trial::run(fault, plan).await;
    let report = report.unwrap_or_else(|error| TrialReport::failed(fault, &error));
    say(&format!("{}  ({:.1} s)", report.line(), report.took.as_secs_f64()));
    report.remarks().iter().for_each(|remark| say(&format!("    {remark}")));
    report
}

fn faults_of(arguments: &Arguments) -> Result<Vec<Fault>> {
    if arguments.planted {
        return Ok(Vec::new());
    }
    if arguments.only.is_empty() && arguments.all {
        return Ok(Fault::ALL.to_vec());
    }
    let only = arguments.only.iter().map(String::as_str);
    let mut names: Vec<&str> = only.filter(|name| *name != MEASURES).collect();
    if arguments.only.is_empty() {
        names = SHORT.to_vec();
    }
    let named = names.into_iter().map(|name| {
        Fault::from_name(name).ok_or_else(|| format!("there is no fault {name}: see --help").into())
    });
    named.collect()
}

async fn run(arguments: Arguments) -> Result<bool> {
    support::launch::remove_leftovers(&env::temp_dir(), cluster::PREFIX);
    if let Some(folder) = &arguments.report {
        KEEP_LOGS_IN.get_or_init(|| folder.clone());
    }
    let now = OffsetDateTime::now_utc().unix_timestamp().unsigned_abs();
    let seed = arguments.seed.unwrap_or(now % 1_000_000);
    let words: Vec<String> = env::args().skip(1).collect();
    say(&format!("seed {seed}, {}\narguments: {}\n", report::machine(), words.join(" ")));
    let faults = faults_of(&arguments)?;
    let is_short = arguments.only.is_empty() && !arguments.all;
    let plan = Plan {
        seed,
        length: Duration::from_secs(arguments.seconds),
        clients: arguments.clients,
        terminal_within: Duration::ZERO, // each fault has its own
        patience: if is_short { 4 } else { 1 },
        least_accepted: arguments.seconds * 20,
        swaps_tokens: false,
        refunds_again: false,
    };
    if !faults.is_empty() {
        say(HEADINGS);
    }
    // In the short form two at once: each mostly waits for orders to lapse.
    let at_once = if is_short { 2 } else { 1 };
    let trials = stream::iter(faults).map(async |fault| try_fault(fault, plan, &arguments).await);
    let trials: Vec<TrialReport> = trials.buffered(at_once).collect().await;
    let (mut planted, mut measures) = (Vec::new(), Vec::new());
    if arguments.planted {
        say("planted bugs, which the checkers must notice:");
        planted = planted::run(seed, &arguments.only).await;
        planted.iter().for_each(|(_, line)| say(line));
    }
    if arguments.all || arguments.only.iter().any(|name| name == MEASURES) {
        measures = measures::run(seed).await;
    }
    let passed = trials.iter().all(|trial| trial.verdict == Verdict::Passed)
        && planted.iter().all(|(is_right, _)| *is_right)
        && measures.iter().all(|measure| measure.held);
    say(&report::summary(&trials, passed));
    if let Some(folder) = &arguments.report {
        report::write(folder)?;
        eprintln!("chaos: the report is in {}", folder.display());
    }
    Ok(passed)
}
