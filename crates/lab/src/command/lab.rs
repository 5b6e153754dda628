//! The lab without a browser: what strategies there are, and how each fares under the same storm.

use super::{CommandError, OpenLab, Output, grade, in_json, new, option, table};
use crate::{
    Lab, LabError, MOST_NODES, MOST_PER_USER, MOST_STOCK, STRATEGIES, Strategy, Trial, Wanted,
    arena::Arena,
    catalogue::{OptionBody, StrategyBody, in_words},
    lessons::terminal::sections,
    lock_comparison,
    options::{BadOption, GENERAL, Options},
    report,
    storm::Storm,
    strategies,
    strategy::{Language, Words},
    templates,
    terminal::{complain, print},
    verdict::Verdict,
};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::{Value, json};
use std::{
    fmt::Display,
    io::{self, IsTerminal},
    path::{Path, PathBuf},
    process::ExitCode,
};

#[derive(Subcommand)]
pub enum LabCommand<S: Args> {
    /// Every strategy: what it is, what it promises, how it fails
    List {
        /// Only this one, with everything there is to say about it
        #[arg(value_name = "STRATEGY", value_parser = strategy())]
        strategy: Option<&'static Strategy>,
        #[command(flatten)]
        output: Output,
    },
    /// What is in an order number, and what can happen to it: measured and tried here and now
    Ids {
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        store: Box<S>,
    },
    /// Compare all locks: what each promises, and what it costs here
    Locks {
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        store: Box<S>,
    },
    /// Write a strategy of your own, which compiles and oversells (docs/exercises.md)
    New {
        /// Its name, like my-idea
        #[arg(value_parser = new::name)]
        name: String,
    },
    /// Storm one strategy in every case that all have to go through: what holds, and what breaks?
    /// Exits 1 if it does not keep its promise
    Grade {
        #[arg(value_name = "STRATEGY", value_parser = strategy())]
        strategy: &'static Strategy,
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        store: Box<S>,
    },
    /// Storm strategies, one after the other, on the same stock. Exits 1 if one broke its promise
    Run {
        #[command(flatten)]
        run: Box<RunArgs>,
        #[command(flatten)]
        store: Box<S>,
    },
}

#[derive(Args)]
pub struct RunArgs {
    /// Which strategy; may be given several times
    #[arg(long, value_name = "ID", value_parser = strategy(), required_unless_present_any = ["all",
        "with_and_without_lock"])]
    strategy: Vec<&'static Strategy>,
    /// All that this machine can run
    #[arg(long, conflicts_with = "strategy")]
    all: bool,
    /// What does a lock in front of the counter buy? The same sale without it and with it
    #[arg(long, conflicts_with_all = ["all", "strategy"])]
    with_and_without_lock: bool,
    /// Units of each arena
    #[arg(long, value_name = "S", default_value_t = 100, value_parser =
        clap::value_parser!(i64).range(1..=MOST_STOCK))]
    stock: i64,
    #[command(flatten)]
    storm: Storm,
    /// How many servers sell it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser =
        clap::value_parser!(i64).range(1..=MOST_NODES))]
    nodes: i64,
    /// How many one buyer may have
    #[arg(long, value_name = "N", default_value_t = 1, value_parser =
        clap::value_parser!(i64).range(1..=MOST_PER_USER))]
    per_user_limit: i64,
    /// How long the decision takes between looking and writing [default: 0]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(i64).range(0..=2_000))]
    work_ms: Option<i64>,
    /// A knob of the arena, like retries=0; may be given several times. A strategy that does not
    /// have it is not run. `lab list ID` says which there are
    #[arg(long, value_name = "NAME=VALUE", value_parser = option)]
    option: Vec<(String, String)>,
    /// Write a page with charts
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

fn strategy() -> impl clap::builder::TypedValueParser<Value = &'static Strategy> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    PossibleValuesParser::new(strategies::all().map(|strategy| strategy.id))
        .try_map(|id| strategies::find(&id).ok_or("no such strategy"))
}

