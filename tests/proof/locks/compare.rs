//! The comparison: every claim has a test that exists, and the costs are measured.

use crate::support::locks::*;
use lab::lessons;
use locks::compare::{self, PROPERTIES, ROWS};
use locks::wire::RoundTrips;
use std::collections::HashSet;
use std::path::Path;

/// A test of the locks in either tier, or an act of a lesson.
fn exists(file: &str, test: &str) -> Option<()> {
    if file == "lessons" {
        let (lesson, act) = test.split_once('/')?;
        return lessons::find(lesson)?.acts.iter().any(|one| one.id == act).then_some(());
    }
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut files =
        ["it", "proof"].map(|tier| tests.join(tier).join("locks").join(file)).into_iter();
    let source = files.find_map(|path| std::fs::read_to_string(path.with_extension("rs")).ok())?;
    let (before, _) = source.split_once(&format!("fn {test}("))?;
    let attribute = before.lines().rev().nth(1)?;
    (attribute.starts_with("#[") && attribute.contains("test")).then_some(())
}

#[test]
fn every_claim_names_a_test_that_exists() {
    for row in ROWS {
        for (property, cell) in PROPERTIES.iter().zip(&row.cells) {
            let claim = format!("{} of {}: {}", property.id, row.id, cell.test);
            let (file, test) = cell.test.split_once("::").expect(&claim);
            exists(file, test).expect(&claim);
            for text in [cell.why, row.use_when, row.not_given, row.title] {
                assert!(!text.en.is_empty() && !text.zh.is_empty(), "{claim}");
            }
        }
    }
    let ids: HashSet<_> = ROWS.iter().map(|row| row.id).collect();
    assert_eq!(ids.len(), ROWS.len());
}

#[tokio::test]
async fn the_cost_of_every_lock() {
    let server = zookeeper("the_cost_of_every_lock").await;
    let servers = compare::Servers {
        redis: line("measure").await,
        nodes: lines("measure", three().await).await,
        sql: Some(Sql::new(pool(2).await)),
        zoo: server.map(|server| Zoo::new(&server.cluster(), Duration::from_secs(10))),
    };
    let costs = compare::measure(&servers, &name("measure")).await;
    for cost in &costs {
        eprintln!("{:16} p50 {:?}, p99 {:?}", cost.id, cost.p50, cost.p99);
        assert!(cost.p50 <= cost.p99 && cost.samples > 0);
    }
    // Requests to Redis, Postgres and ZooKeeper: to acquire, and to release.
    let expected = [
        ("setnx-expire", [2, 0, 0], [1, 0, 0]),
        ("setnx-getset", [1, 0, 0], [1, 0, 0]),
        ("set-px-no-owner", [1, 0, 0], [1, 0, 0]),
        ("token-lock", [1, 0, 0], [1, 0, 0]),
        ("reentrant-lock", [1, 0, 0], [1, 0, 0]),
        ("multi-lock", [3, 0, 0], [3, 0, 0]),
        ("redlock", [3, 0, 0], [3, 0, 0]),
        ("advisory-lock", [0, 2, 0], [0, 1, 0]),
        ("db-lock-table", [0, 1, 0], [0, 1, 0]),
        ("zookeeper-lock", [0, 0, 3], [0, 0, 1]),
    ];
    assert!(ROWS.iter().map(|row| row.id).eq(expected.map(|(id, ..)| id)));
    let trips = |of: RoundTrips| [of.redis, of.postgres, of.zookeeper];
    let measured = costs.iter().map(|cost| (cost.id, trips(cost.acquire), trips(cost.release)));
    let known = if servers.zoo.is_some() { &expected[..] } else { &expected[..9] };
    assert_eq!(measured.collect::<Vec<_>>(), known);
}
