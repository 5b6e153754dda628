//! The report: some runs as one HTML page to be shown in class, without script, font or server. Its
//! template is `templates/report.html`.

use crate::error::{LabError, Result};
use crate::strategy::{Harm, Language, Strategy};
use crate::templates::{self, Axis};
use crate::{
    catalogue::StrategyBody, options::Options, service::Lab, storm::Storm, strategies,
    verdict::Verdict,
};
use serde_json::{Map, Value, json};
use std::collections::HashSet;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// The Content-Security-Policy that the page can live with: nothing but its own style.
pub const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'self'";

/// One arena and its verdict.
#[derive(Debug, Clone)]
pub struct Run {
    pub verdict: Verdict,
    /// Every option with its value.
    pub options: Map<String, Value>,
    /// `None`: somebody else's load, such as k6.
    pub storm: Option<Storm>,
    /// Nothing else ran meanwhile.
    pub alone: bool,
}

impl Run {
    /// Whether its speeds compare: it ran alone, and nobody was forced to meet.
    fn is_fair(&self) -> bool {
        self.alone && self.options.get("interleave").is_some_and(|value| value == "off")
    }
}

/// When and on what machine the runs were made.
#[derive(Debug, Clone)]
pub struct About {
    pub made_at: OffsetDateTime,
    pub machine: String,
}

impl About {
    /// This machine, now.
    pub fn here() -> Self {
        Self { made_at: OffsetDateTime::now_utc(), machine: this_machine() }
    }
}

