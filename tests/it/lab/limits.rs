//! What visitors of the lab may have: each address its share, all together a bounded number of
//! storms, and nothing that stays behind.

use crate::{
    cli::{Home, Program, get},
    support::app::{Options, Reply, TestApp},
};
use flash_sale::lab::{Wanted, servers::Servers, strategy::Buyer};
use futures_util::future::join_all;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

const ARENAS: &str = "/api/v1/lab/arenas";

/// A visitor's call, by way of a proxy that names their address.
async fn call(app: &TestApp, by: &str, method: Method, path: &str, body: Option<Value>) -> Reply {
    let request = app.client.request(method, app.url(path));
    let mut request = request.header("x-forwarded-for", by);
    if let Some(body) = body {
        request = request.json(&body);
    }
    Reply::of(request.send().await.expect("an answer")).await
}

async fn create(app: &TestApp, by: &str) -> Reply {
    let body = json!({"strategy": "naive", "stock": 1000, "work_ms": 2000});
    call(app, by, Method::POST, ARENAS, Some(body)).await
}

async fn arena(app: &TestApp, by: &str) -> String {
    let made = create(app, by).await;
    made.assert(StatusCode::CREATED);
    format!("{ARENAS}/{}", made.text("arena_id"))
}

async fn storm(app: &TestApp, by: &str, arena: &str) -> Reply {
    let body = json!({"buyers": 1000, "concurrency": 1});
    call(app, by, Method::POST, &format!("{arena}/storm"), Some(body)).await
}

async fn with_lab() -> TestApp {
    TestApp::start_with(Options {
        lab: true,
        rate_limit: true,
        trust_proxy: true,
        ..Options::default()
    })
    .await
}

#[tokio::test]
async fn one_address_cannot_take_all_arenas() {
    let app = with_lab().await;
    let made = join_all((0..64).map(|_| create(&app, "10.0.0.1"))).await;
    let (created, refused): (Vec<_>, Vec<_>) = made
        .iter()
        .partition(|reply| reply.status == StatusCode::CREATED);
    assert_eq!(created.len(), 16);
    for refused in refused {
        refused.assert_problem(409, "too_many_arenas");
    }
    create(&app, "10.0.0.2").await.assert(StatusCode::CREATED);
    // Who deletes one may have another.
    let one = format!("{ARENAS}/{}", created[0].text("arena_id"));
    let gone = call(&app, "10.0.0.1", Method::DELETE, &one, None).await;
    gone.assert(StatusCode::NO_CONTENT);
    create(&app, "10.0.0.1").await.assert(StatusCode::CREATED);
    create(&app, "10.0.0.1")
        .await
        .assert_problem(409, "too_many_arenas");
    app.finish().await;
}

#[tokio::test]
async fn storms_are_bounded_by_address_and_in_all() {
    let app = with_lab().await;
    let mut arenas = Vec::new();
    for by in ["10.0.0.1", "10.0.0.2"] {
        for _ in 0..4 {
            let arena = arena(&app, by).await;
            storm(&app, by, &arena).await.assert(StatusCode::ACCEPTED);
            arenas.push(arena);
        }
        let one_more = storm(&app, by, &arena(&app, by).await).await;
        one_more.assert_problem(429, "too_many_storms");
        assert_eq!(one_more.header("retry-after"), "5");
    }
    let third = arena(&app, "10.0.0.3").await;
    storm(&app, "10.0.0.3", &third)
        .await
        .assert_problem(429, "too_many_storms");
    // A storm that ends makes room.
    call(&app, "10.0.0.1", Method::DELETE, &arenas[0], None).await;
    wait_for!(storm(&app, "10.0.0.3", &third).await.is_accepted());
    app.finish().await;
}

#[tokio::test]
async fn what_a_storm_has_counted_does_not_stay_in_memory() {
    let app = with_lab().await;
    let body = json!({"strategy": "conditional-update", "stock": 10});
    let made = call(&app, "10.0.0.1", Method::POST, ARENAS, Some(body)).await;
    let arena = format!("{ARENAS}/{}", made.text("arena_id"));
    let body = json!({"buyers": 3000, "concurrency": 50});
    let path = format!("{arena}/storm");
    let begun = call(&app, "10.0.0.1", Method::POST, &path, Some(body)).await;
    begun.assert(StatusCode::ACCEPTED);
    // Nobody asks for a verdict, which would write it too.
    wait_for!(app.number("SELECT count(*) FROM lab.buyers").await == 3000);
    app.finish().await;
}

#[tokio::test]
async fn extra_servers_end_when_no_arena_needs_them() {
    let (lab, database) = super::lab_with("idle-servers:", |servers: Servers| {
        servers.with_idle_limit(Duration::from_millis(200))
    })
    .await;
    let (lab, stop) = (Arc::new(lab), CancellationToken::new());
    let upkeep = tokio::spawn(lab.clone().upkeep(stop.clone()));
    let folder = lab.servers.data_dir.clone().expect("a folder");
    let running = || {
        let pid_of = |number: usize| folder.join(format!("redis-{number}/redis.pid"));
        (1..=3).filter(|number| pid_of(*number).exists()).count()
    };
    for _ in 0..2 {
        let wanted = Wanted {
            strategy: "redlock".to_owned(),
            stock: 3,
            nodes: 1,
            per_user_limit: 1,
            options: serde_json::Map::new(),
        };
        let arena = lab.create(wanted).await.expect("an arena");
        let buy = async |name: &str| {
            let name = name.to_owned();
            arena.purchase(&Buyer { name }, None).await.outcome
        };
        buy("ann").await.expect("sold");
        // Longer than the limit and a round of the upkeep: an arena that is there needs them.
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert_eq!(running(), 3);
        buy("bob").await.expect("sold");
        lab.delete(&arena.definition().id).await.expect("deleted");
        drop(arena);
        wait_for!(running() == 0);
    }
    stop.cancel();
    upkeep.await.expect("no panic");
    lab.close().await;
    database.drop().await;
}

#[tokio::test]
async fn nobody_else_reaches_the_lab_unless_that_is_asked_for() {
    let path = "/api/v1/lab/strategies";
    for (address, lab, is_there) in [
        ("0.0.0.0:0", None, false),
        ("0.0.0.0:0", Some("on"), true),
        ("127.0.0.1:0", None, true),
        ("127.0.0.1:0", Some("off"), false),
    ] {
        let home = Home::new();
        let mut settings = vec![("LISTEN_ADDR", address)];
        settings.extend(lab.map(|lab| ("LAB", lab)));
        let program = Program::serve(&home, &[], &settings).await;
        let expected = if is_there { 200 } else { 404 };
        let (status, _) = get(&program, path).await;
        assert_eq!(status.as_u16(), expected, "{address} {lab:?}");
        let said = program.stderr();
        let told_how = said.lines().filter(|line| line.contains("LAB=on")).count();
        assert_eq!(told_how, usize::from(!is_there && lab.is_none()), "{said}");
        program.terminate().await;
    }
}
