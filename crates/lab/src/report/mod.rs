//! The report: what some runs came to, as one HTML page to be shown in class.
//!
//! It needs nothing else: no script, no font, no server; the charts are drawn here, as SVG. Beside
//! each chart stands the same as a table. Every text that is not a constant of this program goes
//! through [`Escaped`]. The texts and tables are in this file, the pictures in [`charts`].

mod charts;

use super::{
    Lab, LabError, Strategy,
    storm::Storm,
    strategy::{Harms, Language, Likelihood},
    verdict::Verdict,
};
use serde_json::{Map, Value};
use std::fmt::{self, Display, Write};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

const STYLE: &str = include_str!("page.css");

/// The Content-Security-Policy that the page can live with: nothing but its own style.
pub const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'self'";

/// One arena with what became of it.
#[derive(Debug, Clone)]
pub struct Run {
    pub verdict: Verdict,
    /// Every option with its value.
    pub options: Map<String, Value>,
    /// `None`: somebody else's load, such as k6.
    pub storm: Option<Storm>,
}

/// What the reader has to know besides.
#[derive(Debug, Clone)]
pub struct About {
    /// Something better than "Lab report".
    pub title: Option<String>,
    pub made_at: OffsetDateTime,
    pub machine: String,
    pub commit: Option<String>,
}

