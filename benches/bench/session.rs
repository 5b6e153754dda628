//! The paired session: every scenario's run has a bare run on either side and is compared with
//! their mean. Each round begins with another scenario, so that none always has the same place.

use crate::load::{Load, Requests, Run, milliseconds};
use crate::process::{Process, Workspace, poll};
use crate::report::{Bound, Section, figure, median, spread, thousands};
use crate::scenarios::{BARE_COUNT, ORDERS_LOOKED_AT, Scenario};
use crate::stage::{Stage, Target, batch_size, latencies, of_runs};
use crate::{Error, Options, Result};
use serde::Serialize;
use serde_json::json;
use std::{sync::Arc, time::Duration};

/// A scenario's run and the bare runs on either side of it.
#[derive(Serialize)]
struct Paired {
    run: Run,
    bare_per_second: [f64; 2],
}

impl Paired {
    fn ratio(&self) -> f64 {
        self.run.per_second() / (self.bare_per_second.iter().sum::<f64>() / 2.0)
    }
}

struct Results {
    bare: Vec<Run>,
    scenarios: Vec<(Scenario, Vec<Paired>)>,
}

impl Results {
    fn of(&self, wanted: Scenario) -> Option<&[Paired]> {
        let mut all = self.scenarios.iter();
        let (_, runs) = all.find(|(scenario, _)| *scenario == wanted)?;
        (!runs.is_empty()).then_some(&runs[..])
    }
}

pub async fn run(options: &Options, workspace: &Workspace) -> Result<Section> {
    let mut session = Session::start(options, workspace)?;
    let scenarios = options.scenarios();
    let mut results = Results {
        bare: Vec::new(),
        scenarios: scenarios.iter().map(|scenario| (*scenario, Vec::new())).collect(),
    };
    session.warm_up().await?;
    // What goes wrong while warming up would only go wrong again.
    let rounds = if session.stage.failures.is_empty() { options.rounds() } else { 0 };
    for round in 0..rounds {
        eprint!("round {}/{rounds}:", round + 1);
        let mut last = session.measure_bare().await?;
        for place in 0..scenarios.len() {
            let (scenario, runs) = &mut results.scenarios[(round + place) % scenarios.len()];
            let run = session.measure(*scenario).await?;
            let next = session.measure_bare().await?;
            let bare_per_second = [last.per_second(), next.per_second()];
            let paired = Paired { run, bare_per_second };
            eprint!(" {} {:.2}", scenario.name(), paired.ratio());
            runs.push(paired);
            results.bare.push(std::mem::replace(&mut last, next));
        }
        results.bare.push(last);
        eprintln!();
    }
    let mut section = table(&results);
    set_goals(&mut section, &results);
    let rounds = results.scenarios.iter();
    let rounds = rounds.map(|(scenario, runs)| (scenario.name().to_owned(), json!(runs)));
    let rounds: serde_json::Map<_, _> = rounds.collect();
    section.figures = json!({"bare": results.bare, "scenarios": rounds});
    let servers = [Some(&mut session.always), session.everysec.as_mut()];
    section.failures = session.stage.finish(servers.into_iter().flatten());
    Ok(section)
}

struct Session<'a> {
    stage: Stage<'a>,
    bare: Process,
    always: Target,
    /// Only if something is measured on it.
    everysec: Option<Target>,
    /// What is asked over and over; made by `warm_up`.
    asked_of_bare: Arc<Requests>,
    prepared: Vec<(Scenario, Arc<Requests>)>,
}

impl<'a> Session<'a> {
    fn start(options: &'a Options, workspace: &'a Workspace) -> Result<Self> {
        let stage = Stage::new(options, workspace)?;
        eprintln!("starting the servers");
        let everysec = options.scenarios().contains(&Scenario::AcceptedEverysec);
        let everysec = everysec.then(|| stage.serve("everysec", "everysec", "off"));
        Ok(Self {
            bare: stage.bare()?,
            always: stage.serve("always", "always", "on")?,
            everysec: everysec.transpose()?,
            stage,
            asked_of_bare: Arc::default(),
            prepared: Vec::new(),
        })
    }

    fn count(&self, scenario: Scenario) -> usize {
        let (.., usual, _) = scenario.facts();
        let most = if scenario == Scenario::Baseline { usual } else { usize::MAX };
        self.stage.options.scaled(usual).min(most)
    }

