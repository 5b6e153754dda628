//! Two processes of Redis are taken for one, or it comes back. (Loss under load: chaos.)

use super::*;
use embedded::{RedisServer, RedisSettings};

/// Each instance has one of them, and they take turns; promises are kept, or rejected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_primaries_for_a_while() {
    let servers = Servers::own().await;
    let new = RedisServer::start(&servers.folder("new"), RedisSettings::default()).await;
    let (old, new) = (servers.redis.socket(), new.expect("redis starts"));
    let (old, new) = (Address::Unix(old), Address::Unix(new.socket()));
    let (here, there) = (Proxy::start(old.clone()).await, Proxy::start(old).await);
    let url = |proxy: &Proxy| format!("redis://{}", proxy.address);
    let first = TestApp::with_redis(&servers, url(&here)).await;
    let (database, prefix) = (first.database.clone(), first.prefix.clone());
    let second = TestApp::launch(database, url(&there), prefix, Options::default()).await;
    let (sale, rush) = rush_with_regulars(&[&first, &second], 4).await;
    let before = epoch(&first, &sale).await;
    there.lead_to(new.clone());
    wait_for!(epoch(&first, &sale).await >= before + 3);
    here.lead_to(new);
    rush.until_accepted(ENOUGH).await;
    let told = rush.end().await;
    let statuses = first.database.assert_kept(&sale, &told.winners).await;
    println!("{statuses:?}; {} told 503", told.unanswered.len());
    first.assert_sound(&sale).await;
}

/// The metrics belong to a process. What is shown does not wait for a refused shopper.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_metrics_show_that_admission_is_closed_while_redis_is_away() {
    let servers = Servers::own().await;
    let redis = RedisProcess::start(&servers.folder("other"), free_port(), &[]);
    redis.until_ready().await;
    let home = Home::on(&servers, &servers.database().await, "");
    let program = Program::serve(&home, &format!("REDIS_URL={}", redis.url())).await;
    let shows = async |open: u8| {
        let admission = format!("flash_sale_admission_open {open}");
        let worker = format!("flash_sale_worker_failing{{worker=\"rebuild\"}} {}", 1 - open);
        wait_for!(&format!("the metrics show {admission}, {worker}"), {
            let text = reqwest::get(program.url("/metrics")).await.ok()?.text().await.ok()?;
            let shown = |sample: &String| text.lines().any(|line| line == *sample);
            [&admission, &worker].into_iter().all(shown).then_some(())
        });
    };
    shows(1).await;
    redis.kill();
    shows(0).await;
    redis.start_again();
    shows(1).await;
    program.terminate().await;
}
