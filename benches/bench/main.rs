//! `make bench`: what a purchase costs, as ratios taken in one session.
//!
//! Absolute figures of a shared machine mean little, so every measured run stands between two runs of
//! a *bare* endpoint (`bare.rs`: the same framework, headers, token check and answer, and nothing
//! behind it), and what counts is the ratio to their mean. Real processes, real sockets, real signed
//! tokens, distinct users; every accepted order must be a row in Postgres at the end of its run, and
//! the audit must agree, else the benchmark fails. It never fails for being slow.
//!
//! ```text
//! main ─▶ session ─▶ scenarios ─▶ load (generator: own threads, keep-alive HTTP/1.1, closed loop)
//!            │            └─────▶ client (admin calls, /metrics, audit; never while a run is timed)
//!            ├─▶ process: bare, flash-sale (fsync always), flash-sale (fsync every second)
//!            └─▶ cpu, ids, report
//! ```
//!
//! What to keep in mind when reading the figures: the generator shares the processors with what it
//! measures (its share is printed); a closed loop waits for its answers, so latencies are those of
//! this number of connections, not of a fixed rate; loopback has no network in it.

mod bare;
mod client;
mod cpu;
mod ids;
mod load;
mod process;
mod report;
mod scenarios;
mod selfcheck;
mod session;

use clap::{Parser, Subcommand};
use scenarios::Scenario;
use std::{path::PathBuf, process::ExitCode, time::Duration};

/// The allocator of the program, so that `bare` differs in nothing but its work.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Measures the purchase path of flash-sale against a bare endpoint, both on this machine, in one
/// session, alternating. Prints a table and writes JSON.
///
/// Exits 0 if every answer and every invariant was right however slow they were, 1 if one was wrong,
/// 2 if it could not measure.
#[derive(Debug, Parser)]
#[command(name = "make bench ARGS=\"…\"", bin_name = "bench")]
struct Cli {
    #[command(subcommand)]
    hidden: Option<Hidden>,

    #[command(flatten)]
    options: Options,

    /// What `cargo bench` passes
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Subcommand)]
enum Hidden {
    /// The endpoint that everything is compared with
    #[command(hide = true)]
    Bare,
}

#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Three rounds of fewer requests: some 40 seconds
    #[arg(long)]
    pub quick: bool,

    /// How often every scenario is measured [default: 5, quick: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,

    /// Multiplies the requests of every run [default: 1, quick: 0.4]
    #[arg(long, value_name = "FACTOR")]
    scale: Option<f64>,

    /// Keep-alive connections, each waiting for its answer before it asks again
    #[arg(long, value_name = "N", default_value_t = 512,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub connections: u16,

    /// Threads of the load generator
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub generator_threads: u16,

    /// Only these scenarios
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAME")]
    only: Vec<Scenario>,

    /// Buy without an Idempotency-Key
    #[arg(long)]
    pub no_keys: bool,

    /// A setting for the flash-sale servers, to compare it on and off
    #[arg(long = "server-env", value_name = "KEY=VALUE", value_parser = parse_setting)]
    pub server_env: Vec<(String, String)>,

    /// Where the servers keep their data while they run; on tmpfs an fsync costs nothing
    /// [default: the build folder]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,

    /// Write the results here too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Options {
    pub fn rounds(&self) -> usize {
        let default = if self.quick { 3 } else { 5 };
        self.rounds.map_or(default, |rounds| rounds as usize)
    }

    /// How many requests a run of `usual` has in this session.
    pub fn scaled(&self, usual: usize) -> usize {
        let scale = self.scale.unwrap_or(if self.quick { 0.4 } else { 1.0 });
        ((usual as f64 * scale) as usize).max(usize::from(self.connections))
    }

    pub fn scenarios(&self) -> Vec<Scenario> {
        let all = Scenario::ALL.iter().copied();
        all.filter(|scenario| self.only.is_empty() || self.only.contains(scenario))
            .collect()
    }
}

fn parse_setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let given = |wanted: &str| arguments.iter().any(|argument| argument == wanted);
    let asks_for_help = given("--help") || given("-h");
    // `cargo test --benches` runs this without `--bench`, perhaps with libtest's arguments: then it
    // only checks itself.
    if !given("--bench") && !asks_for_help && arguments.first().is_none_or(|first| first != "bare")
    {
        return conclude(selfcheck::run());
    }
    let cli = Cli::parse();
    match cli.hidden {
        Some(Hidden::Bare) => conclude(bare::serve().map(|()| true)),
        None => conclude(measure(&cli.options)),
    }
}

/// The exit code; `false` means that something was answered or stored wrongly.
fn conclude(outcome: Result<bool, Error>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::from(2)
        }
    }
}

fn measure(options: &Options) -> Result<bool, Error> {
    if options
        .scale
        .is_some_and(|scale| !(scale > 0.0 && scale <= 1000.0))
    {
        return Err("--scale must be above 0 and at most 1000".into());
    }
    // The generator has threads of its own; this one only gives orders.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let results = runtime.block_on(async {
        tokio::select! {
            results = session::run(options) => results,
            // Dropping the session ends what it started.
            stopped = until_stopped() => Err(stopped),
        }
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    let results = results?;
    print!("{}", report::table(&results));
    let json = serde_json::to_string_pretty(&report::json(&results))?;
    let latest = process::target_dir().join("bench/latest.json");
    for file in std::iter::once(&latest).chain(&options.json) {
        std::fs::create_dir_all(file.parent().unwrap_or(file))
            .and_then(|()| std::fs::write(file, &json))
            .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        println!("written: {}", file.display());
    }
    Ok(results.failures.is_empty())
}

async fn until_stopped() -> Error {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        return "cannot catch signals".into();
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    "stopped".into()
}
