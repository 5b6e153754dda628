//! The lab without a browser: what strategies there are, and how each fares under the same storm.

use super::{CommandError, LanguageArg, OpenLab, in_json, option};
use crate::{
    LabError, MOST_NODES, MOST_PER_USER, MOST_STOCK, STRATEGIES, Strategy, Trial, Wanted,
    arena::Arena,
    lessons::terminal::sections,
    lock_comparison,
    options::Options,
    report,
    storm::{MOST_AT_ONCE, MOST_BUYERS, Storm},
    strategies,
    strategy::{Harms, Language, Likelihood, Words},
    terminal::{self, complain, say},
    verdict::Verdict,
};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::{Map, Value, json};
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
        /// The language of the texts
        #[arg(long, value_enum, default_value_t = LanguageArg::En)]
        lang: LanguageArg,
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
    /// What is in an order number, and what can happen to it: measured and tried here and now
    Ids {
        /// The language of the texts
        #[arg(long, value_enum, default_value_t = LanguageArg::En)]
        lang: LanguageArg,
        /// Print JSON, as GET /api/v1/lab/ids answers
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        store: Box<S>,
    },
    /// Compare all locks: what each promises, and what it costs here
    Locks {
        /// The language of the texts
        #[arg(long, value_enum, default_value_t = LanguageArg::En)]
        lang: LanguageArg,
        /// Print JSON, as GET /api/v1/lab/locks answers
        #[arg(long)]
        json: bool,
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
    /// How many people want one
    #[arg(long, value_name = "B", default_value_t = 1_000, value_parser =
        clap::value_parser!(u32).range(1..=i64::from(MOST_BUYERS)))]
    buyers: u32,
    /// How many of them at a time
    #[arg(long, value_name = "C", default_value_t = 100, value_parser =
        clap::value_parser!(u32).range(1..=i64::from(MOST_AT_ONCE)))]
    concurrency: u32,
    /// How many servers sell it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser =
        clap::value_parser!(i64).range(1..=MOST_NODES))]
    nodes: i64,
    /// How many one buyer may have
    #[arg(long, value_name = "N", default_value_t = 1, value_parser =
        clap::value_parser!(i64).range(1..=MOST_PER_USER))]
    per_user_limit: i64,
    /// Of all buyers, how many click twice: 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    duplicate_share: f64,
    /// How long the decision takes between looking and writing [default: 0]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(i64).range(0..=2_000))]
    work_ms: Option<i64>,
    /// A knob of the arena, like retries=0; may be given several times. A strategy that does not
    /// have it is not run. `lab list ID` says which there are
    #[arg(long, value_name = "NAME=VALUE", value_parser = option)]
    option: Vec<(String, String)>,
    /// Print a JSON array of verdicts
    #[arg(long)]
    json: bool,
    /// Write a page with charts
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// The language of the texts
    #[arg(long, value_enum, default_value_t = LanguageArg::En)]
    lang: LanguageArg,
}

fn strategy() -> impl clap::builder::TypedValueParser<Value = &'static Strategy> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    PossibleValuesParser::new(STRATEGIES.iter().map(|strategy| strategy.id))
        .try_map(|id| strategies::find(&id).ok_or("no such strategy"))
}

fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err("must be from 0 to 1".to_owned()) }
}

