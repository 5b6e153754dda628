//! Limits for visitors of the lab: each address has its share, and nothing stays behind. And each
//! lesson a hundred times.

use crate::support::test_lab::{ARENAS, TestLab, buy};
use crate::support::{lessons::play_each, prelude::*};
use lab::servers::Servers;
use tokio_util::sync::CancellationToken;

async fn call(app: &TestApp, by: &str, method: Method, path: &str, body: Value) -> Reply {
    app.ask(method, path).header("x-forwarded-for", by).json(body).await
}

async fn create(app: &TestApp, by: &str) -> Reply {
    let body = json!({"strategy": "naive", "stock": 1000, "work_ms": 2000});
    call(app, by, Method::POST, ARENAS, body).await
}

fn arena(created: &Reply) -> String {
    created.assert(201);
    format!("{ARENAS}/{}", created.text("arena_id"))
}

async fn storm(app: &TestApp, by: &str, arena: &str) -> Reply {
    let body = json!({"buyers": 1000, "concurrency": 1});
    call(app, by, Method::POST, &format!("{arena}/storm"), body).await
}

async fn delete(app: &TestApp, by: &str, arena: &str) {
    call(app, by, Method::DELETE, arena, Value::Null).await.assert(204);
}

async fn with_lab() -> TestApp {
    let limits = Options { rate_limit: true, trust_proxy: true, ..Options::with_lab() };
    TestApp::start_with(limits).await
}

/// Sixteen of an address, 64 in all. One that is too old is not served, makes room, and goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_address_cannot_take_all_arenas() {
    let app = with_lab().await;
    let mut created = Vec::new();
    for by in ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"] {
        let answers = join_all((0..20).map(|_| create(&app, by))).await;
        let is_created = |reply: &Reply| reply.status == StatusCode::CREATED;
        let (of_one, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(is_created);
        assert_eq!(of_one.len(), 16);
        for refused in refused {
            refused.assert_problem(409, "too_many_arenas");
        }
        created.extend(of_one);
    }
    let (ann, late) = ("10.0.0.1", "10.0.0.5");
    create(&app, late).await.assert_problem(409, "too_many_arenas");
    delete(&app, ann, &arena(&created[0])).await;
    create(&app, ann).await.assert(201);
    create(&app, ann).await.assert_problem(409, "too_many_arenas");
    let old = created[1].text("arena_id");
    let expire = "UPDATE lab.arenas SET expires_at = now() - interval '1 second' WHERE id";
    app.execute(&format!("{expire} = '{old}'")).await;
    create(&app, late).await.assert(201);
    let count = format!("SELECT count(*) FROM lab.arenas WHERE id = '{old}'");
    wait_for!(app.number(&count).await == 0);
    app.get(&format!("{ARENAS}/{old}/verdict")).await.assert_problem(404, "arena_not_found");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storms_are_bounded_by_address_and_in_all() {
    let app = with_lab().await;
    let mut arenas = Vec::new();
    for by in ["10.0.0.1", "10.0.0.2"] {
        for _ in 0..4 {
            arenas.push(arena(&create(&app, by).await));
            storm(&app, by, &arenas[arenas.len() - 1]).await.assert(202);
        }
        let one_more = storm(&app, by, &arena(&create(&app, by).await)).await;
        assert_eq!(one_more.assert_told_when(429, "too_many_storms"), 5);
    }
    let third = "10.0.0.3";
    let arena = arena(&create(&app, third).await);
    storm(&app, third, &arena).await.assert_problem(429, "too_many_storms");
    delete(&app, "10.0.0.1", &arenas[0]).await;
    wait_for!(storm(&app, third, &arena).await.is_accepted());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_storm_has_counted_does_not_stay_in_memory() {
    let app = with_lab().await;
    let post = async |path: &str, body| call(&app, "10.0.0.1", Method::POST, path, body).await;
    let body = json!({"strategy": "conditional-update", "stock": 10});
    let path = format!("{}/storm", arena(&post(ARENAS, body).await));
    post(&path, json!({"buyers": 3000, "concurrency": 50})).await.assert(202);
    // Nobody asks for a verdict, which would write it too.
    wait_for!(app.number("SELECT count(*) FROM lab.buyers").await == 3000);
}

#[tokio::test]
async fn extra_servers_end_when_no_arena_needs_them() {
    let soon_idle = |servers: &mut Servers| servers.idle_limit = Duration::from_millis(200);
    let lab = TestLab::with("idle-servers:", soon_idle).await;
    let stop = CancellationToken::new();
    let upkeep = tokio::spawn(lab.lab.clone().upkeep(stop.clone()));
    let folder = lab.servers.data_dir.clone().expect("a folder");
    let pid_of = |number| folder.join(format!("redis-{number}/redis.pid"));
    let running = || (1..=3).filter(|number| pid_of(*number).exists()).count();
    for _ in 0..2 {
        let arena = lab.arena("redlock", 1, json!({})).await;
        buy(&arena, "ann").await;
        // Longer than the limit and a round of the upkeep: the arena still needs them.
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert_eq!(running(), 3);
        buy(&arena, "bob").await;
        lab.delete(&arena.definition().id).await.expect("deleted");
        drop(arena);
        wait_for!(running() == 0);
    }
    stop.cancel();
    upkeep.await.expect("no panic");
    lab.finish().await;
}

#[tokio::test]
async fn nobody_else_reaches_the_lab_unless_that_is_asked_for() {
    let path = "/api/v1/lab/strategies";
    for (address, lab, expected) in [
        ("0.0.0.0:0", "", 404),
        ("0.0.0.0:0", "LAB=on", 200),
        ("127.0.0.1:0", "", 200),
        ("127.0.0.1:0", "LAB=off", 404),
    ] {
        let home = Home::new();
        let program = Program::serve(&home, &format!("LISTEN_ADDR={address} {lab}")).await;
        assert_eq!(program.ask("GET", path).await.status, expected, "{address} {lab}");
        let log = program.stderr();
        let hints = log.lines().filter(|line| line.contains("LAB=on")).count();
        assert_eq!(hints, usize::from(lab.is_empty() && expected == 404), "{log}");
        program.terminate().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lesson_played_a_hundred_times_ends_a_hundred_times_the_same_way() {
    play_each(100, "hundred:").await;
}
