//! The command line: what will be done, progress, the report, the exit code.

use crate::adapter::Adapter;
use crate::config::Config;
use crate::event::{Event, Progress};
use crate::history::{History, Meaning};
use crate::report::{Report, Verdict, plain};
use crate::run::run;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use std::fmt::Display;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

#[derive(Args)]
pub struct JudgeArgs {
    /// The server, like http://127.0.0.1:9000
    #[arg(required_unless_present = "history")]
    url: Option<String>,
    #[command(flatten)]
    config: Config,
    /// Judge a recorded history, and ask no server
    #[arg(long, value_name = "FILE", conflicts_with_all = ["url", "adapter", "kill", "start",
        "orders_sql", "save_history"])]
    history: Option<PathBuf>,
    /// Record the history
    #[arg(long, value_name = "FILE")]
    save_history: Option<PathBuf>,
    /// Write a page with the time line of what went wrong
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Exits 0 if the server held, 1 if it is broken, 2 if it could not be judged.
pub async fn judge(args: JudgeArgs) -> ExitCode {
    match judged(&args).await {
        Ok(report) => {
            let text = match args.json {
                true => serde_json::to_string_pretty(&report).unwrap_or_default() + "\n",
                false => report.table(),
            };
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::from(match report.verdict {
                Verdict::Held => 0,
                Verdict::Broken => 1,
                Verdict::Undecided => 2,
            })
        }
        Err(why) => {
            complain(format_args!("flash-sale: could not judge: {why}"));
            ExitCode::from(2)
        }
    }
}

async fn judged(args: &JudgeArgs) -> Result<Report, String> {
    let report = match &args.history {
        Some(file) => Report::on(&History::load(file).map_err(named(file))?),
        None => {
            let url = args.url.clone().unwrap_or_default();
            let config = Config { url, ..args.config.clone() };
            // A place that cannot be written to is told before the storm.
            for file in [&args.report, &args.save_history].into_iter().flatten() {
                File::options().append(true).create(true).open(file).map_err(named(file))?;
            }
            complain(format_args!("{}", plan(&config)?));
            let (report, history) = tokio::select! {
                done = run(config, shown()) => done.map_err(|error| error.to_string())?,
                _ = tokio::signal::ctrl_c() => return Err("interrupted".to_owned()),
            };
            if let Some(file) = &args.save_history {
                history.save(file).map_err(named(file))?;
            }
            report
        }
    };
    if let Some(file) = &args.report {
        let page = report.html().map_err(|error| error.to_string())?;
        std::fs::write(file, page).map_err(named(file))?;
    }
    Ok(report)
}

fn named<E: Display>(file: &Path) -> impl Fn(E) -> String {
    let file = file.display().to_string();
    move |error| format!("{file}: {error}")
}

/// What will be done, before it is.
fn plan(config: &Config) -> Result<String, String> {
    let Config { url, stock, buyers, concurrency, .. } = config;
    let contract = Adapter::contract().map_err(|error| error.to_string())?;
    let calls = &config.adapter.as_ref().unwrap_or(&contract).setup;
    let calls = calls.iter().map(|call| format!("{} {}", call.method, call.path));
    let calls = calls.collect::<Vec<_>>().join(", ");
    let fault = match (&config.kill, &config.start) {
        (None, None) => String::new(),
        (kill, start) => {
            let commands = [kill, start].into_iter().flatten();
            let commands: Vec<String> = commands.map(|command| format!("`{command}`")).collect();
            format!("; in the middle {}", commands.join(", then "))
        }
    };
    let calls = if calls.is_empty() { "no setup".to_owned() } else { calls };
    Ok(format!(
        "judge: {url}: {calls}; then {buyers} buyers ask for {stock} units, {concurrency} requests \
         at a time, for at most {} s{fault}; a verdict within {} s",
        config.time_limit.as_secs_f64(),
        config.longest().as_secs()
    ))
}

fn complain(words: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{}", plain(&words.to_string()));
}

/// A bar on a terminal; elsewhere a line for each step.
fn shown() -> Progress {
    let bar = match std::io::stderr().is_terminal() {
        true => ProgressBar::new(0),
        false => ProgressBar::hidden(),
    };
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let said_settling = AtomicBool::new(false);
    let line = move |bar: &ProgressBar, words: String| match bar.is_hidden() {
        true => complain(format_args!("judge: {words}")),
        false => bar.println(words),
    };
    Arc::new(move |event| match event {
        Event::Prepared(done, all) => {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
            bar.set_message("buyers prepared");
        }
        Event::Storm(requests) => {
            bar.set_length(requests as u64);
            line(&bar, format!("{requests} requests"));
        }
        Event::Answered(_, counts) => {
            bar.set_position(counts.0.values().sum::<usize>() as u64);
            let [sold, out] = [Meaning::Sold, Meaning::SoldOut].map(|means| counts.of(means));
            bar.set_message(format!("sold {sold}, sold out {out}"));
        }
        Event::Killed => line(&bar, "killed the server".to_owned()),
        Event::Started => line(&bar, "the server answers again".to_owned()),
        Event::Again(left) => line(&bar, format!("{left} units are left: some ask again")),
        Event::Settling(stored) => {
            bar.set_message(format!("{stored} orders stored; waiting for them to come to rest"));
            if !said_settling.swap(true, Relaxed) {
                line(&bar, format!("{stored} orders are stored; waiting until nothing changes"));
            }
        }
    })
}