/// `open` makes the lab, once it is known that one is needed.
pub async fn run<S: Args, E: From<CommandError>>(
    command: LabCommand<S>,
    open: impl AsyncFnOnce(&S) -> Result<OpenLab, E>,
) -> Result<ExitCode, E> {
    match command {
        LabCommand::List { strategy, lang, json } => {
            list(strategy, lang.into(), json);
            Ok(ExitCode::SUCCESS)
        }
        LabCommand::Ids { lang, json, store } => {
            let open = open(&store).await?;
            let told = open.lab.theatre.ids(lang.into()).await;
            open.close().await;
            Ok(tell(told, json, |body| sections(&body.sections)))
        }
        LabCommand::Locks { lang, json, store } => {
            let open = open(&store).await?;
            let compared = open.lab.locks(lang.into()).await;
            open.close().await;
            let compared =
                compared.map_err(|error| format!("the locks could not be measured: {error}"));
            Ok(tell(compared, json, lock_comparison::in_words))
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
        Ok(body) if as_json => terminal::print(&in_json(&body)),
        Ok(body) => terminal::print(&in_words(&body)),
        Err(error) => {
            complain!("flash-sale: {error}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

// ---- lab list ---------------------------------------------------------------------------------

fn list(only: Option<&'static Strategy>, language: Language, as_json: bool) {
    let chosen: Vec<&Strategy> = match only {
        Some(strategy) => vec![strategy],
        None => STRATEGIES.iter().collect(),
    };
    if as_json {
        let all: Vec<Value> =
            chosen.iter().map(|strategy| strategy_in_json(strategy, language)).collect();
        say!("{:#}", Value::Array(all));
        return;
    }
    if only.is_none() {
        say!("{:>3}  {:<28} {:<44} {:<44} title", "", "strategy", "one node", "across nodes");
    }
    for strategy in chosen {
        if only.is_some() {
            describe(strategy, language);
        } else {
            say!(
                "{:>3}  {:<28} {:<44} {:<44} {}",
                strategy.number,
                strategy.id,
                in_words(&strategy.promise.one_node, language),
                in_words(&strategy.promise.across_nodes, language),
                strategy.title(language)
            );
        }
    }
}

fn describe(strategy: &Strategy, language: Language) {
    let zh = language == Language::Zh;
    say!("{}. {}: {}", strategy.number, strategy.id, strategy.title(language));
    let said: [(&str, &str, &str); 5] = [
        ("The idea", "思路", "Idea"),
        ("Where it comes from", "出处", "Source"),
        ("How it fails", "怎样失败", "How it fails"),
        ("Break it yourself", "自己动手打破它", "Break it"),
        ("What to use instead", "该用什么", "Instead"),
    ];
    for (head, chinese_head, section) in said {
        say!("\n{}\n  {}", if zh { chinese_head } else { head }, strategy.says(section, language));
    }
    say!(
        "\n{}\n  {}: {}\n  {}: {}",
        if zh { "承诺" } else { "Promise" },
        if zh { "单节点" } else { "one node" },
        in_words(&strategy.promise.one_node, language),
        if zh { "多节点" } else { "across nodes" },
        in_words(&strategy.promise.across_nodes, language),
    );
    say!("\n{}", if zh { "选项" } else { "Options" });
    for option in strategy.options.iter().chain(crate::options::GENERAL) {
        say!("  {} ({}): {}", option.name, option.kind, option.teaches(strategy.id, language));
    }
    if !strategy.crash_points.is_empty() {
        say!("  crash_at = {}", strategy.crash_points.join(" | "));
    }
    say!("\n{}", strategy.purchase_code());
}

fn strategy_in_json(strategy: &Strategy, language: Language) -> Value {
    json!({
        "number": strategy.number,
        "id": strategy.id,
        "title": strategy.title(language),
        "family": strategy.family,
        "idea": strategy.says("Idea", language),
        "source": strategy.says("Source", language),
        "fails": strategy.says("How it fails", language),
        "break_it": strategy.says("Break it", language),
        "instead": strategy.says("Instead", language),
        "promise": {"one_node": strategy.promise.one_node,
            "across_nodes": strategy.promise.across_nodes},
        "needs": strategy.needs.iter().map(|need| need.name()).collect::<Vec<_>>(),
        "code": strategy.purchase_code(),
    })
}

fn in_words(harms: &Harms, language: Language) -> String {
    const EXPECTED: [Words; 3] = [
        Words::new("oversells", "会超卖"),
        Words::new("undersells", "会少卖"),
        Words::new("sells twice", "会重复卖"),
    ];
    const POSSIBLE: [Words; 3] = [
        Words::new("may oversell", "可能超卖"),
        Words::new("may undersell", "可能少卖"),
        Words::new("may sell twice", "可能重复卖"),
    ];
    let all = harms.each().into_iter().enumerate();
    let said = all.filter_map(|(harm, (_, likelihood))| match likelihood {
        Likelihood::Never => None,
        Likelihood::Possible => Some(POSSIBLE[harm].say(language)),
        Likelihood::Expected => Some(EXPECTED[harm].say(language)),
    });
    let said: Vec<&str> = said.collect();
    match (said.is_empty(), language) {
        (true, _) => Words::new("holds", "可靠").say(language).to_owned(),
        (false, Language::En) => said.join(", "),
        (false, Language::Zh) => said.join("、"),
    }
}

// ---- lab run ----------------------------------------------------------------------------------

/// One strategy, with options of its own besides those that were asked for.
#[derive(Clone, Copy)]
struct Lane {
    strategy: &'static Strategy,
    options: &'static [(&'static str, &'static str)],
}

impl Lane {
    fn sets(&self, option: &str) -> bool {
        self.options.iter().any(|(name, _)| *name == option)
    }

    fn label(&self) -> String {
        // What is the same in all lanes is not worth a word.
        let options = self.options.iter().filter(|(name, _)| *name != "interleave");
        let options = options.map(|(name, value)| format!(" {name}={value}"));
        format!("{}{}", self.strategy.id, options.collect::<String>())
    }
}

impl RunArgs {
    fn lanes(&self) -> Vec<Lane> {
        if self.with_and_without_lock {
            return WHAT_THE_LOCK_BUYS_LANES
                .iter()
                .filter_map(|options| {
                    let strategy = strategies::find(COUNTER_BEHIND_A_LOCK)?;
                    Some(Lane { strategy, options })
                })
                .collect();
        }
        let chosen: Vec<&'static Strategy> =
            if self.all { STRATEGIES.iter().collect() } else { self.strategy.clone() };
        let lanes = chosen.into_iter().map(|strategy| Lane { strategy, options: &[] });
        lanes.collect()
    }

    fn trial(&self, lane: Lane) -> Trial {
        let Lane { strategy, .. } = lane;
        let own = lane.options.iter();
        let own = own.map(|(name, value)| ((*name).to_owned(), Value::from(*value)));
        let asked = self.option.iter();
        let asked = asked.map(|(name, value)| (name.clone(), Value::from(value.clone())));
        let mut options: Map<String, Value> = own.chain(asked).collect();
        if let Some(work_ms) = self.work_ms {
            options.insert("work_ms".to_owned(), work_ms.into());
        }
        Trial {
            wanted: Wanted {
                strategy: strategy.id.to_owned(),
                stock: self.stock,
                nodes: self.nodes,
                per_user_limit: self.per_user_limit,
                options,
            },
            storm: Storm {
                buyers: self.buyers,
                concurrency: self.concurrency,
                duplicate_share: self.duplicate_share,
            },
        }
    }
}

/// The counter decides, whether the lock in front of it is there or not.
const COUNTER_BEHIND_A_LOCK: &str = "lock-and-hincrby";

const WHAT_THE_LOCK_BUYS_LANES: &[&[(&str, &str)]] = &[
    &[("lock", "off"), ("interleave", "off")],
    &[("lock", "on"), ("interleave", "off")],
    &[("lock", "on"), ("wait_ms", "0"), ("interleave", "off")],
];

const WHAT_THE_LOCK_BUYS: Words = Words::new(
    "The counter decides in all three, so none oversells. Without the lock everybody reaches it, \
     and it answers. With the lock they come one after the other: more round trips for each \
     purchase, and everybody waits in line. With wait_ms=0 nobody waits: few reach the counter, \
     and most are told to try again although there is stock. That is all a lock buys here: less \
     traffic for what stands behind. If what stands behind can take the traffic, it buys nothing.",
    "三次都由计数器裁决，所以都不会超卖。不加锁：人人都到计数器，它直接给出答复。加锁：一个接一个，每次购买多花往返，人人排队。wait_ms=0：谁也不等，到得了计数器的只有少数，其余的人明明\
     有货也被请去重试。锁在这里换来的只有一样：后面承受的流量少了。如果后面扛得住，这把锁什么也没换来。",
);

/// What came of one lane; `Err` says why it was not run.
type Row = (Lane, Result<Verdict, String>);

async fn storm<S, E: From<CommandError>>(
    args: RunArgs,
    store: S,
    open: impl AsyncFnOnce(&S) -> Result<OpenLab, E>,
) -> Result<ExitCode, E> {
    let lanes = args.lanes();
    if args.with_and_without_lock
        && let Some((name, _)) =
            args.option.iter().find(|(name, _)| lanes.iter().any(|lane| lane.sets(name)))
    {
        complain!("flash-sale: --with-and-without-lock sets {name} itself");
        return Ok(ExitCode::from(2));
    }
    if let Some(file) = &args.report {
        // Now, and not after all has been run.
        writable(file)?;
    }
    // What one strategy does not have, others may; what none of the chosen has is a mistake.
    let refusal =
        |lane: &Lane| Options::read(lane.strategy, &args.trial(*lane).wanted.options).err();
    let mut refusals: Vec<_> = lanes.iter().filter_map(refusal).collect();
    if refusals.len() == lanes.len()
        && let Some(refusal) = refusals.pop()
    {
        match &lanes[..] {
            [_] => complain!("flash-sale: {refusal}"),
            _ => complain!(
                "flash-sale: none of these strategies can be run with these options: {refusal}"
            ),
        }
        return Ok(ExitCode::from(2));
    }
    let open = open(&store).await?;
    let progress = progress(lanes.len());
    let mut rows: Vec<Row> = Vec::new();
    for lane in lanes {
        progress.set_message(lane.label());
        let outcome = match open.lab.lacks(lane.strategy) {
            Some(why) => Err(why.say(args.lang.into()).to_owned()),
            None => {
                let watch = |arena: &Arena| {
                    let counts = arena.tally.counts();
                    progress.set_message(format!(
                        "{} {}/{}",
                        lane.label(),
                        counts.attempts,
                        arena.storm.of()
                    ));
                };
                match args.trial(lane).run(&open.lab, args.lang.into(), watch).await {
                    Ok(verdict) => Ok(verdict),
                    Err(error @ (LabError::BadOption(_) | LabError::StrategyUnavailable(_))) => {
                        Err(error.to_string())
                    }
                    Err(error) => {
                        progress.finish_and_clear();
                        open.close().await;
                        return Err(CommandError::from(error).into());
                    }
                }
            }
        };
        progress.inc(1);
        rows.push((lane, outcome));
    }
    progress.finish_and_clear();
    open.close().await;
    print(&args, &rows);
    if let Some(file) = &args.report {
        let page = report::render(&runs(&args, &rows), &report::About::here(), args.lang.into());
        std::fs::write(file, page).map_err(cannot_write(file))?;
        complain!("{} is written", file.display());
    }
    let broken =
        rows.iter().any(|(_, row)| row.as_ref().is_ok_and(|verdict| !verdict.kept_promise));
    Ok(if broken { ExitCode::from(1) } else { ExitCode::SUCCESS })
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
fn runs(args: &RunArgs, rows: &[Row]) -> Vec<report::Run> {
    let run = |(lane, outcome): &Row| {
        let trial = args.trial(*lane);
        Some(report::Run {
            verdict: outcome.clone().ok()?,
            options: Options::read(lane.strategy, &trial.wanted.options).ok()?.to_json(),
            storm: Some(trial.storm),
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

fn print(args: &RunArgs, rows: &[Row]) {
    if args.json {
        let all: Vec<Value> = rows
            .iter()
            .map(|(lane, row)| match row {
                Ok(verdict) => {
                    let mut row = json!(verdict);
                    row["run"] = Value::from(lane.label());
                    row
                }
                Err(why) => json!({"strategy": lane.strategy.id, "not_run": why}),
            })
            .collect();
        say!("{:#}", Value::Array(all));
        return;
    }
    if args.with_and_without_lock {
        print_what_the_lock_buys(args, rows);
        say!("\n{}", WHAT_THE_LOCK_BUYS.say(args.lang.into()));
        return;
    }
    say!(
        "{:<28} {:<44} {:>6} {:>8} {:>9} {:>10} {:>9} {:>6} {:>10} {:>9}  verdict",
        "strategy",
        "promise",
        "sold",
        "oversold",
        "undersold",
        "duplicates",
        "contended",
        "failed",
        "attempts/s",
        "p99 ms"
    );
    for (lane, row) in rows {
        let strategy = lane.strategy;
        let promised =
            in_words(strategy.promise.on(u32::try_from(args.nodes).unwrap_or(1)), args.lang.into());
        match row {
            Err(why) => say!("{:<28} {promised:<44} not run: {why}", strategy.id),
            Ok(verdict) => say!(
                "{:<28} {promised:<44} {:>6} {:>8} {:>9} {:>10} {:>9} {:>6} {:>10.0} {:>9.1}  {}",
                strategy.id,
                verdict.sold,
                verdict.oversold,
                verdict.undersold,
                verdict.duplicates,
                verdict.contended,
                verdict.failed,
                verdict.throughput_per_s,
                verdict.latency_ms.p99,
                in_one_word(verdict, args.lang.into())
            ),
        }
    }
    if args.option.iter().all(|(name, _)| name != "interleave") {
        say!(
            "\n{}",
            match Language::from(args.lang) {
                Language::En =>
                    "Interleavings were forced: buyers wait for each other, a second once in a \
                     sound strategy. To compare speeds: --option interleave=off",
                Language::Zh =>
                    "交错是强制的：买家会互相等待，可靠的策略也会为此付出一次约一秒。比较速度请用：--option interleave=off",
            }
        );
    }
    // One strategy is one lesson: say it.
    if let [(_, Ok(verdict))] = rows {
        say!("\n{}", verdict.explanation);
        for (note, count) in &verdict.notes {
            say!("  {count} x {note}");
        }
    }
}

/// Costs instead of harms: the counter lets none happen.
fn print_what_the_lock_buys(args: &RunArgs, rows: &[Row]) {
    say!(
        "{:<38} {:>6} {:>8} {:>10} {:>11} {:>10} {:>10} {:>9}  verdict",
        "",
        "sold",
        "oversold",
        "contended",
        "let through",
        "Redis each",
        "attempts/s",
        "p99 ms"
    );
    for (lane, row) in rows {
        match row {
            Err(why) => say!("{:<38} not run: {why}", lane.label()),
            Ok(verdict) => say!(
                "{:<38} {:>6} {:>8} {:>10} {:>11} {:>10.2} {:>10.0} {:>9.1}  {}",
                lane.label(),
                verdict.sold,
                verdict.oversold,
                verdict.contended,
                verdict.notes.get("let through to the counter").unwrap_or(&0),
                verdict.round_trips.redis,
                verdict.throughput_per_s,
                verdict.latency_ms.p99,
                in_one_word(verdict, args.lang.into())
            ),
        }
    }
}

fn in_one_word(verdict: &Verdict, language: Language) -> &'static str {
    let harms = verdict.oversold + verdict.undersold + verdict.duplicates + verdict.lost;
    let words = match (verdict.kept_promise, harms) {
        (false, _) => Words::new("PROMISE BROKEN", "承诺被打破"),
        (true, 0) if verdict.only_failed() => Words::new("every attempt failed", "全部出错"),
        (true, 0) => Words::new("held", "守住了"),
        (true, _) => Words::new("failed, as it says", "如它所说地失败"),
    };
    words.say(language)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_is_said_in_words() {
        let said = |id: &str| {
            let promise = strategies::find(id).expect("a strategy").promise;
            (
                in_words(&promise.one_node, Language::En),
                in_words(&promise.across_nodes, Language::En),
            )
        };
        assert_eq!(said("conditional-update"), ("holds".to_owned(), "holds".to_owned()));
        assert_eq!(
            said("process-mutex"),
            ("holds".to_owned(), "oversells, may sell twice".to_owned())
        );
        assert_eq!(said("version-column").0, "may undersell");
    }

    #[test]
    fn options_and_shares_are_read_or_refused() {
        assert_eq!(option("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(option("a").is_err());
        assert_eq!(share("0.5"), Ok(0.5));
        for bad in ["-0.1", "1.1", "NaN", "x"] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }
}