/// `open` makes the lab, once it is known that one is needed.
pub async fn run<S: Args, E: From<CommandError>>(
    command: LabCommand<S>,
    open: impl AsyncFnOnce(&S) -> Result<OpenLab, E>,
) -> Result<ExitCode, E> {
    match command {
        LabCommand::List { strategy, output } => {
            print(&list(strategy, &output));
            Ok(ExitCode::SUCCESS)
        }
        LabCommand::Ids { output, store } => {
            let open = open(&store).await?;
            let told = open.lab.theatre.ids(output.language()).await;
            open.close().await;
            Ok(tell(told, output.json, |body| sections(&body.sections)))
        }
        LabCommand::Locks { output, store } => {
            let open = open(&store).await?;
            let compared = open.lab.locks(output.language()).await;
            open.close().await;
            let compared =
                compared.map_err(|error| format!("the locks could not be measured: {error}"));
            Ok(tell(compared, output.json, lock_comparison::in_words))
        }
        LabCommand::New { name } => Ok(new::run(&name)),
        LabCommand::Grade { strategy, output, store } => {
            let open = open(&store).await?;
            let graded = graded(strategy, &open.lab, &output).await;
            open.close().await;
            Ok(graded)
        }
        LabCommand::Run { run, store } => storm(*run, *store, open).await,
    }
}