impl About {
    /// This machine, now.
    pub fn here() -> Self {
        Self {
            title: None,
            made_at: OffsetDateTime::now_utc(),
            machine: this_machine(),
            commit: None,
        }
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

/// The report of these arenas, in this order.
pub async fn of_arenas(lab: &Lab, ids: &[String], language: Language) -> Result<String, LabError> {
    // All at once: a verdict may have to wait for its arena to be quiet.
    let runs = ids.iter().map(async |id| {
        let arena = lab.arena(id).await?;
        Ok::<_, LabError>(Run {
            verdict: lab.verdict(id, language).await?,
            options: arena.definition().options.to_json(),
            storm: None,
        })
    });
    let runs = futures_util::future::try_join_all(runs).await?;
    Ok(render(&runs, &About::here(), language))
}

/// The page.
pub fn render(runs: &[Run], about: &About, language: Language) -> String {
    let mut page = Page { html: String::new(), language };
    // Writing into a String cannot fail.
    let _ = page.write(runs, about);
    page.html
}

// ---- writing ----------------------------------------------------------------------------------

struct Page {
    html: String,
    language: Language,
}

/// A text that says nothing but itself, in an element or an attribute.
struct Escaped<T>(T);

impl<T: Display> Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.to_string().chars() {
            match letter {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

/// A number with its thousands set apart.
fn number(value: f64, digits: usize) -> String {
    let text = format!("{:.digits$}", value.abs());
    let (whole, rest) = text.split_once('.').map_or((&*text, ""), |(whole, rest)| (whole, rest));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let sign = if value < 0.0 { "−" } else { "" };
    let point = if rest.is_empty() { "" } else { "." };
    format!("{sign}{grouped}{point}{rest}")
}

fn whole(value: impl TryInto<i64>) -> String {
    value.try_into().map_or_else(|_| "?".to_owned(), |value: i64| number(value as f64, 0))
}

/// Milliseconds as one reads them.
fn millis(value: f64) -> String {
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    number(value, digits)
}

fn per_second(value: f64) -> String {
    number(value, usize::from(value < 100.0))
}

impl Run {
    fn strategy(&self) -> Option<&'static Strategy> {
        super::strategies::find(self.verdict.strategy)
    }

    fn label(&self) -> String {
        let Verdict { strategy, nodes, processes, .. } = &self.verdict;
        match (nodes, processes) {
            (1, 0 | 1) => (*strategy).to_owned(),
            (nodes, 0 | 1) => format!("{strategy} × {nodes}"),
            (nodes, processes) => format!("{strategy} × {nodes} × {processes}"),
        }
    }

    fn has_harm(&self) -> bool {
        let verdict = &self.verdict;
        verdict.oversold > 0 || verdict.undersold > 0 || verdict.duplicates > 0 || verdict.lost > 0
    }

    /// The class that colours what is said of it.
    fn tone(&self) -> &'static str {
        match (self.verdict.kept_promise, self.has_harm()) {
            (false, _) => "bad",
            (true, true) => "warn",
            (true, false) => "good",
        }
    }

    /// The options that differ from their defaults.
    fn turned(&self) -> Vec<String> {
        let defaults = self
            .strategy()
            .and_then(|strategy| super::options::Options::read(strategy, &Map::new()).ok())
            .map(|options| options.to_json())
            .unwrap_or_default();
        let turned = self.options.iter().filter(|(name, value)| defaults.get(*name) != Some(value));
        turned
            .map(|(name, value)| match value {
                Value::String(text) => format!("{name} = {text}"),
                other => format!("{name} = {other}"),
            })
            .collect()
    }
}

impl Page {
    fn say<'a>(&self, en: &'a str, zh: &'a str) -> &'a str {
        match self.language {
            Language::En => en,
            Language::Zh => zh,
        }
    }

    fn write(&mut self, runs: &[Run], about: &About) -> fmt::Result {
        let title = match &about.title {
            Some(title) => title.clone(),
            None => self.say("One stock, many ways to sell it", "同一份库存，多种卖法").to_owned(),
        };
        let lang = self.say("en", "zh-CN");
        write!(
            self.html,
            "<!doctype html>\n<html lang=\"{lang}\">\n<head>\n<meta charset=\"utf-8\">\n<meta \
                name=\"viewport\" content=\"width=device-width, \
                initial-scale=1\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n\
             <body>\n<main>\n<h1>{title}</h1>\n",
            title = Escaped(&title),
        )?;
        self.introduction(runs, about)?;
        if runs.is_empty() {
            let nothing = self.say("There are no runs to report.", "没有可报告的运行。");
            writeln!(self.html, "<p>{nothing}</p>")?;
        } else {
            self.overview(runs)?;
            let measured = self.say("What was measured", "测量结果");
            writeln!(self.html, "<h2>{measured}</h2>")?;
            self.sold(runs)?;
            self.throughput(runs)?;
            self.latency(runs)?;
            self.round_trips(runs)?;
            let lessons = self.say("What to learn from each", "每种策略教给我们什么");
            writeln!(self.html, "<h2>{lessons}</h2>")?;
            for run in first_of_each(runs) {
                self.lesson(run, runs)?;
            }
        }
        self.footer()?;
        self.html.push_str("</main>\n</body>\n</html>\n");
        Ok(())
    }

    fn introduction(&mut self, runs: &[Run], about: &About) -> fmt::Result {
        let lead = self.say(
            "Every strategy sold the same thing to the same crowd, against real servers. The \
             judgement comes from the rows in Postgres, not from what a strategy believes to have \
             sold.",
            "每种策略都在真实的服务器上，把同样的货卖给同样的人群。判定依据是 Postgres 里的订单行，而不是策略自以为卖了多少。",
        );
        write!(self.html, "<p class=\"lead\">{lead}</p>\n<dl class=\"facts\">\n")?;
        let mut facts = vec![
            (self.say("Machine", "机器"), about.machine.clone()),
            (
                self.say("Made at", "生成时间"),
                about
                    .made_at
                    .replace_nanosecond(0)
                    .unwrap_or(about.made_at)
                    .format(&Rfc3339)
                    .unwrap_or_default(),
            ),
            (self.say("Version", "版本"), env!("CARGO_PKG_VERSION").to_owned()),
        ];
        if let Some(commit) = &about.commit {
            facts.push((self.say("Commit", "提交"), commit.clone()));
        }
        if let Some(Some(storm)) = runs.first().map(|run| run.storm)
            && runs.iter().all(|run| run.storm == Some(storm))
        {
            let clicks = format!("{:.0} %", storm.duplicate_share * 100.0);
            facts.push((self.say("Buyers", "买家"), whole(storm.buyers)));
            facts.push((self.say("At a time", "并发"), whole(storm.concurrency)));
            facts.push((self.say("Click twice", "连点两下"), clicks));
        }
        for (name, value) in facts {
            writeln!(self.html, "<div><dt>{name}</dt><dd>{}</dd></div>", Escaped(value))?;
        }
        self.html.push_str("</dl>\n");
        Ok(())
    }

    fn overview(&mut self, runs: &[Run]) -> fmt::Result {
        let sum = |of: fn(&Verdict) -> i64| runs.iter().map(|run| of(&run.verdict)).sum::<i64>();
        let kept = runs.iter().filter(|run| run.verdict.kept_promise).count();
        let figures = [
            (self.say("runs", "次运行"), whole(runs.len()), ""),
            (
                self.say("promises kept", "承诺兑现"),
                format!("{kept} / {}", runs.len()),
                if kept == runs.len() { "good" } else { "bad" },
            ),
            (self.say("oversold", "超卖"), whole(sum(|v| v.oversold)), bad_if(sum(|v| v.oversold))),
            (self.say("undersold", "少卖"), whole(sum(|v| v.undersold)), ""),
            (
                self.say("duplicates", "重复"),
                whole(sum(|v| v.duplicates)),
                bad_if(sum(|v| v.duplicates)),
            ),
            (self.say("lost", "丢单"), whole(sum(|v| v.lost)), bad_if(sum(|v| v.lost))),
        ];
        self.html.push_str("<dl class=\"figures\">\n");
        for (name, value, class) in figures {
            writeln!(self.html, "<div class=\"{class}\"><dt>{name}</dt><dd>{value}</dd></div>")?;
        }
        let heading = self.say("All runs", "全部运行");
        write!(self.html, "</dl>\n<h2>{heading}</h2>\n<div class=\"scroll\" tabindex=\"0\">\n")?;
        let caption = self.say(
            "Promise: oversells, undersells, sells twice to one buyer: never (–), possible (?), \
             expected (!).",
            "承诺依次为：超卖、少卖、卖给同一人两次；绝不（–）、可能（?）、必然（!）。",
        );
        let heads = [
            self.say("Strategy", "策略"),
            self.say("Verdict", "判定"),
            self.say("Promise", "承诺"),
            self.say("Sold / stock", "售出 / 库存"),
            self.say("Oversold", "超卖"),
            self.say("Undersold", "少卖"),
            self.say("Duplicates", "重复"),
            self.say("Lost", "丢单"),
            self.say("Contended", "争抢失败"),
            self.say("Failed", "出错"),
            self.say("Attempts/s", "次/秒"),
            self.say("p99 ms", "p99 毫秒"),
        ];
        write!(self.html, "<table><caption>{caption}</caption><thead><tr>")?;
        for (index, head) in heads.iter().enumerate() {
            let class = if index < 3 { " class=\"text\"" } else { "" };
            write!(self.html, "<th scope=\"col\"{class}>{head}</th>")?;
        }
        self.html.push_str("</tr></thead><tbody>\n");
        for run in runs {
            self.row(run)?;
        }
        self.html.push_str("</tbody></table></div>\n");
        Ok(())
    }

    fn row(&mut self, run: &Run) -> fmt::Result {
        let verdict = &run.verdict;
        let promise = run
            .strategy()
            .map(|strategy| signs(strategy.promise.on(verdict.nodes * verdict.processes.max(1))));
        write!(
            self.html,
            "<tr><th scope=\"row\"><a href=\"#{id}\">{label}</a></th><td \
             class=\"text\">{mark}</td><td class=\"text\">{promise}</td><td>{sold} / {stock}</td>",
            mark = self.mark(run),
            id = Escaped(verdict.strategy),
            label = Escaped(run.label()),
            promise = promise.unwrap_or_default(),
            sold = whole(verdict.sold),
            stock = whole(verdict.stock),
        )?;
        for harm in [verdict.oversold, verdict.undersold, verdict.duplicates, verdict.lost] {
            let class = if harm > 0 { " class=\"wrong\"" } else { "" };
            write!(self.html, "<td{class}>{}</td>", whole(harm))?;
        }
        writeln!(
            self.html,
            "<td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            whole(verdict.contended),
            whole(verdict.failed),
            per_second(verdict.throughput_per_s),
            millis(verdict.latency_ms.p99),
        )
    }

    fn mark(&self, run: &Run) -> String {
        let text = match run.tone() {
            "bad" => self.say("✕ promise broken", "✕ 承诺被打破"),
            "warn" => self.say("! fails as it says", "! 如其所言地失败"),
            _ => self.say("✓ holds", "✓ 守住了"),
        };
        format!("<span class=\"mark {}\">{text}</span>", run.tone())
    }

    /// One strategy: what became of each of its runs, and its texts.
    fn lesson(&mut self, of: &Run, runs: &[Run]) -> fmt::Result {
        let Some(strategy) = of.strategy() else {
            return Ok(());
        };
        let language = self.language;
        write!(
            self.html,
            "<article id=\"{id}\">\n<header><h3>{number}. {title}</h3><code>{id}</code></header>\n",
            id = Escaped(strategy.id),
            number = strategy.number,
            title = Escaped(strategy.title(language)),
        )?;
        for run in runs.iter().filter(|run| run.verdict.strategy == strategy.id) {
            let mut conditions = vec![match (language, run.verdict.nodes) {
                (Language::En, 1) => "1 node".to_owned(),
                (Language::En, nodes) => format!("{nodes} nodes"),
                (Language::Zh, nodes) => format!("{nodes} 个节点"),
            }];
            conditions.extend(run.turned());
            write!(
                self.html,
                "<div class=\"said {}\"><strong>{}:</strong> {}",
                run.tone(),
                Escaped(conditions.join(", ")),
                Escaped(&run.verdict.explanation),
            )?;
            if !run.verdict.notes.is_empty() {
                self.html.push_str("<ul class=\"notes\">");
                for (note, count) in &run.verdict.notes {
                    write!(self.html, "<li>{}: {}</li>", Escaped(note), whole(*count))?;
                }
                self.html.push_str("</ul>");
            }
            self.html.push_str("</div>\n");
        }
        for (name, section) in [
            (self.say("The idea", "想法"), "Idea"),
            (self.say("Where it comes from", "出处"), "Source"),
            (self.say("How it fails", "怎样失败"), "How it fails"),
            (self.say("Break it yourself", "亲手弄坏它"), "Break it"),
            (self.say("What to use instead", "换用什么"), "Instead"),
        ] {
            writeln!(
                self.html,
                "<h4>{name}</h4><p>{}</p>",
                Escaped(strategy.says(section, language))
            )?;
        }
        let code = self.say("The code of the purchase", "购买的代码");
        write!(
            self.html,
            "<details><summary>{code}</summary><pre \
             tabindex=\"0\"><code>{}</code></pre></details>\n</article>\n",
            Escaped(strategy.purchase_code()),
        )
    }

    fn footer(&mut self) -> fmt::Result {
        let text = self.say(
            "Latencies are counted in buckets that are right to 3 %. Broken strategies are made to \
             break: buyers are brought to the dangerous point at the same moment. One machine, one \
             run: read the orders of magnitude, not the digits.",
            "延迟按桶统计，误差不超过 3 %。有漏洞的策略是被故意弄坏的：让买家同时站到危险的那一步。一台机器、一次运行：请看数量级，不要纠结个位数。",
        );
        writeln!(self.html, "<footer><p>{text}</p></footer>")
    }
}

/// A promise in three signs.
fn signs(harms: &Harms) -> String {
    let sign = |(_, likelihood)| match likelihood {
        Likelihood::Never => "–",
        Likelihood::Possible => "?",
        Likelihood::Expected => "!",
    };
    harms.each().map(sign).join(" ")
}

fn bad_if(count: i64) -> &'static str {
    if count > 0 { "bad" } else { "" }
}

/// The first run of each strategy, in order.
fn first_of_each(runs: &[Run]) -> impl Iterator<Item = &Run> {
    let is_first = |index: usize, run: &Run| {
        let mut before = runs.iter().take(index);
        !before.any(|other| other.verdict.strategy == run.verdict.strategy)
    };
    runs.iter().enumerate().filter(move |(index, run)| is_first(*index, run)).map(|(_, run)| run)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{STRATEGIES, verdict::Percentiles};
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
            round_trips: crate::verdict::RoundTrips { redis: 1.0, postgres: 0.02, zookeeper: 0.0 },
            notes: BTreeMap::new(),
            quiet: true,
            kept_promise: sold <= 100,
            explanation: "Said.".to_owned(),
        };
        Run { verdict, options: Map::new(), storm: None }
    }

    fn about() -> About {
        About {
            title: None,
            made_at: OffsetDateTime::UNIX_EPOCH,
            machine: "a machine".to_owned(),
            commit: None,
        }
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
            let empty = render(&[], &about(), language);
            check(&empty);
            assert!(!empty.contains("<figure"));

            let one = render(&[run("naive", 145)], &about(), language);
            check(&one);
            assert_eq!(one.matches("<figure>").count(), 4);
            assert_eq!(one.matches("<article ").count(), 1);

            let both = |strategy: &Strategy| [run(strategy.id, 100), run(strategy.id, 3_000)];
            let all: Vec<Run> = STRATEGIES.iter().flat_map(both).collect();
            let all_page = render(&all, &about(), language);
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
        let about = About {
            title: Some(evil.to_owned()),
            machine: evil.to_owned(),
            commit: Some(evil.to_owned()),
            ..about()
        };
        let page = render(&[bad], &about, Language::En);
        check(&page);
        assert!(!page.contains("<img"));
        assert!(page.matches("&lt;img src=x onerror=alert(1)&gt;&quot;&#39;&amp;").count() >= 6);
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
        check(&render(&[idle], &about(), Language::Zh));
    }

    #[test]
    fn what_went_wrong_is_said_in_the_chart() {
        let mut wrong = run("naive", 145);
        wrong.verdict.duplicates = 2;
        wrong.verdict.lost = 1;
        let page = render(&[wrong], &about(), Language::En);
        assert!(page.contains("+45 oversold · 2 duplicate · 1 lost"));
        assert!(page.contains("promise broken"));
        let cut = render(&[run("naive", 2_000)], &about(), Language::En);
        assert!(cut.contains("+1,900 oversold"));
    }

    #[test]
    fn numbers_are_written_as_one_reads_them() {
        assert_eq!(number(0.0, 0), "0");
        assert_eq!(number(999.0, 0), "999");
        assert_eq!(number(1_234_567.0, 0), "1,234,567");
        assert_eq!(number(-1_234.56, 1), "−1,234.6");
        assert_eq!(
            (millis(0.42), millis(12.34), millis(1_234.5)),
            ("0.42".into(), "12.3".into(), "1,234".into())
        );
    }
}
