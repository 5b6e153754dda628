//! The command line: what will be done, progress, the report, the exit code.

use crate::adapter::{Adapter, Call};
use crate::config::Config;
use crate::event::{Event, Progress};
use crate::history::{History, Meaning};
use crate::report::{Report, Verdict, plain};
use crate::run::{clicks_twice, run};
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
#[command(override_usage = "flash-sale judge <URL> [OPTIONS]\n       \
                            flash-sale judge --history <FILE> [--report <FILE.html>] [--json]")]
pub struct JudgeArgs {
    /// The server, like http://127.0.0.1:9000
    #[arg(required_unless_present = "history")]
    url: Option<String>,
    #[command(flatten)]
    config: Config,
    /// Judge a recorded history, and ask no server
    #[arg(long, value_name = "FILE", conflicts_with_all = ["url", "Config", "save_history"])]
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
    let (report, history) = match judged(&args).await {
        Ok(judged) => judged,
        Err(why) => {
            complain(format_args!("flash-sale: could not judge: {why}"));
            return ExitCode::from(2);
        }
    };
    let text = match args.json {
        true => serde_json::to_string_pretty(&report).unwrap_or_default() + "\n",
        false => report.table(),
    };
    let _ = std::io::stdout().write_all(text.as_bytes());
    if let Err(why) = write_files(&args, &report, &history) {
        complain(format_args!("flash-sale: not written: {why}"));
        return ExitCode::from(2);
    }
    ExitCode::from(match report.verdict {
        Verdict::Held => 0,
        Verdict::Broken => 1,
        Verdict::Undecided => 2,
    })
}

async fn judged(args: &JudgeArgs) -> Result<(Report, History), String> {
    let history = args.history.as_ref().map(|file| History::load(file).map_err(named(file)));
    let history = history.transpose()?;
    // A place that cannot be written to is told before the storm, and an older verdict is gone.
    for file in [&args.report, &args.save_history].into_iter().flatten() {
        File::create(file).map_err(named(file))?;
    }
    if let Some(history) = history {
        return Ok((Report::on(&history), history));
    }
    let url = args.url.clone().unwrap_or_default();
    let config = Config { url, ..args.config.clone() };
    complain(format_args!("{}", plan(&config)?));
    tokio::select! {
        done = run(config, shown()) => done.map_err(|error| error.to_string()),
        _ = tokio::signal::ctrl_c() => Err("interrupted".to_owned()),
    }
}

fn write_files(args: &JudgeArgs, report: &Report, history: &History) -> Result<(), String> {
    if let Some(file) = &args.report {
        let page = report.html().map_err(|error| error.to_string())?;
        std::fs::write(file, page).map_err(named(file))?;
    }
    args.save_history.iter().try_for_each(|file| history.save(file).map_err(named(file)))
}

fn named<E: Display>(file: &Path) -> impl Fn(E) -> String {
    let file = file.display().to_string();
    move |error| format!("{file}: {error}")
}

/// The plan of a run, for the terminal.
fn plan(config: &Config) -> Result<String, String> {
    let Config { url, stock, buyers, concurrency, retries, .. } = config;
    let contract = Adapter::contract().map_err(|error| error.to_string())?;
    let adapter = config.adapter.as_ref().unwrap_or(&contract);
    let in_words = |calls: &[Call]| {
        let calls = calls.iter().map(|call| format!("{} {}", call.method, call.path));
        calls.collect::<Vec<_>>().join(", ")
    };
    let mut steps = vec![match &adapter.setup[..] {
        [] => "no setup".to_owned(),
        calls => in_words(calls),
    }];
    if !adapter.buyer.is_empty() {
        let (calls, each) = (adapter.buyer.len() * buyers, in_words(&adapter.buyer));
        steps.push(format!("{buyers} buyers prepare with {each}: {calls} requests"));
    }
    let twice = (0..*buyers).filter(|number| clicks_twice(*number, config)).count();
    let slow = match config.slow_client {
        0.0 => String::new(),
        share => format!(", {:.0} % of them slowly", share * 100.0),
    };
    steps.push(format!(
        "then {buyers} buyers ask for {stock} units, {twice} of them twice, {concurrency} requests \
         at a time{slow}, for at most {} s; each is sent again up to {retries} times: at most {} \
         requests, and a few more afterwards",
        config.time_limit.as_secs_f64(),
        (buyers + twice * adapter.per_user.min(*stock)) * (retries + 1)
    ));
    if let Some(kill) = &config.kill {
        let start = config.start.as_ref().map(|start| format!(", then `{start}`"));
        steps.push(format!("in the middle `{kill}`{}", start.unwrap_or_default()));
    }
    if config.orders_sql.is_some() {
        steps.push("the stored orders are read by SQL".to_owned());
    }
    let longest = config.longest().as_secs();
    Ok(format!("judge: {url}: {}; a verdict within {longest} s", steps.join("; ")))
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
        Event::Absent => bar.set_message("nobody answers yet"),
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
