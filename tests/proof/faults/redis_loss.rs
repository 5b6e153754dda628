//! Redis loses data, or another Redis takes its place that does not have everything, while two
//! instances sell. Until the rebuild is done people hear 503; every 202 is a row or `rejected`.

use super::*;

#[derive(Debug, Clone, Copy)]
enum Loss {
    Flush,
    /// A restart with everything.
    Nothing,
    Everything,
    /// Stock, buyers, log and epoch go back together and still agree with each other.
    Tail,
    /// What came after a backup, which is taken while it serves, as backups are.
    SinceBackup,
}

cases! { survives:
    flushall => Loss::Flush,
    a_kill_and_a_restart_with_everything => Loss::Nothing,
    a_restart_with_nothing => Loss::Everything,
    a_restart_without_the_tail => Loss::Tail,
    a_restored_backup => Loss::SinceBackup,
}

impl Loss {
    async fn strike(self, redis: &mut OwnRedis) -> Result<(), crate::support::stores::Error> {
        let (_, length) = redis.last_increment()?;
        let backup = redis.dir.join("backup");
        match self {
            Self::Flush => return redis.say(&["FLUSHALL"]).await.map(drop),
            Self::SinceBackup => {
                redis.back_up(&backup)?;
                wait_for!(redis.last_increment().expect("a file").1 > length + 10_000);
            }
            _ => {}
        }
        redis.take_down().await?;
        let (_, length) = redis.last_increment()?;
        match self {
            Self::Everything => redis.empty()?,
            Self::Tail => redis.cut(length - length / 3)?,
            Self::SinceBackup => redis.restore(&backup)?,
            Self::Flush | Self::Nothing => {}
        }
        redis.start_again().await
    }
}

/// A sale, four regulars who have an order in it, and a rush of them and of new shoppers.
async fn rush_at(first: &TestApp, second: &TestApp) -> (String, Rush) {
    let sale = first.sale(50_000, json!({})).await;
    let regulars = crowd(second, &sale, 4).await;
    TestApp::all_written(&regulars).await;
    let rush = Rush::start(&[first, second], &sale, 6, &regulars);
    rush.until_accepted(ENOUGH).await;
    (sale, rush)
}

/// A rush at both instances, in the middle of which something is lost.
async fn survives(loss: Loss) {
    let mut pair = Pair::start().await;
    let (sale, rush) = rush_at(&pair.first, &pair.second).await;
    rebuilt_by(&pair.first, &sale, async {
        loss.strike(&mut pair.redis).await.expect("the loss");
    })
    .await;
    // It reopened by itself, and goes on selling.
    rush.until_accepted(ENOUGH).await;
    // With units left, a late order gets one of them.
    let told = assert_nothing_lost(&pair.first, &sale, rush).await;
    assert!(told.shed > 0, "the sale never stopped");
    assert!(told.reminded > 0, "the regulars never got an answer");
    pair.finish().await;
}

fn listening_on(port: u16) -> RedisSettings {
    let arguments = ["--bind", "127.0.0.1", "--port", &port.to_string()];
    RedisSettings { extra_args: arguments.map(str::to_owned).to_vec(), ..RedisSettings::default() }
}

/// An instance that reaches this Redis through a proxy.
async fn through_a_proxy(servers: &Servers, redis: &OwnRedis) -> (TestApp, Proxy) {
    let proxy = Proxy::start(Address::Unix(redis.socket())).await;
    let url = format!("redis://{}", proxy.address());
    (TestApp::with_redis(servers, url, Options::default()).await, proxy)
}

