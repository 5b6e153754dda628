//! The lab without a browser: what strategies there are, and how each fares under the same storm.

use super::grade::{self, Grade};
use super::{
    Asked, CommandError, OpenLab, Output, export, in_json, new, option, progress, refused,
};
use crate::catalogue::{ArenaOption, StrategyBody, in_words};
use crate::limits::{MOST_NODES, MOST_PER_USER, MOST_STOCK};
use crate::options::GENERAL;
use crate::strategies::{self, STRATEGIES};
use crate::strategy::{Language, Strategy};
use crate::terminal::{complain, print};
use crate::{
    arena::Arena, definition::Wanted, error::LabError, report, service::Lab, storm::Storm,
    trial::Trial,
};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::{fs, io, process::ExitCode};

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
    /// Order numbers: their parts, and how they survive failures, measured and tried now
    Ids(Asked<S>),
    /// Compare all locks: what each promises, and what it costs here
    Locks(Asked<S>),
    /// Write the theatre, the locks, the order numbers and a race of every preset as static pages
    ///
    /// Everything is played here and recorded, so that the pages need no server. They work from any
    /// folder of any host. Exits 2, with nothing written, if the folder has anything in it but an
    /// earlier export, or something could not be recorded.
    #[command(after_help = "For example:\n  flash-sale lab export site\n  \
        python3 -m http.server --directory site 8000     # and open http://127.0.0.1:8000")]
    Export {
        /// A folder that is empty, has an earlier export, or is still to be made
        #[arg(value_name = "DIR")]
        folder: PathBuf,
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
        asked: Asked<S>,
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

fn strategy() -> impl TypedValueParser<Value = &'static Strategy> {
    PossibleValuesParser::new(strategies::all().map(|strategy| strategy.id))
        .try_map(|id| strategies::find(&id).ok_or("no such strategy"))
}

/// `open` makes the lab, once it is known that one is needed.
pub async fn run<S: Args, E: From<CommandError>>(
    command: LabCommand<S>,
    open: impl AsyncFnOnce(&S) -> Result<OpenLab, E>,
) -> Result<ExitCode, E> {
    match command {
        LabCommand::List { strategy, output } => print(&list(strategy, &output)?),
        LabCommand::Ids(Asked { output, store }) => {
            let ids = async |lab: &Lab| lab.theatre.ids(output.lang).await;
            let ids = open(&store).await?.with(ids).await.map_err(refused)?;
            print(&output.shown(&ids, "sections.txt")?);
        }
        LabCommand::Locks(Asked { output, store }) => {
            let locks = async |lab: &Lab| lab.locks(output.lang).await;
            let locks = open(&store).await?.with(locks).await;
            let why = |error| refused(format!("the locks could not be measured: {error}"));
            print(&output.shown(&locks.map_err(why)?, "locks.txt")?);
        }
        LabCommand::Export { folder, store } => {
            export::check(&folder).map_err(refused)?;
            let open = open(&store).await?;
            print(&export::run(&folder, open).await.map_err(refused)?);
        }
        LabCommand::New { name } => print(&new::run(&name)?),
        LabCommand::Grade { strategy, asked: Asked { output, store } } => {
            let graded = async |lab: &Lab| graded(strategy, lab, output.lang).await;
            let graded = open(&store).await?.with(graded).await?;
            print(&output.shown(&graded, "grade.txt")?);
            return Ok(ExitCode::from(u8::from(!graded.holds)));
        }
        LabCommand::Run { run, store } => return storm(*run, &*store, open).await,
    }
    Ok(ExitCode::SUCCESS)
}

async fn graded(
    strategy: &'static Strategy,
    lab: &Lab,
    language: Language,
) -> Result<Grade, CommandError> {
    if let Some(why) = lab.lacks(strategy) {
        return Err(refused(why.say(language)));
    }
    let progress = progress(0);
    let watch = |done: usize, of: usize| {
        progress.set_length(of as u64);
        progress.set_position(done as u64);
    };
    let graded = grade::grade(strategy, lab, language, watch).await;
    progress.finish_and_clear();
    graded.map_err(refused)
}

// ---- lab list ---------------------------------------------------------------------------------