fn tell<T: Serialize, E: Display>(
    result: Result<T, E>,
    as_json: bool,
    in_words: impl FnOnce(&T) -> String,
) -> ExitCode {
    match result {
        Ok(body) if as_json => print(&in_json(&body)),
        Ok(body) => print(&in_words(&body)),
        Err(error) => {
            complain!("flash-sale: {error}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

// ---- lab grade --------------------------------------------------------------------------------

async fn graded(strategy: &'static Strategy, lab: &Lab, output: &Output) -> ExitCode {
    let language = output.language();
    let progress = progress(0);
    let watch = |done: usize, of: usize| {
        progress.set_length(of as u64);
        progress.set_position(done as u64);
    };
    let graded = match lab.lacks(strategy) {
        Some(why) => Err(why.say(language).to_owned()),
        None => {
            let graded = grade::grade(strategy, lab, language, watch).await;
            graded.map_err(|error| error.to_string())
        }
    };
    progress.finish_and_clear();
    let holds = graded.as_ref().is_ok_and(|grade| grade.holds);
    let told = tell(graded, output.json, |grade| grade.in_words(language));
    if told == ExitCode::SUCCESS && !holds { ExitCode::from(1) } else { told }
}

// ---- lab list ---------------------------------------------------------------------------------

fn list(only: Option<&'static Strategy>, output: &Output) -> String {
    let language = output.language();
    let of = |strategy| StrategyBody::of(strategy, None, language);
    let chosen = only.map_or(STRATEGIES, std::slice::from_ref).iter();
    if output.json {
        return in_json(&chosen.map(of).collect::<Vec<_>>());
    }
    let promised = |strategy: &Strategy| {
        let promise = strategy.promise;
        [promise.one_node, promise.across_nodes].map(|harms| in_words(&harms, language))
    };
    if let Some(strategy) = only {
        let general = GENERAL.iter().map(|option| OptionBody::of(option, strategy.id, language));
        let promised = promised(strategy);
        let about = json!({"strategy": of(strategy), "promised": promised, "general":
            general.collect::<Vec<_>>()});
        return templates::render("strategy.txt", language, &about) + "\n";
    }
    let mut rows = vec![["", "strategy", "one node", "across nodes", "title"].map(str::to_owned)];
    rows.extend(chosen.map(|strategy| {
        let [one_node, across_nodes] = promised(strategy);
        let title = of(strategy).title.to_owned();
        [strategy.number.to_string(), strategy.id.to_owned(), one_node, across_nodes, title]
    }));
    table(&rows, &[1, 2, 3, 4])
}

// ---- lab run ----------------------------------------------------------------------------------

/// One strategy with all options, on the stock that was asked for.
struct Lane {
    strategy: &'static Strategy,
    label: String,
    trial: Trial,
}

impl RunArgs {
    fn lanes(&self) -> Vec<Lane> {
        if self.with_and_without_lock {
            let strategy = strategies::find(COUNTER_BEHIND_A_LOCK);
            let each = WHAT_THE_LOCK_BUYS.iter();
            return each.filter_map(|options| Some(self.lane(strategy?, options))).collect();
        }
        let chosen: Vec<&'static Strategy> =
            if self.all { STRATEGIES.iter().collect() } else { self.strategy.clone() };
        chosen.into_iter().map(|strategy| self.lane(strategy, &[])).collect()
    }

    fn lane(&self, strategy: &'static Strategy, own: &[(&str, &str)]) -> Lane {
        // What is the same in all lanes is not worth a word.
        let said = own.iter().filter(|(name, _)| *name != "interleave");
        let said = said.map(|(name, value)| format!(" {name}={value}")).collect::<String>();
        let own = own.iter().map(|(name, value)| ((*name).to_owned(), Value::from(*value)));
        let asked = self.option.iter();
        let asked = asked.map(|(name, value)| (name.clone(), Value::from(value.clone())));
        let wanted = Wanted {
            strategy: strategy.id.to_owned(),
            stock: self.stock,
            nodes: Some(self.nodes),
            per_user_limit: Some(self.per_user_limit),
            work_ms: self.work_ms,
            options: own.chain(asked).collect(),
        };
        let trial = Trial { wanted, storm: self.storm };
        Lane { strategy, label: format!("{}{said}", strategy.id), trial }
    }
}

impl Lane {
    fn options(&self) -> Result<Options, BadOption> {
        Options::read(self.strategy, &self.trial.wanted.all_options())
    }
}

/// The counter decides, whether the lock in front of it is there or not.
const COUNTER_BEHIND_A_LOCK: &str = "lock-and-hincrby";

const WHAT_THE_LOCK_BUYS: &[&[(&str, &str)]] = &[
    &[("lock", "off"), ("interleave", "off")],
    &[("lock", "on"), ("interleave", "off")],
    &[("lock", "on"), ("wait_ms", "0"), ("interleave", "off")],
];

/// What came of one lane; `Err` says why it was not run.
type Row = (Lane, Result<Verdict, String>);

async fn storm<S, E: From<CommandError>>(
    args: RunArgs,
    store: S,
    open: impl AsyncFnOnce(&S) -> Result<OpenLab, E>,
) -> Result<ExitCode, E> {
    let lanes = args.lanes();
    if let Err(refusal) = check(&args, &lanes) {
        complain!("flash-sale: {refusal}");
        return Ok(ExitCode::from(2));
    }
    if let Some(file) = &args.report {
        // Now, and not after all has been run.
        writable(file)?;
    }
    let language = args.output.language();
    let open = open(&store).await?;
    let progress = progress(lanes.len());
    let mut rows: Vec<Row> = Vec::new();
    for lane in lanes {
        progress.set_message(lane.label.clone());
        let watch = |arena: &Arena| {
            let done = arena.tally.counts().attempts;
            progress.set_message(format!("{} {done}/{}", lane.label, arena.storm.of()));
        };
        let outcome = match lane.trial.run(&open.lab, language, watch).await {
            Ok(verdict) => Ok(verdict),
            Err(LabError::StrategyUnavailable(why)) => Err(why.say(language).to_owned()),
            Err(error @ LabError::BadOption(_)) => Err(error.to_string()),
            Err(error) => {
                progress.finish_and_clear();
                open.close().await;
                return Err(CommandError::from(error).into());
            }
        };
        progress.inc(1);
        rows.push((lane, outcome));
    }
    progress.finish_and_clear();
    open.close().await;
    print(&shown(&args, &rows));
    if let Some(file) = &args.report {
        let page = report::render(&runs(&rows), &report::About::here(), language);
        std::fs::write(file, page).map_err(cannot_write(file))?;
        complain!("{} is written", file.display());
    }
    let broken =
        rows.iter().any(|(_, row)| row.as_ref().is_ok_and(|verdict| !verdict.kept_promise));
    Ok(if broken { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// Why this cannot be run.
fn check(args: &RunArgs, lanes: &[Lane]) -> Result<(), String> {
    let mut asked = args.option.iter().map(|(name, _)| name).filter(|_| args.with_and_without_lock);
    let is_own = |asked: &&String| {
        WHAT_THE_LOCK_BUYS.iter().flat_map(|own| *own).any(|(name, _)| name == *asked)
    };
    if let Some(name) = asked.find(is_own) {
        return Err(format!("--with-and-without-lock sets {name} itself"));
    }
    args.storm.check().map_err(|error| error.to_string())?;
    // What one strategy does not have, others may; what none of the chosen has is a mistake.
    let refusals: Vec<_> = lanes.iter().filter_map(|lane| lane.options().err()).collect();
    match (&refusals[..], lanes) {
        ([refusal], [_]) => Err(refusal.to_string()),
        ([.., refusal], _) if refusals.len() == lanes.len() => {
            Err(format!("none of these strategies can be run with these options: {refusal}"))
        }
        _ => Ok(()),
    }
}

/// Makes the file, or says why it cannot be.
fn writable(file: &Path) -> Result<(), CommandError> {
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(file);
    opened.map(|_| ()).map_err(cannot_write(file))
}

fn cannot_write(file: &Path) -> impl FnOnce(io::Error) -> CommandError {
    let action = format!("write {}", file.display());
    |source| CommandError::Io { action, source }
}

/// What was run, for the report.
fn runs(rows: &[Row]) -> Vec<report::Run> {
    let run = |(lane, outcome): &Row| {
        Some(report::Run {
            verdict: outcome.clone().ok()?,
            options: lane.options().ok()?.0,
            storm: Some(lane.trial.storm),
        })
    };
    rows.iter().filter_map(run).collect()
}

fn progress(length: usize) -> ProgressBar {
    let bar = if io::stderr().is_terminal() {
        ProgressBar::new(length as u64)
    } else {
        ProgressBar::hidden()
    };
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    bar
}

fn shown(args: &RunArgs, rows: &[Row]) -> String {
    let language = args.output.language();
    if args.output.json {
        let all = rows.iter().map(|(lane, row)| match row {
            Ok(verdict) => {
                let mut row = json!(verdict);
                row["run"] = Value::from(lane.label.clone());
                row
            }
            Err(why) => json!({"strategy": lane.strategy.id, "not_run": why}),
        });
        return in_json(&all.collect::<Vec<_>>());
    }
    if args.with_and_without_lock {
        // Costs instead of harms: the counter lets none happen.
        let costs = compared(rows, language, &[""], COSTS, |lane| vec![lane.label.clone()]);
        return format!("{costs}\n{}\n", templates::render("lock_buys", language, &()));
    }
    let nodes = u32::try_from(args.nodes).unwrap_or(1);
    let mut shown = compared(rows, language, &["strategy", "promise"], HARMS, |lane| {
        vec![lane.strategy.id.to_owned(), in_words(lane.strategy.promise.on(nodes), language)]
    });
    if args.option.iter().all(|(name, _)| name != "interleave") {
        shown += Words::new(
            "\nInterleavings were forced: buyers wait for each other, a second once in a sound \
             strategy. To compare speeds: --option interleave=off\n",
            "\n交错是强制的：买家会互相等待，可靠的策略也会为此付出一次约一秒。比较速度请用：\
             --option interleave=off\n",
        )
        .say(language);
    }
    // One strategy is one lesson: say it.
    if let [(_, Ok(verdict))] = rows {
        shown += &format!("\n{}\n", verdict.explanation);
        for (note, count) in &verdict.notes {
            shown += &format!("  {count} x {note}\n");
        }
    }
    shown
}

/// A column of figures.
type Column = (&'static str, fn(&Verdict) -> String);

const SOLD: Column = ("sold", |verdict| verdict.sold.to_string());
const OVERSOLD: Column = ("oversold", |verdict| verdict.oversold.to_string());
const CONTENDED: Column = ("contended", |verdict| verdict.contended.to_string());
const RATE: Column = ("attempts/s", |verdict| format!("{:.0}", verdict.throughput_per_s));
const P99: Column = ("p99 ms", |verdict| format!("{:.1}", verdict.latency_ms.p99));
const HARMS: &[Column] = &[
    SOLD,
    OVERSOLD,
    ("undersold", |verdict| verdict.undersold.to_string()),
    ("duplicates", |verdict| verdict.duplicates.to_string()),
    CONTENDED,
    ("failed", |verdict| verdict.failed.to_string()),
    RATE,
    P99,
];
const COSTS: &[Column] = &[
    SOLD,
    OVERSOLD,
    CONTENDED,
    ("let through", |verdict| {
        verdict.notes.get("let through to the counter").unwrap_or(&0).to_string()
    }),
    ("Redis each", |verdict| format!("{:.2}", verdict.round_trips.redis)),
    RATE,
    P99,
];

/// A line for each lane: what it is, its figures, its verdict.
fn compared(
    rows: &[Row],
    language: Language,
    heads: &[&str],
    columns: &[Column],
    lane_in_words: impl Fn(&Lane) -> Vec<String>,
) -> String {
    let heads = heads.iter().chain(columns.iter().map(|(head, _)| head)).chain(&["verdict"]);
    let mut lines = vec![heads.map(|head| (*head).to_owned()).collect::<Vec<_>>()];
    let mut left = vec![lines[0].len() - 1];
    for (lane, row) in rows {
        let mut cells = lane_in_words(lane);
        left.extend(0..cells.len());
        match row {
            Err(why) => cells.push(format!("not run: {why}")),
            Ok(verdict) => {
                cells.extend(columns.iter().map(|(_, figure)| figure(verdict)));
                cells.push(verdict.in_words(language));
            }
        }
        lines.push(cells);
    }
    table(&lines, &left)
}