    /// Runs everything once without counting it, and leaves what the other scenarios need: a sale
    /// that many have bought from, one that is sold out, some orders.
    async fn warm_up(&mut self) -> Result {
        eprintln!("warming up");
        let count = self.count(Scenario::Accepted);
        let most = count.max(self.stage.options.scaled(BARE_COUNT));
        let tokens = self.stage.tokens(most);
        let (at, client) = (self.always.process.address, self.always.client.clone());

        self.asked_of_bare = Arc::new(Requests::purchases(self.bare.address, "1", &tokens, true));
        self.measure_bare().await?;

        let buyers = &tokens[..count];
        let bought = client.create_sale("bought by many", count * 2).await?;
        self.stage.sell_to("warming up", &self.always, &bought, buyers, true).await?;
        if !self.stage.failures.is_empty() {
            return Ok(());
        }
        let gone = client.create_sale("sold out", 1).await?;
        client.buy(&gone, &self.stage.tokens(1)[0]).await?;
        let limit = Duration::from_secs(10);
        let sold_out =
            async || Ok::<_, Error>((client.sale_state(&gone).await? == "sold_out").then_some(()));
        if poll(limit, 20, sold_out).await?.is_none() {
            return Err("a sale of one unit was not sold out by one purchase".into());
        }
        let mut browse = Requests::default();
        browse.get(at, &format!("/api/v1/sales/{bought}"), "");
        let mut order_status = Requests::default();
        for buyer in buyers.iter().take(ORDERS_LOOKED_AT) {
            let order = client.order_of(buyer).await?;
            order_status.get(at, &format!("/api/v1/orders/{order}"), buyer);
        }
        let purchases = |sale: &str, keys| Requests::purchases(at, sale, &tokens, keys);
        // Duplicates have other keys than before: the same key would be a replay.
        let duplicate = Requests::purchases(at, &bought, buyers, true);
        self.prepared = vec![
            (Scenario::Duplicate, Arc::new(duplicate)),
            (Scenario::SoldOut, Arc::new(purchases(&gone, true))),
            (Scenario::SoldOutKeyless, Arc::new(purchases(&gone, false))),
            (Scenario::Browse, Arc::new(browse)),
            (Scenario::OrderStatus, Arc::new(order_status)),
        ];
        for scenario in self.stage.options.scenarios() {
            if scenario != Scenario::Accepted {
                self.measure(scenario).await?;
            }
        }
        Ok(())
    }

    async fn measure_bare(&mut self) -> Result<Run> {
        self.stage.measure_bare(&self.bare, &self.asked_of_bare).await
    }

    async fn measure(&mut self, scenario: Scenario) -> Result<Run> {
        let (name, count) = (scenario.name(), self.count(scenario));
        match scenario {
            Scenario::Accepted => self.stage.sell_some(name, &self.always, count).await,
            Scenario::AcceptedEverysec => {
                let target = self.everysec.as_ref().ok_or("this server is not running")?;
                self.stage.sell_some(name, target, count).await
            }
            Scenario::Baseline => self.measure_baseline().await,
            _ => {
                let found = self.prepared.iter().find(|(one, _)| *one == scenario);
                let (_, requests) = found.ok_or("nothing is prepared")?;
                let (.., right) = scenario.facts();
                let load = self.stage.load(self.always.process.address, requests, count, right);
                self.measure_load(scenario, load).await
            }
        }
    }

    async fn measure_load(&mut self, scenario: Scenario, load: Load) -> Result<Run> {
        let metrics = self.always.client.metrics().await?;
        let mut run = self.stage.measure(scenario.name(), &self.always.process, load).await?;
        run.batch_size = batch_size(&metrics, &self.always.client.metrics().await?);
        Ok(run)
    }

    /// A fresh arena that is sold to its last unit. An order of the lab is in Postgres, committed,
    /// when its buyer is answered, so there is nothing to wait for.
    async fn measure_baseline(&mut self) -> Result<Run> {
        let scenario = Scenario::Baseline;
        let (at, count) = (self.always.process.address, self.count(scenario));
        let client = self.always.client.clone();
        let arena = client.create_arena("lua-sync", count).await?;
        let requests = Arc::new(Requests::lab_purchases(at, &arena, count));
        let load = self.stage.load(at, &requests, count, scenario.facts().3);
        let run = self.measure_load(scenario, load).await?;
        let (sold, kept) = client.close_arena(&arena).await?;
        if sold != run.requests || !kept {
            let told = run.requests;
            let what = format!("{told} purchases were answered \"sold\", {sold} orders are there");
            self.stage.fail(scenario.name(), what);
        }
        Ok(run)
    }
}

