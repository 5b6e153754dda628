//! Dead loops start again; a log that cannot be written stops nothing; a storm of warnings is one.

use crate::cli::{assert_sound, entrance, sale_for_loads};
use crate::support::prelude::*;
use nix::sys::signal::kill;
use tasks::Tasks;

#[tokio::test]
async fn nothing_stops_when_nobody_reads_the_log_or_its_disk_is_full() {
    let (_, nobody) = std::io::pipe().expect("a pipe");
    let home = Home::new();
    // Not its first start: there is no new admin token to print.
    fs::create_dir(home.data()).expect("a folder");
    fs::write(home.data().join("admin_token"), "an admin token of a test").expect("written");
    let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    tokio::join!(goes_on(home, nobody.into()), goes_on(Home::new(), full.into()));
}

/// Both servers die while people buy: they come back, and what was accepted becomes rows.
async fn goes_on(home: Home, log: Stdio) {
    let program = Program::spawn_logging_to(log, "/dev/null".into(), home.command("serve"));
    let program = program.ready().await;
    let sale = sale_for_loads(&program).await;
    let rush = Rush::start(&[entrance(&home, &program)], &sale, 16, &[]);
    for server in ["pg", "redis"] {
        rush.until_accepted(100).await;
        let before = home.child(server).expect("a pid");
        kill(before, Signal::SIGKILL).expect("it still runs");
        wait_for!(&format!("{server} is started again"), {
            home.child(server).filter(|pid| *pid != before)
        });
    }
    rush.until_accepted(100).await;
    let Told { winners: mut bought, unanswered, .. } = rush.end().await;
    bought.extend(all_order(unanswered, &sale).await);
    all_written(&bought).await;
    wait_for!(program.ask("GET", "/readyz").await.status == 200);
    let audit = assert_sound(&home, &sale).await;
    assert_eq!(json!([audit["live"], audit["rejected"]]), json!([bought.len(), 0]));
    assert_eq!(audit["redis"]["run_id_approved"], true);
    program.terminate().await;
}

#[tokio::test]
async fn a_storm_of_warnings_is_summed_up() {
    let home = Home::new();
    let program = Program::serve(&home, "").await;
    let redis = home.child("redis").expect("a pid");
    kill(redis, Signal::SIGSTOP).expect("it runs");
    for _ in 0..4 {
        let asked = (0..100).map(|_| program.ask("GET", "/readyz").into_future());
        all_at_once(asked).await.iter().for_each(|reply| reply.assert(503));
    }
    kill(redis, Signal::SIGCONT).expect("it runs");
    let is_summed_up = |line: &str| line.contains("WARN") && line.contains("not ready: repeated");
    wait_for!(program.stderr().lines().any(is_summed_up));
    // 800 lines it would have been, for redis and for admission.
    let said = program.stderr();
    assert!(said.lines().count() <= 100, "{said}");
    wait_for!(program.ask("GET", "/readyz").await.status == 200);
    program.terminate().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_loop_is_started_again_and_readyz_says_no_until_then() {
    let app = TestApp::start().await;
    let tasks = Tasks::new(app.services.liveness.clone(), true);
    let (told, ran) = (Arc::new(AtomicU32::new(1)), Arc::new(AtomicU32::new(0)));
    let (does, has_run) = (told.clone(), ran.clone());
    tasks.spawn("a test's loop", &Arc::new(()), move |_, task| {
        let manner = does.load(Relaxed);
        has_run.store(manner, Relaxed);
        async move {
            match manner {
                1 => panic!("a bug of the loop"),
                2 => {} // ends too early
                _ => task.stop.cancelled().await,
            }
        }
    });
    for manner in 1..=2 {
        wait_for!("it is not ready", {
            let was_run = ran.load(Relaxed) == manner;
            let readyz = app.get("/readyz").await;
            let is_down = readyz.body["loops"] == "down";
            assert!(!is_down || readyz.status == StatusCode::SERVICE_UNAVAILABLE);
            (is_down && was_run).then_some(())
        });
        told.store(manner + 1, Relaxed);
    }
    wait_for!(app.get("/readyz").await.body["loops"] == "ok" && ran.load(Relaxed) == 3);
    wait_for!(app.get("/readyz").await.status == 200);
    assert!(tasks.stop(TEST_TIMEOUT).await);
}
