//! What operators look at is what the program really exports: every metric, label and label value that an alert or
//! the dashboard names is compared with a scrape of a running process that has had some of everything.

use crate::{
    cli::{Home, Program, settings_of},
    support::{
        Servers,
        app::{ADMIN_TOKEN, eventually},
    },
};
use reqwest::{Client, Method};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// What Prometheus adds to every sample.
const ADDED: [&str; 2] = ["instance", "job"];
/// What Prometheus says of a scrape itself.
const UP: &str = "up";

/// Metric → label → the values it has.
type Exported = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Reads the text format; a panic on a line that is none of it.
fn parse(text: &str) -> Exported {
    let mut exported = Exported::new();
    for line in text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
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
    text.split("\",")
        .filter(|part| !part.trim().is_empty())
        .map(|part| {
            let (label, value) = part.split_once('=').expect("label=value");
            let value = value.trim_start_matches('~').trim_matches('"');
            (
                label.trim_end_matches('!').trim().to_owned(),
                value.to_owned(),
            )
        })
        .collect()
}

/// A query, and the labels that its legend or its annotations show.
struct Query {
    place: String,
    expression: String,
    shown: Vec<String>,
}

/// The names between `{{` and `}}`.
fn shown_by(template: &str) -> Vec<String> {
    let parts = template.split("{{").skip(1);
    let names = parts.filter_map(|part| part.split("}}").next());
    names
        .map(|name| name.trim().trim_start_matches("$labels.").to_owned())
        .collect()
}

/// What is wrong with a query, as far as this scrape shows.
fn problems(query: &Query, exported: &Exported) -> Vec<String> {
    let Query {
        place,
        expression,
        shown,
    } = query;
    let mut found = Vec::new();
    let is_of_a_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let (mut named, mut rest) = (BTreeSet::new(), expression.as_str());
    while let Some(start) = rest.find(|c: char| c.is_ascii_alphabetic() || c == '_') {
        let length = rest[start..].find(|c| !is_of_a_name(c));
        let (word, after) = rest[start..].split_at(length.unwrap_or(rest.len() - start));
        rest = after;
        if word.starts_with("flash_sale_") || word == UP {
            named.insert(word.to_owned());
            let Some(labels) = exported.get(word) else {
                found.push(format!("{place}: no metric {word}"));
                continue;
            };
            if let Some(inside) = rest.strip_prefix('{') {
                let (inside, after) = inside.split_once('}').expect("a closing brace");
                rest = after;
                for (label, value) in matchers(inside) {
                    match labels.get(&label) {
                        _ if ADDED.contains(&label.as_str()) => {}
                        None => found.push(format!("{place}: {word} has no label {label}")),
                        Some(values) if !values.contains(&value) => {
                            found.push(format!("{place}: {word} has no {label} {value:?}"));
                        }
                        Some(_) => {}
                    }
                }
            }
        } else if ["by", "on", "ignoring", "without"].contains(&word) {
            let list = rest
                .trim_start()
                .strip_prefix('(')
                .and_then(|list| list.split(')').next());
            let labels = list.unwrap_or_default().split(',').map(str::trim);
            found.extend(unknown_labels(
                place,
                labels,
                &all_named(expression),
                exported,
            ));
            rest = rest.split_once(')').map_or("", |(_, after)| after);
        }
    }
    if named.is_empty() {
        found.push(format!("{place}: names no metric"));
    }
    let shown = shown.iter().map(String::as_str);
    found.extend(unknown_labels(place, shown, &named, exported));
    found
}

/// The metrics of an expression.
fn all_named(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words
        .filter(|word| word.starts_with("flash_sale_") || *word == UP)
        .map(str::to_owned)
        .collect()
}

fn unknown_labels<'a>(
    place: &str,
    labels: impl Iterator<Item = &'a str>,
    named: &BTreeSet<String>,
    exported: &Exported,
) -> Vec<String> {
    labels
        .filter(|label| !ADDED.contains(label))
        .filter(|label| {
            let has = |metric: &String| {
                exported
                    .get(metric)
                    .is_some_and(|labels| labels.contains_key(*label))
            };
            !named.iter().any(has)
        })
        .map(|label| format!("{place}: none of {named:?} has a label {label}"))
        .collect()
}

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy")
}

/// Every query of every dashboard.
fn queries_of_dashboards() -> Vec<Query> {
    let mut queries = Vec::new();
    let folder = deploy().join("grafana/dashboards");
    for file in fs::read_dir(folder).expect("the dashboards") {
        let path = file.expect("a file").path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("text");
        let dashboard: Value = serde_json::from_str(&text).expect("JSON");
        for panel in dashboard["panels"].as_array().expect("panels") {
            let title = panel["title"].as_str().expect("a title");
            for target in panel["targets"].as_array().expect("targets") {
                queries.push(Query {
                    place: format!("panel {title:?}"),
                    expression: target["expr"].as_str().expect("a query").to_owned(),
                    shown: shown_by(target["legendFormat"].as_str().unwrap_or_default()),
                });
            }
        }
    }
    queries
}

