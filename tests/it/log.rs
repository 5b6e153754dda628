//! The log: a storm of one warning is summed up.

use crate::{
    cli::{Home, Program, get},
    support::app::{all_at_once, eventually},
};
use nix::sys::signal::{Signal, kill};
use reqwest::StatusCode;

#[tokio::test]
async fn a_storm_of_warnings_is_summed_up() {
    let home = Home::new();
    let program = Program::serve(&home, &[], &[]).await;
    let redis = home.child("redis").expect("a pid");
    kill(redis, Signal::SIGSTOP).expect("it runs");
    let (client, url) = (reqwest::Client::new(), program.url("/readyz"));
    for _ in 0..4 {
        all_at_once((0..100).map(|_| {
            let asked = client.get(&url).send();
            async move {
                let status = asked.await.expect("an answer").status();
                assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
            }
        }))
        .await;
    }
    kill(redis, Signal::SIGCONT).expect("it runs");
    let repeated = eventually("it is summed up", async || {
        let said = program.stderr();
        let mut lines = said.lines();
        lines.find(|line| line.contains("not ready: repeated")).map(str::to_owned)
    })
    .await;
    assert!(repeated.contains("WARN"), "{repeated}");
    // 800 lines it would have been, for redis and for admission.
    let said = program.stderr();
    assert!(said.lines().count() <= 100, "{said}");
    wait_for!(get(&program, "/readyz").await.0 == StatusCode::OK);
    program.terminate().await;
}
