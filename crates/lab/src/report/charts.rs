//! The pictures of the report: each a figure that says how to read it, an SVG, and the same as a
//! table.

use super::{Escaped, Page, Run, millis, number, per_second, whole};
use crate::verdict::Percentiles;
use std::fmt::{self, Write};

/// Where the plots begin, how wide they are, and how high one run is.
const LEFT: f64 = 210.0;
const PLOT: f64 = 960.0 - LEFT;
const ROW: f64 = 26.0;

struct Chart<'a> {
    id: &'a str,
    title: &'a str,
    /// How to read it.
    read: &'a str,
    /// Samples of what stands for what.
    key: &'a [(&'a String, &'a str)],
    height: f64,
    drawing: String,
    heads: &'a [&'a str],
    rows: Vec<Vec<String>>,
}

/// An axis on which every step is ten times the one before; from and to whole powers of ten.
struct Decades {
    first: i32,
    last: i32,
    width: f64,
}

impl Decades {
    /// Zeros are left out: they have no place on it.
    fn around(values: impl Iterator<Item = f64>, width: f64) -> Self {
        let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
        for value in values.filter(|value| *value > 0.0) {
            least = least.min(value.max(0.01));
            most = most.max(value);
        }
        let first = if least.is_finite() { least.log10().floor() as i32 } else { 0 };
        let last = (most.max(0.01).log10().ceil() as i32).max(first + 1);
        Self { first, last, width }
    }

    fn x(&self, value: f64) -> f64 {
        let place = value.max(0.01).log10() - f64::from(self.first);
        LEFT + place.max(0.0) / f64::from(self.last - self.first) * self.width
    }

    fn grid(&self, unit: &str, bottom: f64) -> String {
        let line = |decade: i32| {
            let value = 10_f64.powi(decade);
            let value = number(value, usize::try_from(-decade).unwrap_or(0));
            format!(
                "<line class=\"grid\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"20\" \
                 y2=\"{bottom:.1}\"/><text class=\"soft\" x=\"{0:.1}\" y=\"13\" \
                 text-anchor=\"middle\">{value}{unit}</text>",
                self.x(10_f64.powi(decade)),
            )
        };
        (self.first..=self.last).map(line).collect()
    }
}

fn label(drawing: &mut String, run: &Run, y: f64) -> fmt::Result {
    write!(
        drawing,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
        LEFT - 12.0,
        y + 12.5,
        Escaped(run.label()),
    )
}

/// A latency: from p50 over p95 to p99.
fn span(class: &str, [p50, p95, p99]: [f64; 3], y: f64) -> String {
    format!(
        "<line class=\"{class} span\" x1=\"{p50:.1}\" x2=\"{p99:.1}\" y1=\"{y:.1}\" \
         y2=\"{y:.1}\"/><line class=\"{class} span\" x1=\"{p99:.1}\" x2=\"{p99:.1}\" y1=\"{:.1}\" \
         y2=\"{:.1}\"/><circle class=\"{class} hollow\" cx=\"{p95:.1}\" cy=\"{y:.1}\" \
         r=\"3.5\"/><circle class=\"{class}\" cx=\"{p50:.1}\" cy=\"{y:.1}\" r=\"4\"/>",
        y - 4.0,
        y + 4.0,
    )
}

