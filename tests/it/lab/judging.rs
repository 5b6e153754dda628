//! What a verdict counts, on rows that the test has written itself; and what a crash takes with it.

use super::lab;
use flash_sale::lab::{
    Lab, Wanted,
    arena::Arena,
    servers,
    strategy::{Buyer, Language, Outcome},
};
use serde_json::{Map, Value};
use std::{sync::Arc, time::Duration};

async fn arena(lab: &Lab, strategy: &str, nodes: i64, options: &[(&str, &str)]) -> Arc<Arena> {
    let options = options.iter();
    let options: Map<String, Value> = options
        .map(|(name, value)| ((*name).to_owned(), Value::from(*value)))
        .collect();
    let wanted = Wanted {
        strategy: strategy.to_owned(),
        stock: 5,
        nodes,
        per_user_limit: 1,
        options,
    };
    lab.create(wanted).await.expect("an arena")
}

async fn order(lab: &Lab, arena: &str, buyer: &str, number: usize) {
    sqlx::query("INSERT INTO lab.orders (id, arena, buyer) VALUES ($1, $2, $3)")
        .bind(format!("{arena}-{buyer}-{number}"))
        .bind(arena)
        .bind(buyer)
        .execute(&lab.servers.postgres)
        .await
        .expect("a row");
}

async fn heard(lab: &Lab, arena: &str, buyer: &str) {
    sqlx::query("INSERT INTO lab.buyers (arena, buyer, tries) VALUES ($1, $2, 1)")
        .bind(arena)
        .bind(buyer)
        .execute(&lab.servers.postgres)
        .await
        .expect("a row");
}

/// One buyer has three, one an order that nobody told of: neither pays for those who got nothing.
#[tokio::test]
async fn what_one_buyer_has_too_many_does_not_pay_for_another() {
    let (lab, database) = lab("judging:").await;
    let arena = arena(&lab, "naive", 1, &[]).await;
    let id = &arena.definition().id;
    let judged = async || {
        let verdict = lab.verdict(id, Language::En).await.expect("a verdict");
        (verdict.sold, verdict.duplicates, verdict.undersold)
    };
    for number in 0..3 {
        order(&lab, id, "ann", number).await;
    }
    for buyer in ["ann", "bob", "cem"] {
        heard(&lab, id, buyer).await;
    }
    assert_eq!(judged().await, (3, 2, 2), "two are left, and two want one");
    // Dan only ever heard of a failure, and has his order all the same.
    order(&lab, id, "dan", 0).await;
    assert_eq!(judged().await, (4, 2, 1), "one is left");
    order(&lab, id, "bob", 0).await;
    assert_eq!(judged().await, (5, 2, 0), "none is left");
    lab.close().await;
    database.drop().await;
}

/// The orders of the production path name their buyer by another name.
#[tokio::test]
async fn buyers_of_the_production_path_are_recognised() {
    let (lab, database) = lab("judging-users:").await;
    let arena = arena(&lab, "lua-stream", 1, &[]).await;
    for name in ["ann", "bob"] {
        let buyer = Buyer {
            name: name.to_owned(),
        };
        let answer = arena.purchase(&buyer, None).await;
        assert!(
            matches!(answer.outcome, Ok(Outcome::Sold { .. })),
            "{answer:?}"
        );
    }
    let verdict = lab.verdict(&arena.definition().id, Language::En).await;
    let verdict = verdict.expect("a verdict");
    assert_eq!(
        (verdict.sold, verdict.undersold, verdict.lost),
        (2, 0, 0),
        "three are left, and nobody wants them: {verdict:?}"
    );
    assert!(verdict.round_trips.redis > 0.0, "{verdict:?}");
    lab.close().await;
    database.drop().await;
}

