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

use clap::{Parser, ValueEnum};
use faults::Fault;
use planted::How;
use report::{HEADINGS, TrialReport, say};
use std::{env, process::ExitCode};
use support::{prelude::*, stores::Result};
use trial::Plan;

/// What `cargo test` runs: a fault of each kind.
const SHORT: [Fault; 4] =
    [Fault::Many, Fault::RedisCut, Fault::PostgresKill, Fault::NetLostReplies];
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

impl Arguments {
    fn is_short(&self) -> bool {
        self.only.is_empty() && !self.all
    }

    fn faults(&self) -> Result<Vec<Fault>> {
        let fault = |name: &String| {
            let fault = Fault::from_str(name, false);
            fault.map_err(|_| format!("there is no fault {name}: see --help").into())
        };
        match &self.only[..] {
            _ if self.planted => Ok(Vec::new()),
            [] if self.all => Ok(Fault::value_variants().to_vec()),
            [] => Ok(SHORT.to_vec()),
            names => names.iter().filter(|name| *name != MEASURES).map(fault).collect(),
        }
    }

    fn plan(&self, fault: Fault, seed: u64) -> Plan {
        let is_mixed = matches!(fault, Fault::Mixed | Fault::MixedLoss);
        let seconds = self.mixed_seconds.filter(|_| is_mixed).unwrap_or(self.seconds);
        Plan {
            seed: Random::of(seed, &fault.name(), 0).next(),
            length: Duration::from_secs(seconds).max(fault.least_length()),
            clients: self.clients,
            terminal_within: fault.terminal_within(),
            slack: if self.is_short() { 4 } else { 1 },
            least_accepted: fault.least_accepted().unwrap_or(self.seconds * 20),
            planted: How::Nowhere,
        }
    }
}

fn list_of_faults() -> String {
    let mut text = "Faults, for --only:".to_owned();
    for fault in Fault::value_variants().iter().filter_map(Fault::to_possible_value) {
        let about = fault.get_help().cloned().unwrap_or_default();
        text += &format!("\n  {:<24}{about}", fault.get_name());
    }
    text + &format!("\n  {MEASURES:<24}no fault: promised times against their targets")
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filters = &arguments.filters;
    let is_meant = filters.is_empty() || filters.iter().any(|one| "chaos".contains(&one[..]));
    if arguments.list || !is_meant {
        return ExitCode::SUCCESS;
    }
    match run(arguments).await {
        Ok(passed) => ExitCode::from(u8::from(!passed)),
        Err(error) => {
            eprintln!("chaos: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn try_fault(fault: Fault, seed: u64, arguments: &Arguments) -> TrialReport {
    let began = Instant::now();
    let report = trial::run(fault, arguments.plan(fault, seed), arguments.report.as_deref()).await;
    let report = report.unwrap_or_else(|error| {
        let void = Some(format!("the trial could not be done: {error}"));
        TrialReport { fault: fault.name(), void, ..TrialReport::default() }
    });
    say(&format!("{}  ({:.1} s)", report.line(), began.elapsed().as_secs_f64()));
    report.remarks().iter().for_each(|remark| say(&format!("    {remark}")));
    report
}

async fn run(arguments: Arguments) -> Result<bool> {
    support::launch::remove_leftovers(&env::temp_dir(), cluster::PREFIX);
    let now = OffsetDateTime::now_utc().unix_timestamp().unsigned_abs();
    let seed = arguments.seed.unwrap_or(now % 1_000_000);
    let words: Vec<String> = env::args().skip(1).collect();
    say(&format!("seed {seed}, {}\narguments: {}\n", report::machine(), words.join(" ")));
    let faults = arguments.faults()?;
    if !faults.is_empty() {
        say(HEADINGS);
    }
    // In the short form two at once: each mostly waits for orders to lapse.
    let at_once = if arguments.is_short() { 2 } else { 1 };
    let trials = stream::iter(faults).map(async |fault| try_fault(fault, seed, &arguments).await);
    let trials: Vec<TrialReport> = trials.buffered(at_once).collect().await;
    let mut passed = trials.iter().all(TrialReport::passed);
    if arguments.planted {
        say("planted bugs, which the checkers must notice:");
        passed &= planted::run(seed, &arguments.only).await?;
    }
    if arguments.all || arguments.only.iter().any(|name| name == MEASURES) {
        passed &= measures::run(seed).await;
    }
    say(&report::summary(&trials, passed));
    if let Some(folder) = &arguments.report {
        report::write(folder)?;
        eprintln!("chaos: the report is in {}", folder.display());
    }
    Ok(passed)
}