impl Page {
    /// A figure: what it shows and how to read it, the drawing, the same as a table.
    fn figure(&mut self, chart: &Chart<'_>) -> fmt::Result {
        let Chart { id, title, read, key, height, drawing, heads, rows } = chart;
        write!(
            self.html,
            "<figure>\n<figcaption><h3 id=\"{id}\">{title}</h3><p>{read}</p></figcaption>\n"
        )?;
        if !key.is_empty() {
            self.html.push_str("<ul class=\"key\" aria-hidden=\"true\">");
            for (sample, text) in *key {
                write!(self.html, "<li><svg viewBox=\"0 0 32 16\">{sample}</svg>{text}</li>")?;
            }
            self.html.push_str("</ul>\n");
        }
        write!(
            self.html,
            "<div class=\"scroll\" tabindex=\"0\"><svg viewBox=\"0 0 960 {height}\" role=\"img\" \
             aria-labelledby=\"{id}\">{drawing}</svg></div>\n<details><summary>{}</summary><div \
             class=\"scroll\" tabindex=\"0\"><table><thead><tr>",
            self.say("The same as a table", "用表格看")
        )?;
        for head in *heads {
            write!(self.html, "<th scope=\"col\">{head}</th>")?;
        }
        self.html.push_str("</tr></thead><tbody>\n");
        for row in rows {
            for (index, cell) in row.iter().enumerate() {
                let (open, close) = if index == 0 {
                    ("<tr><th scope=\"row\">", "</th>")
                } else {
                    ("<td>", "</td>")
                };
                write!(self.html, "{open}{}{close}", Escaped(cell))?;
            }
            self.html.push_str("</tr>\n");
        }
        self.html.push_str("</tbody></table></div></details>\n</figure>\n");
        Ok(())
    }

    pub(super) fn sold(&mut self, runs: &[Run]) -> fmt::Result {
        // Beyond twice the stock a bar is cut: how much is then in its label.
        const MOST: f64 = 2.0;
        let share = |run: &Run| run.verdict.sold as f64 / run.verdict.stock.max(1) as f64;
        let most = runs.iter().map(share).fold(1.25_f64, f64::max).min(MOST);
        let mut drawing = String::from(
            "<defs><pattern id=\"stripes\" width=\"8\" height=\"8\" \
             patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><rect class=\"over\" \
             width=\"8\" height=\"8\"/><line class=\"cut\" x1=\"0\" y1=\"0\" x2=\"0\" \
             y2=\"8\"/></pattern></defs>",
        );
        let width = PLOT - 240.0;
        let x = |share: f64| LEFT + share.min(most) / most * width;
        for (index, run) in runs.iter().enumerate() {
            let y = 30.0 + index as f64 * ROW;
            let verdict = &run.verdict;
            let mut words = Vec::new();
            label(&mut drawing, run, y)?;
            let sold = share(run).min(1.0);
            write!(
                drawing,
                "<rect class=\"track\" x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" \
                 height=\"15\"/><rect class=\"bar\" x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" \
                 height=\"16\"/>",
                y + 0.5,
                x(1.0) - LEFT,
                y,
                x(sold) - LEFT,
            )?;
            if verdict.oversold > 0 {
                write!(
                    drawing,
                    "<rect fill=\"url(#stripes)\" x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" \
                     height=\"16\"/>",
                    x(1.0),
                    x(share(run)) - x(1.0),
                )?;
                if share(run) > most {
                    let cut = x(most) - 10.0;
                    write!(
                        drawing,
                        "<path class=\"cut\" d=\"M{cut:.1} {:.1}l6 -20m3 0l-6 20\"/>",
                        y + 18.0
                    )?;
                }
                words.push(format!(
                    "+{} {}",
                    whole(verdict.oversold),
                    self.say("oversold", "超卖")
                ));
            }
            for (count, en, zh) in [
                (verdict.undersold, "left over", "没卖掉"),
                (verdict.duplicates, "duplicate", "重复"),
                (verdict.lost, "lost", "丢单"),
            ] {
                if count > 0 {
                    words.push(format!("{} {}", whole(count), self.say(en, zh)));
                }
            }
            let end = x(share(run).max(1.0)) + 8.0;
            let sold = format!("{} / {}", whole(verdict.sold), whole(verdict.stock));
            write!(
                drawing,
                "<text x=\"{end:.1}\" y=\"{:.1}\">{sold}<tspan class=\"bad-text\" \
                 dx=\"8\">{}</tspan></text>",
                y + 12.5,
                Escaped(words.join(" · ")),
            )?;
        }
        let bottom = 30.0 + runs.len() as f64 * ROW;
        write!(
            drawing,
            "<line class=\"stock\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"20\" y2=\"{1:.1}\"/><text \
             class=\"strong\" x=\"{0:.1}\" y=\"13\" text-anchor=\"middle\">{2}</text>",
            x(1.0),
            bottom,
            self.say("stock", "库存"),
        )?;
        let rows = runs.iter().map(|run| {
            let v = &run.verdict;
            let counts = [v.stock, v.sold, v.oversold, v.undersold, v.duplicates, v.lost];
            [run.label()].into_iter().chain(counts.map(whole)).collect()
        });
        self.figure(&Chart {
            id: "sold",
            title: self.say("Sold against stock", "售出与库存"),
            read: self.say(
                "A bar that stops at the line is right. Red stripes beyond it are orders for \
                 things that do not exist; an empty frame before it is stock that was left \
                 although somebody wanted it.",
                "柱子正好停在线上才对。越过线的红色条纹是没有货的订单；线内的空框是明明有人要却没卖掉的货。",
            ),
            key: &[],
            height: bottom + 8.0,
            drawing,
            heads: &[
                self.say("Strategy", "策略"),
                self.say("Stock", "库存"),
                self.say("Sold", "售出"),
                self.say("Oversold", "超卖"),
                self.say("Undersold", "少卖"),
                self.say("Duplicates", "重复"),
                self.say("Lost", "丢单"),
            ],
            rows: rows.collect(),
        })
    }

