//! The comparison: every claim has a test that exists, and the costs are measured.

use super::{line, lines, name, pool, three, zookeeper};
use flash_sale::lock::{
    compare::{self, PROPERTIES, ROWS},
    wire::{RoundTrips, Sql},
    zookeeper::Zoo,
};
use std::{collections::HashSet, path::Path, time::Duration};

#[test]
fn every_claim_names_a_test_that_exists() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/locks");
    for row in ROWS {
        for (property, cell) in PROPERTIES.iter().zip(&row.cells) {
            let claim = format!("{} of {}: {}", property.id, row.id, cell.test);
            let (file, test) = cell.test.split_once("::").expect(&claim);
            let source = std::fs::read_to_string(folder.join(file).with_extension("rs"));
            let source = source.expect(&claim);
            let (before, _) = source.split_once(&format!("fn {test}(")).expect(&claim);
            let attribute = before.lines().rev().nth(1).unwrap_or_default();
            assert!(
                attribute.starts_with("#[") && attribute.contains("test"),
                "{claim}"
            );
            for text in [cell.why, row.use_when, row.not_given, row.title] {
                assert!(!text.en.is_empty() && !text.zh.is_empty(), "{claim}");
            }
        }
    }
    let ids: HashSet<_> = ROWS.iter().map(|row| row.id).collect();
    assert_eq!(ids.len(), ROWS.len());
}

#[tokio::test]
async fn what_every_lock_costs() {
    let server = zookeeper("what_every_lock_costs").await;
    let zoo = server.map(|server| Zoo::new(&server.cluster(), Duration::from_secs(10)));
    let servers = compare::Servers {
        redis: line("measure").await,
        nodes: lines("measure", three().await).await,
        sql: Some(Sql::new(pool(2).await)),
        zoo,
    };
    let costs = compare::measure(&servers, &name("measure")).await;
    for cost in &costs {
        eprintln!(
            "{:16} {:?} acquire, {:?} release, p50 {:?}, p99 {:?} of {}",
            cost.id,
            cost.acquire.total(),
            cost.release.total(),
            cost.p50,
            cost.p99,
            cost.samples
        );
        assert!(cost.p50 <= cost.p99 && cost.samples > 0);
    }
    let redis = |redis| RoundTrips {
        redis,
        ..RoundTrips::default()
    };
    let postgres = |postgres| RoundTrips {
        postgres,
        ..RoundTrips::default()
    };
    let zookeeper = |zookeeper| RoundTrips {
        zookeeper,
        ..RoundTrips::default()
    };
    let expected = [
        ("setnx-expire", redis(2), redis(1)),
        ("setnx-getset", redis(1), redis(1)),
        ("set-px-no-owner", redis(1), redis(1)),
        ("token-lock", redis(1), redis(1)),
        ("reentrant-lock", redis(1), redis(1)),
        ("multi-lock", redis(3), redis(3)),
        ("redlock", redis(3), redis(3)),
        ("advisory-lock", postgres(2), postgres(1)),
        ("db-lock-table", postgres(1), postgres(1)),
        ("zookeeper-lock", zookeeper(3), zookeeper(1)),
    ];
    let rows: Vec<_> = ROWS.iter().map(|row| row.id).collect();
    let measured: Vec<_> = costs
        .iter()
        .map(|cost| (cost.id, cost.acquire, cost.release))
        .collect();
    let known: Vec<_> = expected.iter().map(|(id, ..)| *id).collect();
    assert_eq!(rows, known);
    let expected = if servers.zoo.is_some() {
        &expected[..]
    } else {
        &expected[..9]
    };
    assert_eq!(measured, expected);
}