fn lead_to(proxy: &Proxy, redis: &OwnRedis) {
    proxy.set_target(Address::Unix(redis.socket()));
    proxy.cut();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_promotion_of_a_replica_that_lags() {
    let servers = Servers::own().await;
    let (port, nobody) = (free_port(), free_port().to_string());
    let start = async |name, port| {
        OwnRedis::start(servers.folder(name), listening_on(port)).await.expect("redis starts")
    };
    let mut primary = start("primary", port).await;
    let replica = start("replica", free_port()).await;
    let say = async |words: &[&str]| replica.say(words).await.expect("an answer");
    let (first, proxy) = through_a_proxy(&servers, &primary).await;
    let second = first.another(Options::default()).await;
    say(&["REPLICAOF", "127.0.0.1", &port.to_string()]).await;
    wait_for!(say(&["INFO", "replication"]).await.contains("master_link_status:up"));
    let (sale, rush) = rush_at(&first, &second).await;
    // It loses its primary, and keeps what it had at that moment.
    say(&["REPLICAOF", "127.0.0.1", &nobody]).await;
    rush.until_accepted(ENOUGH).await;

    rebuilt_by(&first, &sale, async {
        primary.take_down().await.expect("it ran");
        lead_to(&proxy, &replica);
        // For a moment the program reaches a replica that takes no writes, as in a real failover.
        rush.until_shed(10).await;
        say(&["REPLICAOF", "NO", "ONE"]).await;
    })
    .await;
    rush.until_accepted(ENOUGH).await;
    let told = assert_nothing_lost(&first, &sale, rush).await;
    assert!(told.reminded > 0, "the regulars never got an answer");
    second.stop().await;
    first.stop().await;
}

/// A network that is split: for one instance the old primary is still there, for the other one a
/// replica was promoted. Each sees a Redis that is not approved whenever the other has approved its
/// own, so they take turns; what both promised in that time is kept, or rejected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_primaries_for_a_while() {
    let servers = Servers::own().await;
    let (old, new) = (own_redis(&servers, "old").await, own_redis(&servers, "new").await);
    let (first, here) = through_a_proxy(&servers, &old).await;
    let there = Proxy::start(Address::Unix(old.socket())).await;
    let url = format!("redis://{}", there.address());
    let (database, prefix) = (first.database.clone(), first.prefix.clone());
    let second = TestApp::launch(database, url, prefix, Options::default()).await;
    let (sale, rush) = rush_at(&first, &second).await;
    let before = epoch(&first, &sale).await;
    lead_to(&there, &new);
    // Long enough for some turns.
    wait_for!(epoch(&first, &sale).await >= before + 3);
    lead_to(&here, &new);
    rush.until_accepted(ENOUGH).await;
    let told = rush.end().await;
    let statuses = first.assert_kept(&sale, &told.winners).await;
    println!("{statuses:?}; {} told 503", told.shed);
    first.assert_sound(&sale).await;
    second.stop().await;
    first.stop().await;
}

/// In a process of its own, since the metrics belong to the process. Nobody buys meanwhile: what is
/// shown does not wait for a shopper who is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_metrics_show_that_admission_is_closed_while_redis_is_away() {
    let servers = Servers::own().await;
    let mut redis = own_redis(&servers, "other").await;
    let home = Home::new();
    let mut command = home.command(&["serve"]);
    command.envs(settings_of(&servers, &servers.database().await, ""));
    command.env("REDIS_URL", redis.url());
    let program = Program::serve_by(&home, command).await;
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
    redis.take_down().await.expect("it ran");
    shows(0).await;
    redis.start_again().await.expect("redis starts");
    shows(1).await;
    program.terminate().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_is_only_in_the_log_is_never_denied() {
    let servers = Servers::own().await;
    let mut redis = own_redis(&servers, "other").await;
    let app = TestApp::with_redis(&servers, redis.url(), Options::without_writer()).await;
    let (sale, winners) = sold(&app, 10, 3).await;
    let reads = winners.iter().map(async |(shopper, id)| {
        // Until the rebuild has found it in the log and written it.
        let written = eventually("the order is a row", async || {
            let reply = shopper.order(id).await;
            if reply.status == StatusCode::OK {
                return (reply.text("status") == "pending_payment").then_some(());
            }
            assert_shed(&reply);
            None
        });
        written.await;
    });
    let restart = rebuilt_by(&app, &sale, async {
        redis.take_down().await.expect("it ran");
        redis.start_again().await.expect("redis starts");
    });
    tokio::join!(join_all(reads), restart);
    app.assert_kept(&sale, &winners).await;
    app.assert_sound(&sale).await;
    app.stop().await;
}
