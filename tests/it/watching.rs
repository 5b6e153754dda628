//! Every metric, label and value that alerts and dashboards name is in a scrape of the program.

use crate::support::prelude::*;

const ADDED: [&str; 2] = ["instance", "job"];

type Exported = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

fn parse(text: &str) -> Exported {
    let mut exported = Exported::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (name, labels) = match line.split_once('{') {
            Some((name, rest)) => (name, rest.rsplit_once('}').expect("a closing brace").0),
            None => (line.split_once(' ').expect("a value").0, ""),
        };
        let known = exported.entry(name.to_owned()).or_default();
        for (label, value) in matchers(labels) {
            known.entry(label).or_default().insert(value);
        }
    }
    exported
}

/// `a="b",c="d"` as pairs; the values have neither quotes nor backslashes in them.
fn matchers(text: &str) -> Vec<(String, String)> {
    let pair = |part: &str| {
        let (label, value) = part.split_once('=').expect("label=value");
        let value = value.trim_start_matches('~').trim_matches('"');
        (label.trim_end_matches('!').trim().to_owned(), value.to_owned())
    };
    text.split("\",").filter(|part| !part.trim().is_empty()).map(pair).collect()
}

struct Query {
    place: String,
    expression: String,
    shown: Vec<String>,
}

impl Query {
    /// The template is that of a legend or of an alert's summary.
    fn new(place: String, expression: &str, template: &str) -> Self {
        let names = template.split("{{").skip(1).filter_map(|part| part.split("}}").next());
        let names = names.map(|name| name.trim().trim_start_matches("$labels."));
        let shown = names.map(str::to_owned).collect();
        Self { place, expression: expression.to_owned(), shown }
    }
}

fn problems(query: &Query, exported: &Exported) -> Vec<String> {
    let Query { place, expression, shown } = query;
    let (mut found, mut named, mut known) = (Vec::new(), BTreeSet::new(), BTreeSet::from(ADDED));
    let is_of_a_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let starts = expression.match_indices("flash_sale_").chain(expression.match_indices("up{"));
    for (start, _) in starts {
        let length = expression[start..].find(|c| !is_of_a_name(c));
        let (name, rest) = expression[start..].split_at(length.unwrap_or(expression.len() - start));
        named.insert(name);
        let Some(labels) = exported.get(name) else {
            found.push(format!("{place}: no metric {name}"));
            continue;
        };
        known.extend(labels.keys().map(String::as_str));
        let selector = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        for (label, value) in matchers(selector.map_or("", |(selector, _)| selector)) {
            let values = labels.get(&label);
            let is_known = values.is_some_and(|values| values.contains(&value));
            if !is_known && !ADDED.contains(&label.as_str()) {
                found.push(format!("{place}: {name} has no {label} {value:?}"));
            }
        }
    }
    if named.is_empty() {
        found.push(format!("{place}: names no metric"));
    }
    let expression = expression.replace(" (", "(").replace('(', " (");
    let grouped = ["by (", "on (", "ignoring (", "without ("].iter().flat_map(|word| {
        let lists = expression.split(word).skip(1).filter_map(|rest| rest.split(')').next());
        lists.flat_map(|list| list.split(',')).map(str::trim)
    });
    let labels = grouped.chain(shown.iter().map(String::as_str));
    let unknown = labels.filter(|label| !known.contains(label));
    found.extend(unknown.map(|label| format!("{place}: none of {named:?} has a label {label}")));
    found
}

fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(path)
}

fn queries_of_dashboards() -> Vec<Query> {
    let mut queries = Vec::new();
    let dashboards = deploy("grafana/dashboards");
    let files = entries(&dashboards);
    for file in files.filter(|file| file.extension().is_some_and(|is| is == "json")) {
        let text = fs::read_to_string(file).expect("text");
        let dashboard: Value = serde_json::from_str(&text).expect("JSON");
        for panel in dashboard["panels"].as_array().expect("panels") {
            let title = panel["title"].as_str().expect("a title");
            for target in panel["targets"].as_array().expect("targets") {
                let expression = target["expr"].as_str().expect("a query");
                let legend = target["legendFormat"].as_str().unwrap_or_default();
                queries.push(Query::new(format!("panel {title:?}"), expression, legend));
            }
        }
    }
    queries
}

fn queries_of_alerts() -> Vec<Query> {
    let query = |alert: &str| {
        let line = |key: &str| {
            let found = alert.lines().find_map(|line| line.trim().strip_prefix(key));
            found.unwrap_or_else(|| panic!("no {key} in {alert}"))
        };
        let place = format!("alert {}", alert.lines().next().unwrap_or_default());
        Query::new(place, line("expr:").trim(), line("summary:"))
    };
    let alerts = fs::read_to_string(deploy("alerts.yml")).expect("the alerts");
    alerts.split("- alert: ").skip(1).map(query).collect()
}

async fn scrape() -> Exported {
    let (home, _) = Home::on_shared_servers("watching:").await;
    let program = Program::serve(&home, "").await;
    let get = |path: &str| program.ask("GET", path);
    let sale = program.sale(2).await;
    let mut streams = vec![get(&format!("/api/v1/sales/{sale}/events")).begin().await];
    for last in ["pay", "cancel"] {
        let shopper = program.entrance(SECRET).shopper();
        let bought = shopper.buy(&sale).await;
        let path = format!("/api/v1/orders/{}", bought.text("order_id"));
        streams.push(shopper.ask("GET", &format!("{path}/events")).begin().await);
        wait_for!(shopper.post(&format!("{path}/{last}")).await.body["order_id"].is_string());
    }
    let metrics = get("/metrics").await;
    assert!(metrics.header("content-type").starts_with("text/plain"));
    drop(streams);
    program.terminate().await;
    let mut exported = parse(metrics.body.as_str().expect("text"));
    // Prometheus makes it of the scrape itself.
    exported.insert("up".to_owned(), BTreeMap::new());
    exported
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alerts_and_dashboard_name_what_the_program_exports() {
    let exported = scrape().await;
    let (dashboards, alerts) = (queries_of_dashboards(), queries_of_alerts());
    assert!(dashboards.len() >= 15 && alerts.len() >= 10);
    for query in dashboards.iter().chain(&alerts) {
        assert_eq!(problems(query, &exported), [""; 0], "{}", query.expression);
    }
    // Planted mistakes are found: a name, a label, a value, and a label in a legend.
    let sum = "sum by (status) (rate(flash_sale_orders_total{status=\"paid\"}[1m]))";
    for (expression, legend, count) in [
        (sum, "{{status}} {{instance}}", 0),
        ("flash_sale_admissions_total{verdict=\"sold_out\"}", "{{verdict}}", 0),
        ("flash_sale_order_total", "", 1),
        ("rate(flash_sale_admission_seconds_buckets[1m])", "", 1),
        ("flash_sale_orders_total{state=\"paid\"}", "", 1),
        ("flash_sale_orders_total{status=\"payed\"}", "", 1),
        ("sum by (sale) (flash_sale_orders_total)", "", 1),
        ("flash_sale_orders_total", "{{state}}", 1),
        ("vector(1)", "", 1),
    ] {
        let query = Query::new("planted".to_owned(), expression, legend);
        assert_eq!(problems(&query, &exported).len(), count, "{expression}");
    }
}
