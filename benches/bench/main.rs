//! `make bench`: what a purchase costs, as ratios taken in one session; method and bias are in
//! docs/performance.md. It fails if an answer or a row was wrong, and never for being slow.

mod bare;
mod bytes;
mod client;
mod cpu;
mod durable;
mod load;
mod million;
mod process;
mod report;
mod scenarios;
mod selfcheck;
mod session;
mod stage;

use clap::{Parser, Subcommand, ValueEnum};
use process::Workspace;
use report::{Machine, Record, Section};
use scenarios::Scenario;
use std::time::{Duration, Instant};
use std::{path::PathBuf, process::ExitCode};

/// The allocator of the program, so that `bare` differs in nothing but its work.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

pub type Error = Box<dyn std::error::Error + Send + Sync>;
pub type Result<T = (), E = Error> = std::result::Result<T, E>;

/// Measures flash-sale on this machine. Without a command: the purchase path against a bare
/// endpoint, in one session, alternating. Prints tables and writes JSON.
///
/// Exits 0 if every answer and every invariant was right however slow they were, 1 if one was
/// wrong, 2 if it could not measure.
#[derive(Debug, Parser)]
#[command(name = "make bench ARGS=\"…\"", bin_name = "bench")]
struct Cli {
    #[command(subcommand)]
    task: Option<Task>,

    #[command(flatten)]
    options: Options,

    /// What `cargo bench` passes
    #[arg(long, hide = true, global = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Subcommand)]
enum Task {
    /// The paired session; what is done without a command
    Paired,
    /// From the 202 to the durable row, people coming at a fixed rate
    Durable,
    /// A million attempts for ten phones from 10,000 connections
    Million,
    /// What a buyer leaves in Redis
    Bytes,
    /// Everything
    All,
    /// The endpoint that everything is compared with
    #[command(hide = true)]
    Bare,
}

const ALL: [Task; 4] = [Task::Paired, Task::Durable, Task::Million, Task::Bytes];

#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Three rounds of fewer requests
    #[arg(long, global = true)]
    pub quick: bool,

    /// How often every scenario is measured [default: 5, quick: 3]
    #[arg(long, global = true, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,

    /// Multiplies the requests of every run [default: 1, quick: 0.4]
    #[arg(long, global = true, value_name = "FACTOR", value_parser = parse_scale)]
    scale: Option<f64>,

    /// Keep-alive connections, each waiting for its answer before it asks again
    #[arg(long, global = true, value_name = "N", default_value_t = 512,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub connections: u16,

    /// Only these scenarios
    #[arg(long, global = true, value_enum, value_delimiter = ',', value_name = "NAME")]
    only: Vec<Scenario>,

    /// A setting for the flash-sale servers, to compare it on and off
    #[arg(long, global = true, value_name = "KEY=VALUE", value_parser = parse_setting)]
    pub server_env: Vec<(String, String)>,

    /// Measure this build of flash-sale, not the one beside the benchmark (which has the tests'
    /// fail points)
    #[arg(long, global = true, value_name = "FILE")]
    pub program: Option<PathBuf>,
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
        let all = Scenario::value_variants().iter().copied();
        all.filter(|scenario| self.only.is_empty() || self.only.contains(scenario)).collect()
    }
}

fn parse_setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

fn parse_scale(text: &str) -> Result<f64, String> {
    let scale = text.parse().ok();
    let scale = scale.filter(|scale| *scale > 0.0 && *scale <= 1000.0);
    scale.ok_or("must be above 0 and at most 1000".to_owned())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let given = |wanted: &[&str]| arguments.iter().any(|given| wanted.contains(&&given[..]));
    let first = arguments.first().map_or("", String::as_str);
    // `cargo test --benches` runs this without `--bench`, perhaps with libtest's arguments: then it
    // only checks itself.
    let outcome = if given(&["--bench", "--help", "-h"]) || first == "bare" {
        let cli = Cli::parse();
        match cli.task.unwrap_or(Task::Paired) {
            Task::Bare => bare::serve().map(|()| true),
            Task::All => measure(&ALL, &cli.options),
            one => measure(&[one], &cli.options),
        }
    } else {
        selfcheck::run().map(|()| true)
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        // Something was answered or stored wrongly.
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::from(2)
        }
    }
}

fn measure(tasks: &[Task], options: &Options) -> Result<bool> {
    // The generator has a thread of its own; this one only gives orders.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut all_right = true;
    for task in tasks {
        let measured = runtime.block_on(async {
            tokio::select! {
                measured = measure_one(task, options) => measured,
                // Dropping it ends what it started.
                _ = tokio::signal::ctrl_c() => Err("stopped".into()),
            }
        });
        let record = measured?;
        print!("{}", record.section.text());
        all_right &= record.section.failures.is_empty();
        let name = &record.section.name;
        // Its folder is there since the workspace was.
        let file = process::target_dir().join(format!("bench/{name}.json"));
        let written = std::fs::write(&file, serde_json::to_string_pretty(&record)?);
        written.map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        println!("written: {}", file.display());
    }
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(all_right)
}

async fn measure_one(task: &Task, options: &Options) -> Result<Record> {
    let workspace = Workspace::create()?;
    let machine = Machine::look(options);
    println!("\n{}", serde_json::to_string_pretty(&machine)?);
    let began = Instant::now();
    let measured = run(task, options, &workspace).await;
    if !matches!(&measured, Ok(section) if section.failures.is_empty()) {
        workspace.print_logs();
    }
    let mut section = measured?;
    section.seconds = began.elapsed().as_secs_f64();
    Ok(Record { machine, section })
}

async fn run(task: &Task, options: &Options, workspace: &Workspace) -> Result<Section> {
    match task {
        Task::Durable => durable::run(options, workspace).await,
        Task::Million => million::run(options, workspace).await,
        Task::Bytes => bytes::run(options, workspace).await,
        _ => session::run(options, workspace).await,
    }
}
