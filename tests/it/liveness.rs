//! Liveness: dead loops are started again, and a log that cannot be written stops nothing.

use crate::{
    cli::{Crowd, Home, Manner, Program, assert_kept, assert_sound, get, sale_for_loads, tokens},
    support::app::{TestApp, eventually},
};
use flash_sale::tasks::Tasks;
use nix::sys::signal::{Signal, kill};
use reqwest::StatusCode;
use serde_json::json;
use std::{
    fs::OpenOptions,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

#[tokio::test]
async fn nothing_stops_when_nobody_reads_the_log() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let home = Home::new();
    // Not its first start: there is no new admin token to print.
    std::fs::create_dir(home.0.join("data")).expect("a folder");
    std::fs::write(home.0.join("data/admin_token"), "an admin token of a test").expect("written");
    goes_on_without_a_log(&home, writer.into()).await;
}

#[tokio::test]
async fn nothing_stops_when_the_log_is_on_a_full_disk() {
    let full = OpenOptions::new().write(true).open("/dev/full");
    goes_on_without_a_log(&Home::new(), full.expect("/dev/full").into()).await;
}

/// Both servers die while people buy: they come back, and what was accepted becomes rows.
async fn goes_on_without_a_log(home: &Home, log: Stdio) {
    let tokens = tokens(home, 20_000).await;
    let program = Program::serve_logging_to(log, home.command(&["serve"])).await;
    let sale = sale_for_loads(&program).await;
    let crowd = Crowd::start(&program.base, &sale, tokens, Manner::Patient);
    for server in ["pg", "redis"] {
        crowd.until(crowd.count() + 100).await;
        let before = home.child(server).expect("a pid");
        kill(before, Signal::SIGKILL).expect("it still runs");
        eventually(&format!("{server} is started again"), async || {
            home.child(server).filter(|pid| *pid != before)
        })
        .await;
    }
    crowd.until(crowd.count() + 100).await;
    crowd.no_more();
    let (bought, _) = crowd.leave().await;
    assert_kept(&program, &bought).await;
    wait_for!(get(&program, "/readyz").await.0 == StatusCode::OK);
    let audit = assert_sound(home, &sale).await;
    assert_eq!(json!([audit["live"], audit["rejected"]]), json!([bought.len(), 0]));
    assert_eq!(audit["redis"]["run_id_approved"], true);
    program.terminate().await;
}

#[tokio::test]
async fn a_dead_loop_is_started_again_and_readyz_says_no_until_then() {
    let app = TestApp::start().await;
    let tasks = Tasks::new(app.services.liveness.clone(), app.services.metrics.clone());
    let runs = Arc::new(AtomicU32::new(0));
    let counted = runs.clone();
    tasks.spawn("a test's loop", &Arc::new(()), move |_, task| {
        let run = counted.fetch_add(1, Relaxed);
        async move {
            match run {
                0 => panic!("a bug of the loop"),
                1 => {} // ends too early
                _ => task.stop.cancelled().await,
            }
        }
    });
    for dead in 1..=2 {
        eventually("it is not ready", async || {
            let readyz = app.get("/readyz").await;
            let is_down = readyz.body["loops"] == "down";
            assert_eq!(is_down, readyz.status == StatusCode::SERVICE_UNAVAILABLE);
            (is_down && runs.load(Relaxed) == dead).then_some(())
        })
        .await;
    }
    eventually("it runs again", async || {
        (app.get("/readyz").await.body["loops"] == "ok" && runs.load(Relaxed) == 3).then_some(())
    })
    .await;
    app.get("/readyz").await.assert(StatusCode::OK);
    assert!(tasks.stop(Duration::from_secs(5)).await);
    app.finish().await;
}