/// Every alert: its `expr:` line and what its `summary:` shows.
fn queries_of_alerts() -> Vec<Query> {
    let text = fs::read_to_string(deploy().join("alerts.yml")).expect("the alerts");
    text.split("- alert: ")
        .skip(1)
        .map(|alert| {
            let line = |key: &str| {
                let found = alert.lines().find_map(|line| line.trim().strip_prefix(key));
                found
                    .unwrap_or_else(|| panic!("no {key} in {alert}"))
                    .trim()
            };
            Query {
                place: format!("alert {}", alert.lines().next().unwrap_or_default()),
                expression: line("expr:").to_owned(),
                shown: shown_by(line("summary:")),
            }
        })
        .collect()
}

/// A process that has had some of everything; what it exports then.
async fn scrape() -> Exported {
    let servers = Servers::shared().await;
    let database = servers.database().await;
    let home = Home::new();
    let settings = settings_of(servers, &database, "watching:");
    let settings: Vec<(&str, &str)> =
        (settings.iter().map(|(name, value)| (*name, value.as_str()))).collect();
    let program = Program::serve(&home, &[], &settings).await;
    let client = Client::new();
    let call = async |method: Method, path: &str, token: &str, body: Option<Value>| -> Value {
        let mut request = client.request(method, program.url(path)).bearer_auth(token);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let reply = request.send().await.expect("an answer");
        reply.json().await.unwrap_or_default()
    };
    let sale = json!({"title": "a thing", "price_cents": 100, "stock": 2});
    let sale = call(Method::POST, "/api/v1/admin/sales", ADMIN_TOKEN, Some(sale)).await;
    let sale = sale["id"].as_str().expect("an id").to_owned();
    let events = client.get(program.url(&format!("/api/v1/sales/{sale}/events")));
    let mut streams = vec![events.send().await.expect("an answer")];
    for last in ["pay", "cancel"] {
        let session = call(Method::POST, "/api/v1/session", "", Some(json!({}))).await;
        let token = session["token"].as_str().expect("a token");
        let path = format!("/api/v1/sales/{sale}/orders");
        let order = call(Method::POST, &path, token, None).await;
        let order = order["order_id"].as_str().expect("an order");
        let path = format!("/api/v1/orders/{order}");
        let events = client
            .get(program.url(&format!("{path}/events")))
            .bearer_auth(token);
        streams.push(events.send().await.expect("an answer"));
        eventually("the order is closed or paid", async || {
            let answer = call(Method::POST, &format!("{path}/{last}"), token, None).await;
            answer["order_id"].is_string().then_some(())
        })
        .await;
    }
    let text = client
        .get(program.url("/metrics"))
        .send()
        .await
        .expect("an answer");
    let text = text.text().await.expect("text");
    drop(streams);
    program.terminate().await;
    database.drop().await;
    let mut exported = parse(&text);
    exported.insert(UP.to_owned(), BTreeMap::new());
    exported
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alerts_and_dashboard_name_what_the_program_exports() {
    let exported = scrape().await;
    let (dashboards, alerts) = (queries_of_dashboards(), queries_of_alerts());
    assert!(dashboards.len() >= 15 && alerts.len() >= 10);
    let found: Vec<String> = (dashboards.iter().chain(&alerts))
        .flat_map(|query| problems(query, &exported))
        .collect();
    assert!(found.is_empty(), "{found:#?}");

    // What is wrong is found: a name, a label, a value, and a label that is only shown.
    let planted = |expression: &str, legend: &str| {
        let query = Query {
            place: "planted".to_owned(),
            expression: expression.to_owned(),
            shown: shown_by(legend),
        };
        problems(&query, &exported).len()
    };
    let sound = "sum by (status) (rate(flash_sale_orders_total{status=\"paid\"}[1m]))";
    assert_eq!(planted(sound, "{{status}} {{instance}}"), 0);
    assert_eq!(planted("flash_sale_order_total", ""), 1);
    assert_eq!(planted("rate(flash_sale_gate_seconds_buckets[1m])", ""), 1);
    assert_eq!(planted("flash_sale_orders_total{state=\"paid\"}", ""), 1);
    assert_eq!(planted("flash_sale_orders_total{status=\"payed\"}", ""), 1);
    assert_eq!(planted("sum by (sale) (flash_sale_orders_total)", ""), 1);
    assert_eq!(planted("flash_sale_orders_total", "{{state}}"), 1);
    assert_eq!(planted("vector(1)", ""), 1);
}