/// The loops of a crashed shop end with it, not when the next purchase comes by: the one place that there
/// is for a shop becomes free, and another node finds the order that the dead one had accepted.
#[tokio::test]
async fn a_crash_ends_a_node_at_once() {
    let shared = crate::support::Servers::shared().await;
    let database = shared.database().await;
    let redis = flash_sale::redis::Redis::new(&shared.redis.url(), "judging-crash:");
    let servers = servers::Servers::new(
        &database.options(),
        Arc::new(redis.expect("redis url")),
        None,
    );
    let lab = Lab::new(servers.with_production_nodes(1));
    let options = [
        ("crash_at", "accepted"),
        ("crash_node", "0"),
        ("crash_after", "1"),
        ("restart_ms", "10000"),
    ];
    let arena = arena(&lab, "lua-stream", 2, &options).await;
    let buyer = |name: &str| Buyer {
        name: name.to_owned(),
    };
    let answer = arena.purchase(&buyer("ann"), Some(0)).await;
    assert!(answer.outcome.is_err(), "the node crashed: {answer:?}");
    let next = async {
        // Nobody goes to the first node any more.
        while let Err(why) = arena.purchase(&buyer("bob"), Some(1)).await.outcome {
            assert!(why.contains("as many nodes of lua-stream"), "{why}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), next)
        .await
        .expect("the dead node's place becomes free");
    let verdict = lab.verdict(&arena.definition().id, Language::En).await;
    let verdict = verdict.expect("a verdict");
    assert_eq!(
        (verdict.sold, verdict.lost, verdict.undersold),
        (2, 0, 0),
        "{verdict:?}"
    );
    lab.close().await;
    database.drop().await;
}

/// A schema whose arena has gone (another process was opening a node while it was deleted) is found.
#[tokio::test]
async fn a_schema_without_an_arena_goes() {
    let (lab, database) = lab("judging-schema:").await;
    let arena = arena(&lab, "lua-stream", 1, &[]).await;
    let id = arena.definition().id.clone();
    let orphan = "lab_0123456789abcdef0123456789abcdef";
    for schema in [orphan, &format!("lab_{id}"), "lab_of_somebody_else"] {
        let statement = format!("CREATE SCHEMA {schema}");
        sqlx::query(sqlx::AssertSqlSafe(statement))
            .execute(&lab.servers.postgres)
            .await
            .expect("a schema");
    }
    let lab = Arc::new(lab);
    let stop = tokio_util::sync::CancellationToken::new();
    let upkeep = tokio::spawn({
        let (lab, stop) = (lab.clone(), stop.clone());
        async move { lab.upkeep(stop).await }
    });
    let schemas = async || -> Vec<String> {
        sqlx::query_scalar(
            "SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'lab\\_%' ORDER BY 1",
        )
        .fetch_all(&lab.servers.postgres)
        .await
        .expect("names")
    };
    let gone = async {
        while schemas().await.contains(&orphan.to_owned()) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), gone)
        .await
        .expect("it goes");
    let mut left = [format!("lab_{id}"), "lab_of_somebody_else".to_owned()];
    left.sort();
    assert_eq!(schemas().await, left);
    stop.cancel();
    upkeep.await.expect("it ends");
    lab.close().await;
    database.drop().await;
}

/// Whoever asks for a verdict and hangs up while it is written takes nothing with them.
#[tokio::test]
async fn a_verdict_that_nobody_waits_for_loses_nothing() {
    let (lab, database) = lab("judging-cut:").await;
    let arena = arena(&lab, "conditional-update", 1, &[("interleave", "off")]).await;
    let id = &arena.definition().id;
    for name in ["ann", "bob", "cem"] {
        let buyer = Buyer {
            name: name.to_owned(),
        };
        let answer = arena.purchase(&buyer, None).await;
        assert!(answer.outcome.is_ok(), "{answer:?}");
    }
    // The tally cannot be written as long as somebody else has its row.
    let mut other = lab.servers.postgres.begin().await.expect("a transaction");
    sqlx::query("SELECT FROM lab.tallies WHERE arena = $1 FOR UPDATE")
        .bind(id)
        .execute(&mut *other)
        .await
        .expect("the row");
    let hung_up = tokio::time::timeout(Duration::from_millis(500), lab.verdict(id, Language::En));
    assert!(hung_up.await.is_err(), "it waits for the row");
    other.rollback().await.expect("the row is free");
    let verdict = lab.verdict(id, Language::En).await.expect("a verdict");
    let kept: (i64, i64) = sqlx::query_as(
        "SELECT (SELECT coalesce(sum(tries), 0)::bigint FROM lab.buyers WHERE arena = $1),
                (SELECT count(*) FROM lab.told WHERE arena = $1)",
    )
    .bind(id)
    .fetch_one(&lab.servers.postgres)
    .await
    .expect("counts");
    assert_eq!((kept, verdict.sold), ((3, 3), 3), "{verdict:?}");
    lab.close().await;
    database.drop().await;
}

/// Before its first node is open, an arena of the production path has no orders, and no table for them.
#[tokio::test]
async fn an_arena_that_nobody_has_opened_has_sold_nothing() {
    let (lab, database) = lab("judging-empty:").await;
    let arena = arena(&lab, "lua-stream", 1, &[]).await;
    let verdict = lab.verdict(&arena.definition().id, Language::En).await;
    assert_eq!(verdict.expect("a verdict").sold, 0);
    lab.close().await;
    database.drop().await;
}
