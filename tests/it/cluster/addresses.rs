//! Addresses of the wrong kind are errors, and commands take every kind of address.

use crate::support::redis_servers::slot_of;
use crate::{
    cli::{Home, settings_of},
    support::{
        Servers,
        proxy::free_port,
        redis_servers::{RedisCluster, RedisProcess, Watched},
    },
};
use flash_sale::redis::Redis;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_another_kind_is_an_error() {
    let servers = Servers::own().await;
    let single = RedisProcess::start(&servers.folder("single"), free_port(), &[]);
    let node = RedisProcess::start(
        &servers.folder("node"),
        free_port(),
        &[
            "--cluster-enabled",
            "yes",
            "--cluster-port",
            &free_port().to_string(),
        ],
    );
    let sentinel = RedisProcess::sentinel(&servers.folder("sentinel"), free_port(), "");
    for server in [&single, &node, &sentinel] {
        crate::support::app::eventually("it answers", async || {
            server.ask::<String>(&["PING"]).await.ok()
        })
        .await;
    }
    let said = async |url: String| {
        let redis = Redis::new(&url, "").expect("an address");
        redis
            .processes()
            .await
            .expect_err("the wrong kind")
            .to_string()
    };
    for url in [
        format!("redis+cluster://{}", single.address()),
        format!("redis://{}", sentinel.address()),
        format!("redis-sentinel://{}/shop", sentinel.address()),
        format!("redis-sentinel://{}/shop", single.address()),
    ] {
        let said = said(url.clone()).await;
        assert!(!said.is_empty(), "{url}: {said}");
    }
    assert!(
        Redis::new("redis-sentinel://127.0.0.1:26379", "").is_err(),
        "no name"
    );
    // As Redis computes it.
    for key in [
        "{sale:1}",
        "prefix:{sale:77}:log",
        "{ids:3:9}:clock",
        "changes",
        "{}x",
    ] {
        let slot: u16 = node.command(&["CLUSTER", "KEYSLOT", key]).await;
        assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
    }
}

/// The commands of an operator, on a cluster and under Sentinels.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_take_a_cluster_and_sentinels() {
    let servers = Servers::own().await;
    let (cluster, watched) = (
        RedisCluster::start(&servers.folder("cluster")).await,
        Watched::start(&servers.folder("watched")).await,
    );
    for url in [cluster.url(), watched.url()] {
        let home = Home::new();
        let database = servers.database().await;
        let run = async |words: &[&str]| {
            let mut command = home.command(words);
            command.envs(settings_of(&servers, &database, ""));
            command.env("REDIS_URL", &url);
            let ended = home.finish(command).await;
            (ended.code, format!("{}{}", ended.stdout, ended.stderr))
        };
        for words in [
            &["rebuild"][..],
            &["seed"],
            &["rebuild"],
            &["audit", "--json"],
        ] {
            let (code, said) = run(words).await;
            assert_eq!(code, Some(0), "{words:?} on {url}: {said}");
        }
        let (code, said) = run(&["lab", "ids"]).await;
        assert!(
            code != Some(0) && said.contains("the lab plays on one Redis server"),
            "{said}"
        );
    }
}
