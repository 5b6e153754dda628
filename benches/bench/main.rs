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
mod section;
mod selfcheck;
mod session;
mod stage;

use clap::{Parser, Subcommand};
use process::Workspace;
use scenarios::Scenario;
use section::Section;
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

/// The allocator of the program, so that `bare` differs in nothing but its work.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Measures flash-sale on this machine. Without a command: the purchase path against a bare endpoint, in
/// one session, alternating. Prints tables and writes JSON.
///
/// Exits 0 if every answer and every invariant was right however slow they were, 1 if one was wrong,
/// 2 if it could not measure.
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

#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
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
    /// Prints the tables of JSON files as Markdown, for docs/performance.md
    Markdown {
        /// [default: the last results of each command]
        files: Vec<PathBuf>,
    },
    /// The endpoint that everything is compared with
    #[command(hide = true)]
    Bare,
}

impl Task {
    /// The measurements that it is made of.
    fn parts(&self) -> Vec<Self> {
        match self {
            Self::All => vec![Self::Paired, Self::Durable, Self::Million, Self::Bytes],
            one => vec![one.clone()],
        }
    }

    async fn measure(&self, options: &Options, workspace: &Workspace) -> Result<Section, Error> {
        match self {
            Self::Durable => durable::run(options, workspace).await,
            Self::Million => million::run(options, workspace).await,
            Self::Bytes => bytes::run(options, workspace).await,
            _ => Ok(report::section(&session::run(options, workspace).await?)),
        }
    }
}

#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Three rounds of fewer requests
    #[arg(long, global = true)]
    pub quick: bool,

    /// How often every scenario is measured [default: 5, quick: 3]
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,

    /// Multiplies the requests of every run [default: 1, quick: 0.4]
    #[arg(long, global = true, value_name = "FACTOR")]
    scale: Option<f64>,

    /// Keep-alive connections, each waiting for its answer before it asks again
    #[arg(long, global = true, value_name = "N", default_value_t = 512,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub connections: u16,

    /// Threads of the load generator
    #[arg(long, global = true, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub generator_threads: u16,

    /// Only these scenarios
    #[arg(
        long,
        global = true,
        value_enum,
        value_delimiter = ',',
        value_name = "NAME"
    )]
    only: Vec<Scenario>,

    /// Buy without an Idempotency-Key
    #[arg(long, global = true)]
    pub no_keys: bool,

    /// A setting for the flash-sale servers, to compare it on and off
    #[arg(long = "server-env", global = true, value_name = "KEY=VALUE", value_parser = parse_setting)]
    pub server_env: Vec<(String, String)>,

    /// Measure this build of flash-sale, not the one beside the benchmark (which has the tests' fail points)
    #[arg(long, global = true, value_name = "FILE")]
    pub program: Option<PathBuf>,

    /// For `durable`: at which share of the most people come
    #[arg(long, global = true, value_name = "SHARE", default_value_t = 0.8)]
    pub share: f64,

    /// For `million`: so many connections rather than 10,000
    #[arg(long, global = true, value_name = "N")]
    crowd: Option<usize>,

    /// Where the servers keep their data while they run; on tmpfs an fsync costs nothing
    /// [default: the build folder]
    #[arg(long, global = true, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,

    /// Write the results here too
    #[arg(long, global = true, value_name = "FILE")]
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

    /// How many connections where `usual` would be held.
    pub fn crowd(&self, usual: usize) -> usize {
        self.crowd.unwrap_or(usual).max(1)
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
    if !given("--bench")
        && !asks_for_help
        && arguments
            .first()
            .is_none_or(|first| !matches!(&first[..], "bare" | "markdown"))
    {
        return conclude(selfcheck::run().map(|()| true));
    }
    let cli = Cli::parse();
    let task = cli.task.unwrap_or(Task::Paired);
    match &task {
        Task::Bare => conclude(bare::serve().map(|()| true)),
        Task::Markdown { files } => conclude(print_markdown(files).map(|()| true)),
        task => conclude(measure(task, &cli.options)),
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

fn measure(task: &Task, options: &Options) -> Result<bool, Error> {
    if options
        .scale
        .is_some_and(|scale| !(scale > 0.0 && scale <= 1000.0))
    {
        return Err("--scale must be above 0 and at most 1000".into());
    }
    if !(options.share > 0.0 && options.share <= 1.0) {
        return Err("--share must be above 0 and at most 1".into());
    }
    // The generator has threads of its own; this one only gives orders.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut all_right = true;
    let mut parts = Vec::new();
    for part in task.parts() {
        let measured = runtime.block_on(async {
            tokio::select! {
                measured = measure_one(&part, options) => measured,
                // Dropping it ends what it started.
                stopped = until_stopped() => Err(stopped),
            }
        });
        let (section, record) = measured?;
        print!("{}", section.text());
        all_right &= section.failures.is_empty();
        write_json(&latest(section.name), &record)?;
        parts.push(record);
    }
    runtime.shutdown_timeout(Duration::from_secs(1));
    if let Some(file) = &options.json {
        let record = match &parts[..] {
            [one] => one.clone(),
            _ => json!(parts),
        };
        write_json(file, &record)?;
    }
    Ok(all_right)
}

async fn measure_one(part: &Task, options: &Options) -> Result<(Section, Value), Error> {
    let workspace = Workspace::create(options.data_dir.as_deref())?;
    let machine = report::Machine::look(&workspace.path);
    println!("\n{}", machine.text(options));
    let began = Instant::now();
    let measured = part.measure(options, &workspace).await;
    let mut section = match measured {
        Ok(section) => section,
        Err(error) => {
            workspace.print_logs();
            return Err(error);
        }
    };
    if !section.failures.is_empty() {
        workspace.print_logs();
    }
    section.seconds = began.elapsed().as_secs_f64();
    let mut record = machine.json(options);
    record["schema"] = json!(2);
    record["section"] = section.json();
    Ok((section, record))
}

/// Where the last results of a measurement are.
fn latest(name: &str) -> PathBuf {
    process::target_dir().join(format!("bench/{name}.json"))
}

fn write_json(file: &Path, record: &Value) -> Result<(), Error> {
    let json = serde_json::to_string_pretty(record)?;
    std::fs::create_dir_all(file.parent().unwrap_or(file))
        .and_then(|()| std::fs::write(file, json))
        .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    println!("written: {}", file.display());
    Ok(())
}

fn print_markdown(files: &[PathBuf]) -> Result<(), Error> {
    let mut files = files.to_vec();
    if files.is_empty() {
        let names = Task::All.parts().into_iter().map(|part| {
            let name = format!("{part:?}").to_lowercase();
            latest(&name)
        });
        files = names.filter(|file| file.exists()).collect();
    }
    if files.is_empty() {
        return Err("nothing has been measured yet".into());
    }
    for file in files {
        let text = std::fs::read_to_string(&file)
            .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        let record: Value = serde_json::from_str(&text)?;
        let records = match record {
            Value::Array(records) => records,
            one => vec![one],
        };
        for record in records {
            println!("{}", section::markdown(&record));
        }
    }
    Ok(())
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