fn list(only: Option<&'static Strategy>, output: &Output) -> Result<String, CommandError> {
    let language = output.lang;
    let chosen = only.map_or(STRATEGIES, std::slice::from_ref).iter();
    let all: Vec<_> =
        chosen.clone().map(|strategy| StrategyBody::of(strategy, None, language)).collect();
    if output.json {
        return Ok(in_json(&all));
    }
    let promised = chosen.map(|Strategy { promise, .. }| {
        [promise.one_node, promise.across_nodes].map(|harms| in_words(&harms, language))
    });
    let general = |option| ArenaOption::of(option, only.map_or("", |only| only.id), language);
    let about = json!({
        "strategies": all,
        "promised": promised.collect::<Vec<_>>(),
        "general": GENERAL.iter().map(general).collect::<Vec<_>>(),
    });
    let template = if only.is_some() { "strategy.txt" } else { "strategies.txt" };
    output.shown(&about, template)
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
        // All lanes have this option: their labels leave it out.
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

/// The counter decides, whether the lock in front of it is there or not.
const COUNTER_BEHIND_A_LOCK: &str = "lock-and-hincrby";

const WHAT_THE_LOCK_BUYS: &[&[(&str, &str)]] = &[
    &[("lock", "off"), ("interleave", "off")],
    &[("lock", "on"), ("interleave", "off")],
    &[("lock", "on"), ("wait_ms", "0"), ("interleave", "off")],
];

/// One lane and its run; `Err` says why it was not run.
type Row = (Lane, Result<report::Run, String>);

async fn storm<S, E: From<CommandError>>(
    args: RunArgs,
    store: &S,
    open: impl AsyncFnOnce(&S) -> Result<OpenLab, E>,
) -> Result<ExitCode, E> {
    let lanes = args.lanes();
    check(&args, &lanes).map_err(refused)?;
    let language = args.output.lang;
    let cannot_write = |file: &Path, error: io::Error| {
        refused(format!("cannot write {}: {error}", file.display()))
    };
    if let Some(file) = &args.report {
        // Before the runs: they take a while.
        let opened = fs::OpenOptions::new().append(true).create(true).open(file);
        opened.map_err(|error| cannot_write(file, error))?;
    }
    let ran = async |lab: &Lab| run_all(lanes, lab, language).await;
    let rows = open(store).await?.with(ran).await.map_err(refused)?;
    print(&shown(&args, &rows)?);
    if let Some(file) = &args.report {
        let runs: Vec<_> = rows.iter().filter_map(|(_, run)| run.clone().ok()).collect();
        let page = report::render(&runs, &report::About::here(), language).map_err(refused)?;
        fs::write(file, page).map_err(|error| cannot_write(file, error))?;
        complain!("{} is written", file.display());
    }
    if rows.iter().all(|(_, run)| run.is_err()) {
        return Ok(ExitCode::from(2));
    }
    let is_broken = |(_, run): &Row| run.as_ref().is_ok_and(|run| !run.verdict.kept_promise);
    Ok(ExitCode::from(u8::from(rows.iter().any(is_broken))))
}

async fn run_all(lanes: Vec<Lane>, lab: &Lab, language: Language) -> Result<Vec<Row>, LabError> {
    let progress = progress(lanes.len());
    let mut rows = Vec::new();
    for lane in lanes {
        progress.set_message(lane.label.clone());
        let watch = |arena: &Arena| {
            let done = arena.tally.counts().attempts;
            progress.set_message(format!("{} {done}/{}", lane.label, arena.storm.of()));
        };
        let outcome = match lane.trial.run(lab, language, watch).await {
            Ok(verdict) => Ok(report::Run {
                verdict,
                options: lane.trial.wanted.definition()?.options.0,
                storm: Some(lane.trial.storm),
                alone: true,
            }),
            Err(LabError::StrategyUnavailable(why)) => Err(why.say(language).to_owned()),
            Err(error @ LabError::Invalid { .. }) => Err(error.to_string()),
            Err(error) => return Err(error),
        };
        progress.inc(1);
        rows.push((lane, outcome));
    }
    progress.finish_and_clear();
    Ok(rows)
}

/// Refuses options that no lane can run with.
fn check(args: &RunArgs, lanes: &[Lane]) -> Result<(), String> {
    let mut asked = args.option.iter().map(|(name, _)| name).filter(|_| args.with_and_without_lock);
    let is_own = |asked: &&String| {
        WHAT_THE_LOCK_BUYS.iter().flat_map(|own| *own).any(|(name, _)| name == *asked)
    };
    if let Some(name) = asked.find(is_own) {
        return Err(format!("--with-and-without-lock sets {name} itself"));
    }
    args.storm.check().map_err(|error| error.to_string())?;
    // One strategy may lack an option; if all of the chosen lack it, it is a mistake.
    let refusals = lanes.iter().filter_map(|lane| lane.trial.wanted.definition().err());
    let refusals: Vec<_> = refusals.collect();
    match (&refusals[..], lanes) {
        ([refusal], [_]) => Err(refusal.to_string()),
        ([.., refusal], _) if refusals.len() == lanes.len() => {
            Err(format!("none of these strategies can be run with these options: {refusal}"))
        }
        _ => Ok(()),
    }
}

fn shown(args: &RunArgs, rows: &[Row]) -> Result<String, CommandError> {
    let body = |(lane, outcome): &Row| match outcome {
        Ok(run) => {
            let mut row = json!(run.verdict);
            row["run"] = Value::from(lane.label.clone());
            row
        }
        Err(why) => json!({"strategy": lane.strategy.id, "not_run": why}),
    };
    let bodies: Vec<Value> = rows.iter().map(body).collect();
    if args.output.json {
        return Ok(in_json(&bodies));
    }
    let (language, nodes) = (args.output.lang, u32::try_from(args.nodes).unwrap_or(1));
    let lane = |(Lane { strategy, label, .. }, outcome): &Row| {
        let verdict = outcome.as_ref().ok().map(|run| run.verdict.in_words(language));
        let promise = in_words(strategy.promise.on(nodes), language);
        json!({"label": label, "promise": promise, "verdict": verdict})
    };
    let about = json!({
        "rows": bodies,
        "lanes": rows.iter().map(lane).collect::<Vec<_>>(),
        "forced": args.option.iter().all(|(name, _)| name != "interleave"),
    });
    let template = if args.with_and_without_lock { "lock_buys.txt" } else { "run.txt" };
    args.output.shown(&about, template)
}