    pub(super) fn throughput(&mut self, runs: &[Run]) -> fmt::Result {
        let values = runs.iter().map(|run| run.verdict.throughput_per_s);
        let scale = Decades::around(values, PLOT - 80.0);
        let bottom = 30.0 + runs.len() as f64 * ROW;
        let mut drawing = scale.grid("", bottom);
        for (index, run) in runs.iter().enumerate() {
            let y = 30.0 + index as f64 * ROW;
            let (x, middle) = (scale.x(run.verdict.throughput_per_s), y + 8.0);
            label(&mut drawing, run, y)?;
            write!(
                drawing,
                "<line class=\"stem\" x1=\"{LEFT}\" x2=\"{x:.1}\" y1=\"{middle:.1}\" \
                 y2=\"{middle:.1}\"/><circle class=\"bar\" cx=\"{x:.1}\" cy=\"{middle:.1}\" \
                 r=\"6\"/><text class=\"strong\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                x + 12.0,
                y + 12.5,
                per_second(run.verdict.throughput_per_s),
            )?;
        }
        let rows = runs.iter().map(|run| {
            let v = &run.verdict;
            vec![
                run.label(),
                per_second(v.throughput_per_s),
                whole(v.attempts),
                whole(v.contended),
                whole(v.failed),
            ]
        });
        self.figure(&Chart {
            id: "throughput",
            title: self.say("Attempts answered per second", "每秒应答的购买次数"),
            read: self.say(
                "Refusals count: most people in a flash sale are refused, and their waiting is \
                 what fills a server. Forced meetings of buyers and injected pauses cost time too, \
                 so compare only runs with the same options. Each line of the grid is ten times \
                 the one before.",
                "被拒绝的也算在内：抢购里绝大多数人都会被拒绝，占满服务器的正是他们的等待。强制相遇和人为停顿也花时间，所以只比较选项相同的运行。每条网格线是前一条的十倍。",
            ),
            key: &[],
            height: bottom + 4.0,
            drawing,
            heads: &[
                self.say("Strategy", "策略"),
                self.say("Attempts/s", "次/秒"),
                self.say("Attempts", "购买次数"),
                self.say("Contended", "争抢失败"),
                self.say("Failed", "出错"),
            ],
            rows: rows.collect(),
        })
    }