const HEADINGS: [&str; 9] =
    ["", "× bare", "min–max", "req/s", "p99 ms", "app µs", "redis", "postgres", "batch"];

fn runs_of(paired: &[Paired]) -> Vec<&Run> {
    paired.iter().map(|paired| &paired.run).collect()
}

fn table(results: &Results) -> Section {
    let mut section = Section::new("paired", "Against a bare endpoint, in pairs", &HEADINGS);
    let bare: Vec<&Run> = results.bare.iter().collect();
    if !bare.is_empty() {
        section.row(row("bare endpoint", None, &bare));
    }
    for (scenario, paired) in results.scenarios.iter().filter(|(_, paired)| !paired.is_empty()) {
        let ratios = spread(paired.iter().map(Paired::ratio));
        section.row(row(scenario.title(), ratios, &runs_of(paired)));
    }
    section.note(
        "× bare: requests/s over the mean of the bare runs before and after, median of the rounds. \
         µs: CPU time a request, by process; a purchase's includes writing its order. batch: \
         buyers in one script call.",
    );
    section
}

fn row(title: &str, ratios: Option<(f64, f64, f64)>, runs: &[&Run]) -> [String; 9] {
    let ratio = ratios.map_or("1".to_owned(), |(_, median, _)| format!("{median:.2}"));
    let bounds = ratios.map(|(least, _, most)| format!("{least:.2}–{most:.2}"));
    let per_second = of_runs(runs, |run| Some(run.per_second()));
    [
        title.to_owned(),
        ratio,
        bounds.unwrap_or_default(),
        thousands(per_second.unwrap_or(0.0)),
        format!("{:.2}", milliseconds(&latencies(runs), 0.99)),
        figure(of_runs(runs, |run| Some(run.cpu?.app)), 1),
        figure(of_runs(runs, |run| Some(run.cpu?.redis)), 1),
        figure(of_runs(runs, |run| Some(run.cpu?.postgres)), 1),
        figure(of_runs(runs, |run| run.batch_size), 0),
    ]
}

/// What each scenario should reach at least, as a ratio to bare.
const TARGETS: [(Scenario, f64); 3] =
    [(Scenario::Accepted, 0.55), (Scenario::SoldOutKeyless, 0.85), (Scenario::SoldOut, 0.85)];
/// The most app CPU of an accepted purchase, as a ratio to bare's.
const MOST_CPU: f64 = 1.4;
/// How much faster an accepted purchase should be than the baseline, at least.
const LEAST_OVER_BASELINE: f64 = 8.0;

fn set_goals(section: &mut Section, results: &Results) {
    for (scenario, wanted) in TARGETS {
        let runs = results.of(scenario).unwrap_or_default();
        if let Some(reached) = median(runs.iter().map(Paired::ratio)) {
            section.goal(format!("{}, × bare", scenario.title()), Bound::AtLeast(wanted), reached);
        }
    }
    let Some(accepted) = results.of(Scenario::Accepted) else { return };
    let app = |runs: &[&Run]| of_runs(runs, |run| Some(run.cpu?.app));
    let bare: Vec<&Run> = results.bare.iter().collect();
    if let (Some(purchase), Some(bare)) = (app(&runs_of(accepted)), app(&bare)) {
        let what = "app CPU of an accepted purchase, × bare's";
        section.goal(what, Bound::AtMost(MOST_CPU), purchase / bare);
    }
    // Of the same round: each is a ratio to the bare runs beside it.
    let baseline = results.of(Scenario::Baseline).unwrap_or_default();
    let rounds = accepted.iter().zip(baseline);
    let ratios = rounds.map(|(accepted, baseline)| accepted.ratio() / baseline.ratio());
    if let Some((least, reached, most)) = spread(ratios) {
        let what = format!("accepted, × the baseline ({least:.1}–{most:.1})");
        section.goal(what, Bound::AtLeast(LEAST_OVER_BASELINE), reached);
    }
}
