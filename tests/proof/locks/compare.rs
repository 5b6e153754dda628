//! The comparison: every claim has a test that exists, and the costs are measured.

use crate::support::locks::*;
use lab::lock_comparison::{Claim, claims};
use lab::lock_costs::{self, Connections};
use lab::{lessons, lock_sources::SOURCES, marks, strategy::Language, texts};
use locks::wire::RoundTrips;
use std::{collections::HashSet, path::Path};

/// A test of the locks in either tier, or an act of a lesson.
fn exists(file: &str, test: &str) -> Option<()> {
    if file == "lessons" {
        let (lesson, act) = test.split_once('/')?;
        return lessons::find(lesson)?.acts.iter().any(|one| one.id == act).then_some(());
    }
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut files = [tests.join("it").join(file), tests.join("proof/locks").join(file)].into_iter();
    let source = files.find_map(|path| std::fs::read_to_string(path.with_extension("rs")).ok())?;
    let (before, _) = source.split_once(&format!("fn {test}("))?;
    let attribute = before.lines().rev().nth(1)?;
    (attribute.starts_with("#[") && attribute.contains("test")).then_some(())
}

#[test]
fn every_claim_names_a_test_that_exists() {
    let properties = ["mutual_exclusion", "no_deadlock", "node_failure", "only_owner_unlocks"];
    let all: Vec<Claim> = claims().collect();
    for of_one in all.chunks(properties.len()) {
        assert!(of_one.iter().map(|claim| claim.property).eq(properties), "{of_one:?}");
        for claim in of_one {
            let said = format!("{claim:?}");
            assert_eq!(claim.lock, of_one[0].lock, "{said}");
            assert!(["yes", "no", "partly"].contains(&claim.holds), "{said}");
            let (file, test) = claim.test.split_once("::").expect(&said);
            exists(file, test).expect(&said);
            for language in [Language::En, Language::Zh] {
                let words = texts::of("locks", language).expect("a text");
                let keys = [claim.property, "use_when", "not_given"].map(|key| (claim.lock, key));
                let titles = [claim.lock, claim.property].map(|title| ("Titles", title));
                for (section, key) in keys.into_iter().chain(titles) {
                    assert!(words.item(section, key).is_some(), "{section}, {key} of {said}");
                }
            }
        }
    }
    let locks: HashSet<_> = all.iter().map(|claim| claim.lock).collect();
    assert_eq!(locks.len() * properties.len(), all.len());
}

/// The words of a lock's marks are numbered in the order of its sources.
#[test]
fn every_mark_of_a_lock_has_its_words() {
    for id in SOURCES.iter().map(|(id, _)| *id).collect::<HashSet<_>>() {
        let of_one = SOURCES.iter().filter(|(of, _)| *of == id).map(|(_, source)| *source);
        let excerpts: Vec<_> = of_one.flat_map(marks::excerpts).collect();
        assert!(!excerpts.is_empty(), "{id} has no mark");
        for excerpt in &excerpts {
            assert!(excerpt.code.lines().count() <= marks::MOST_LINES, "{excerpt:?}");
        }
        for language in [Language::En, Language::Zh] {
            let words = texts::of("locks", language).expect("a text");
            let numbers = words.items(id).filter_map(|(key, _)| key.parse::<usize>().ok());
            assert!(numbers.eq(1..=excerpts.len()), "{id}, {language:?}");
        }
    }
}

#[tokio::test]
async fn the_cost_of_every_lock() {
    let server = zookeeper().await;
    let servers = Connections {
        redis: line("measure").await,
        nodes: lines("measure", three().await).await,
        sql: Some(Sql::new(pool(2).await)),
        zoo: server.map(|server| Zoo::new(&server.cluster(), Duration::from_secs(10))),
    };
    let (costs, _) = lock_costs::measure(&servers, &name("measure")).await;
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
    let mut known: Vec<&str> = claims().map(|claim| claim.lock).collect();
    known.dedup();
    assert_eq!(known, expected.map(|(id, ..)| id));
    let trips = |of: RoundTrips| [of.redis, of.postgres, of.zookeeper];
    let measured = costs.iter().map(|cost| (cost.id, trips(cost.acquire), trips(cost.release)));
    let known = if servers.zoo.is_some() { &expected[..] } else { &expected[..9] };
    assert_eq!(measured.collect::<Vec<_>>(), known);
}