    pub(super) fn latency(&mut self, runs: &[Run]) -> fmt::Result {
        let of = |run: &Run| [("win", run.verdict.winners_ms), ("lose", run.verdict.losers_ms)];
        let values = runs.iter().flat_map(of).flat_map(|(_, latency)| [latency.p50, latency.p99]);
        let scale = Decades::around(values, PLOT - 60.0);
        let x = |value: f64| scale.x(value);
        let row = ROW + 8.0;
        let bottom = 30.0 + runs.len() as f64 * row;
        let mut drawing = scale.grid(" ms", bottom);
        for (index, run) in runs.iter().enumerate() {
            let top = 30.0 + index as f64 * row;
            label(&mut drawing, run, top + 4.0)?;
            for (line, (class, latency)) in of(run).into_iter().enumerate() {
                if latency.p99 > 0.0 {
                    let y = top + 6.0 + line as f64 * 12.0;
                    drawing.push_str(&span(
                        class,
                        [x(latency.p50), x(latency.p95), x(latency.p99)],
                        y,
                    ));
                }
            }
        }
        let cells =
            |latency: Percentiles| [latency.p50, latency.p95, latency.p99, latency.max].map(millis);
        let rows = runs.iter().map(|run| {
            let v = &run.verdict;
            let latencies = [v.winners_ms, v.losers_ms].into_iter().flat_map(cells);
            [run.label()].into_iter().chain(latencies).collect()
        });
        let (winners, losers) =
            (self.say("winners", "抢到的人"), self.say("everybody else", "其他人"));
        let samples = [span("win", [3.0, 18.0, 28.0], 8.0), span("lose", [3.0, 18.0, 28.0], 8.0)];
        self.figure(&Chart {
            id: "latency",
            title: self.say("How long buyers waited", "买家等了多久"),
            read: self.say(
                "Filled circle: half waited no longer (p50). Hollow circle: 95 of 100 (p95). Bar \
                 at the end: 99 of 100 (p99). Each line of the grid is ten times the one before.",
                "实心圆：一半人不超过此值（p50）。空心圆：一百人中的 95 人（p95）。末端竖线：99 人（p99）。每条网格线是前一条的十倍。",
            ),
            key: &[(&samples[0], winners), (&samples[1], losers)],
            height: bottom + 4.0,
            drawing,
            heads: &[
                self.say("Strategy", "策略"),
                self.say("winners p50", "抢到 p50"),
                "p95",
                "p99",
                "max",
                self.say("others p50", "其他 p50"),
                "p95",
                "p99",
                "max",
            ],
            rows: rows.collect(),
        })
    }

    pub(super) fn round_trips(&mut self, runs: &[Run]) -> fmt::Result {
        let of = |run: &Run| {
            let trips = run.verdict.round_trips;
            [("redis", trips.redis), ("postgres", trips.postgres), ("zookeeper", trips.zookeeper)]
        };
        let sum = |run: &Run| of(run).iter().map(|(_, count)| count).sum::<f64>();
        let most = runs.iter().map(sum).fold(1.0, f64::max);
        let mut drawing = String::new();
        for (index, run) in runs.iter().enumerate() {
            let y = 4.0 + index as f64 * ROW;
            let mut x = LEFT;
            label(&mut drawing, run, y)?;
            for (class, count) in of(run) {
                let width = count / most * (PLOT - 80.0);
                if width > 0.0 {
                    write!(
                        drawing,
                        "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" \
                         height=\"16\"/>",
                        (width - 1.0).max(0.5),
                    )?;
                    x += width;
                }
            }
            write!(
                drawing,
                "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                x + 8.0,
                y + 12.5,
                if sum(run) > 0.0 {
                    number(sum(run), 2)
                } else {
                    self.say("not counted", "未统计").to_owned()
                }
            )?;
        }
        let rows = runs.iter().map(|run| {
            let counts = of(run).map(|(_, count)| number(count, 2));
            [run.label()].into_iter().chain(counts).collect()
        });
        let square =
            |class: &str| format!("<rect class=\"{class}\" x=\"8\" width=\"16\" height=\"16\"/>");
        let samples = [square("redis"), square("postgres"), square("zookeeper")];
        self.figure(&Chart {
            id: "round-trips",
            title: self.say("Round trips for one attempt", "一次购买要往返几次"),
            read: self.say(
                "On average over winners and losers. This is what a strategy costs on any machine; \
                 the times above are those of this one.",
                "对抢到和没抢到的人取平均。这是一种策略在任何机器上都要付的代价；上面的时间只属于这台机器。",
            ),
            key: &[(&samples[0], "Redis"), (&samples[1], "Postgres"), (&samples[2], "ZooKeeper")],
            height: 4.0 + runs.len() as f64 * ROW,
            drawing,
            heads: &[self.say("Strategy", "策略"), "Redis", "Postgres", "ZooKeeper"],
            rows: rows.collect(),
        })
    }
}