/// Processors, memory and system of this machine, as far as they can be told.
pub fn this_machine() -> String {
    let of = |file: &str, label: &str| {
        let text = std::fs::read_to_string(file).ok()?;
        let line = text.lines().find(|line| line.starts_with(label))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let mut parts = vec![format!("{} {}", std::env::consts::OS, std::env::consts::ARCH)];
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let model = of("/proc/cpuinfo", "model name").unwrap_or_else(|| "processors".to_owned());
    parts.push(format!("{count} × {model}"));
    let memory = of("/proc/meminfo", "MemTotal").and_then(|text| {
        let kib: u64 = text.split_whitespace().next()?.parse().ok()?;
        Some(format!("{} GiB", (kib + 512 * 1024) / (1024 * 1024)))
    });
    parts.extend(memory);
    parts.join(" · ")
}

/// The report of these arenas, in this order; some of them ran alone.
pub async fn of_arenas(
    lab: &Lab,
    ids: &[String],
    alone: &[String],
    language: Language,
) -> Result<String> {
    // All at once: a verdict may have to wait for its arena to be quiet.
    let runs = ids.iter().map(async |id| {
        let arena = lab.arena(id).await?;
        Ok::<_, LabError>(Run {
            verdict: lab.verdict(id, language).await?,
            options: arena.definition().options.0.clone(),
            storm: None,
            alone: alone.contains(id),
        })
    });
    let runs = futures_util::future::try_join_all(runs).await?;
    Ok(render(&runs, &About::here(), language)?)
}

/// The page.
pub fn render(runs: &[Run], about: &About, language: Language) -> Result<String, minijinja::Error> {
    let storm = runs.first().and_then(|run| run.storm);
    let fair = runs.iter().filter(|run| run.is_fair());
    let rates = fair.clone().map(|run| run.verdict.throughput_per_s);
    let latencies = fair.flat_map(|run| [run.verdict.winners_ms, run.verdict.losers_ms]);
    let most = |of: fn(&Verdict) -> f64, least| {
        runs.iter().map(|run| of(&run.verdict)).fold(least, f64::max)
    };
    let mut ids: Vec<_> = runs.iter().map(|run| run.verdict.strategy).collect();
    let mut seen = HashSet::new();
    ids.retain(|id| seen.insert(*id));
    let strategies = ids.into_iter().filter_map(strategies::find);
    let strategies = strategies.map(|strategy| StrategyBody::of(strategy, None, language));
    let page = json!({
        "machine": about.machine,
        "made_at": about.made_at.replace_nanosecond(0).ok().and_then(|at| at.format(&Rfc3339).ok()),
        "version": env!("CARGO_PKG_VERSION"),
        "storm": storm.filter(|_| runs.iter().all(|run| run.storm == storm)),
        "style": include_str!("../templates/report.css"),
        "runs": runs.iter().map(|run| body(run, language)).collect::<Value>(),
        "strategies": strategies.collect::<Vec<_>>(),
        "rates": Axis::around(rates),
        "latencies": Axis::around(latencies.flat_map(|latency| [latency.p50, latency.p99])),
        "most_sold": most(|verdict| verdict.sold as f64 / verdict.stock.max(1) as f64, 1.02),
        "most_trips": most(|verdict| verdict.round_trips.sum(), 0.01),
    });
    templates::render("report.html", language, &page)
}

/// The verdict of a run, and what the page says besides.
fn body(run: &Run, language: Language) -> Value {
    let Run { verdict, options, .. } = run;
    let strategy = strategies::find(verdict.strategy);
    let promise = strategy.map(|strategy| strategy.promise.on(verdict.all_nodes()).each());
    let defaults = strategy.and_then(|strategy| Options::read(strategy, &Map::new()).ok());
    let defaults = defaults.map(|options| options.0).unwrap_or_default();
    let turned = options.iter().filter(|(name, value)| defaults.get(*name) != Some(value));
    let turned = turned.map(|(name, value)| format!("{name} = {}", plain(value)));
    let mut body = json!(verdict);
    let title = strategy.map_or(verdict.strategy, |strategy| strategy.title(language));
    body["label"] = Value::from(match (verdict.nodes, verdict.processes) {
        (1, 0 | 1) => title.to_owned(),
        (nodes, 0 | 1) => format!("{title} × {nodes}"),
        (nodes, processes) => format!("{title} × {nodes} × {processes}"),
    });
    // The class that colours it.
    body["tone"] = Value::from(verdict.outcome.shown().0);
    body["said"] = json!(verdict.in_words(language));
    body["fair"] = Value::from(run.is_fair());
    body["marks"] = strategy.into_iter().flat_map(|strategy| marks_of(strategy, run)).collect();
    body["promise"] = json!(promise.map(|each| each.map(|(_, likelihood)| likelihood)));
    body["turned"] = turned.collect();
    body
}

/// The marks of what went wrong in this run: of demonstrations that show it by options that the run
/// had, too.
fn marks_of(strategy: &Strategy, Run { verdict, options, .. }: &Run) -> Vec<usize> {
    let has =
        |(name, value): &(&str, &str)| options.get(*name).map(plain).as_deref() == Some(value);
    let shown = strategy.demonstrations.iter().filter(|shown| shown.shows != Harm::Holds);
    let shown = shown.filter(|shown| verdict.shows(shown.shows));
    let shown = shown.filter(|shown| shown.scenario.options.iter().all(has));
    shown.filter_map(|shown| shown.mark).collect()
}

/// A value as `--option` takes it.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        STRATEGIES, Strategy,
        verdict::{Outcome, Percentiles, RoundTrips},
    };
    use std::collections::BTreeMap;

    fn run(strategy: &'static str, sold: i64) -> Run {
        let latency = |p50| Percentiles { p50, p95: p50 * 2.0, p99: p50 * 3.0, max: p50 * 4.0 };
        let verdict = Verdict {
            strategy,
            stock: 100,
            nodes: 1,
            processes: 1,
            attempts: 5_000,
            sold,
            oversold: (sold - 100).max(0),
            undersold: (100 - sold).max(0),
            duplicates: 0,
            lost: 0,
            contended: 7,
            failed: 0,
            throughput_per_s: 1_234.5,
            latency_ms: latency(2.0),
            winners_ms: latency(3.0),
            losers_ms: latency(0.4),
            round_trips: RoundTrips { redis: 1.0, postgres: 0.02, zookeeper: 0.0 },
            notes: BTreeMap::new(),
            quiet: true,
            kept_promise: sold <= 100,
            outcome: if sold > 100 { Outcome::Oversold } else { Outcome::Exact },
            explanation: "Said.".to_owned(),
            collision: None,
        };
        let options = Map::from_iter([("interleave".to_owned(), "off".into())]);
        Run { verdict, options, storm: None, alone: true }
    }

    fn rendered(runs: &[Run], about: &About, language: Language) -> String {
        render(runs, about, language).expect("a page")
    }

    fn about() -> About {
        About { made_at: OffsetDateTime::UNIX_EPOCH, machine: "a machine".to_owned() }
    }

    /// Every element that is opened is closed, in order, and every attribute is quoted.
    fn check(page: &str) {
        const VOID: [&str; 1] = ["meta"];
        let mut open: Vec<&str> = Vec::new();
        let (mut rest, mut tags) = (page, 0);
        while let Some((_, behind)) = rest.split_once('<') {
            // What stands in a style sheet is no markup; this page's has no '<'.
            let (tag, after) = behind.split_once('>').expect("every tag ends");
            rest = after;
            tags += 1;
            let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or("");
            assert_eq!(tag.matches('"').count() % 2, 0, "<{tag}>");
            if tag.starts_with('!') || tag.ends_with('/') || VOID.contains(&name) {
                continue;
            }
            if tag.starts_with('/') {
                assert_eq!(open.pop(), Some(name), "</{name}> closes another one");
            } else {
                open.push(name);
            }
        }
        assert_eq!(open, Vec::<&str>::new());
        assert!(tags > 20);
        for wrong in ["<script", "http://", "https://", "NaN", "\"inf", " style="] {
            assert!(!page.contains(wrong), "{wrong}");
        }
    }

    #[test]
    fn a_report_of_nothing_one_and_all_is_well_formed() {
        for language in [Language::En, Language::Zh] {
            let empty = rendered(&[], &about(), language);
            check(&empty);
            assert!(!empty.contains("<figure"));

            let one = rendered(&[run("naive", 145)], &about(), language);
            check(&one);
            assert_eq!(one.matches("<figure>").count(), 4);
            assert_eq!(one.matches("<article ").count(), 1);
            let beside = Run { alone: false, ..run("naive", 145) };
            let forced = Run { options: Map::new(), ..run("naive", 145) };
            let without_speeds = rendered(&[beside, forced], &about(), language);
            check(&without_speeds);
            assert_eq!(without_speeds.matches("<figure>").count(), 2);

            let both = |strategy: &Strategy| [run(strategy.id, 100), run(strategy.id, 3_000)];
            let all: Vec<Run> = STRATEGIES.iter().flat_map(both).collect();
            let all_page = rendered(&all, &about(), language);
            check(&all_page);
            assert_eq!(all_page.matches("<article ").count(), STRATEGIES.len());
        }
    }

    #[test]
    fn nothing_that_somebody_wrote_becomes_markup() {
        let evil = "<img src=x onerror=alert(1)>\"'&";
        let mut bad = run("naive", 100);
        bad.options.insert(evil.to_owned(), Value::from(evil));
        bad.verdict.notes.insert(evil.to_owned(), 1);
        bad.verdict.explanation = evil.to_owned();
        let about = About { machine: evil.to_owned(), ..about() };
        let page = rendered(&[bad], &about, Language::En);
        check(&page);
        assert!(!page.contains("<img"));
        assert!(page.matches("&lt;img src=x onerror=alert(1)&gt;&quot;&#x27;&amp;").count() >= 5);
    }

    #[test]
    fn a_run_that_sold_nothing_can_be_drawn() {
        let mut idle = run("naive", 0);
        idle.verdict.attempts = 0;
        idle.verdict.throughput_per_s = 0.0;
        for latency in [&mut idle.verdict.winners_ms, &mut idle.verdict.losers_ms] {
            *latency = Percentiles::default();
        }
        idle.verdict.round_trips = Default::default();
        check(&rendered(&[idle], &about(), Language::Zh));
    }

    #[test]
    fn what_went_wrong_is_said_in_the_chart() {
        let mut wrong = run("naive", 145);
        wrong.verdict.duplicates = 2;
        wrong.verdict.lost = 1;
        let page = rendered(&[wrong], &about(), Language::En);
        for count in [45, 2, 1] {
            assert!(page.contains(&format!("<td class=\"wrong\">{count}</td>")), "{count}");
        }
        assert!(page.contains("<span class=\"mark bad\">oversold</span> not as predicted"));
        assert!(page.contains("<a href=\"#naive\">Read, check, write back</a>"), "its one name");
        assert!(page.contains("href=\"#why-naive\"") && page.contains("id=\"why-naive\""));
        assert!(page.contains("<mark class=\"flaw\">"), "the line that did it");
    }

    /// 545 beyond the stock is drawn about three times as wide as 184.
    #[test]
    fn bars_are_to_scale() {
        let runs = [run("naive", 645), run("process-mutex", 284), run("redlock", 100)];
        let page = rendered(&runs, &about(), Language::En);
        let widths = page.split("url(#stripes)").skip(1).map(|bar| {
            let (_, width) = bar.split_once("width=\"").expect("a width");
            width.split('"').next().and_then(|width| width.parse().ok()).expect("a number")
        });
        let widths: Vec<f64> = widths.collect();
        assert_eq!(widths.len(), 2, "{widths:?}");
        assert!((widths[0] / widths[1] - 545.0 / 184.0).abs() < 0.02, "{widths:?}");
    }
}
