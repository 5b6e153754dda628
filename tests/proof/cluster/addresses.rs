//! Addresses of the wrong kind are errors, and commands take every kind of address.

use super::*;
use crate::support::program::{Home, settings_of};
use crate::support::proxy::free_port;
use crate::support::redis_servers::{RedisProcess, Watched};
use flash_sale::redis::Redis;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_another_kind_is_an_error() {
    let servers = Servers::own().await;
    let single = RedisProcess::start(&servers.folder("single"), free_port(), &[]);
    let bus = free_port().to_string();
    let clustered = ["--cluster-enabled", "yes", "--cluster-port", &bus];
    let node = RedisProcess::start(&servers.folder("node"), free_port(), &clustered);
    let sentinel = RedisProcess::sentinel(&servers.folder("sentinel"), free_port(), "");
    for server in [&single, &node, &sentinel] {
        wait_for!(server.ask::<String>(&["PING"]).await.is_ok());
    }
    for url in [
        format!("redis+cluster://{}", single.address()),
        format!("redis://{}", sentinel.address()),
        format!("redis-sentinel://{}/shop", sentinel.address()),
        format!("redis-sentinel://{}/shop", single.address()),
    ] {
        let redis = Redis::new(&url, "").expect("an address");
        let error = redis.processes().await.expect_err("the wrong kind");
        assert!(!error.to_string().is_empty(), "{url}");
    }
    assert!(Redis::new("redis-sentinel://127.0.0.1:26379", "").is_err());
    // As Redis computes it.
    let keys = ["{sale:1}", "prefix:{sale:77}:log", "{ids:3:9}:clock", "changes", "{}x"];
    for key in keys {
        let slot: u16 = node.command(&["CLUSTER", "KEYSLOT", key]).await;
        assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
    }
}

/// The commands of an operator, on a cluster and under Sentinels.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_take_a_cluster_and_sentinels() {
    let servers = Servers::own().await;
    let cluster = RedisCluster::start(&servers.folder("cluster")).await;
    for url in [cluster.url(), Watched::start(&servers.folder("watched")).await.url()] {
        let home = Home::new();
        let database = servers.database().await;
        let run = async |words: &[&str]| {
            let mut command = home.command(words);
            command.envs(settings_of(&servers, &database, ""));
            command.env("REDIS_URL", &url);
            let ended = home.finish(command).await;
            (ended.code, format!("{}{}", ended.stdout, ended.stderr))
        };
        let rebuild = &["rebuild"][..];
        for words in [rebuild, &["seed"], rebuild, &["audit", "--json"]] {
            let (code, said) = run(words).await;
            assert_eq!(code, Some(0), "{words:?} on {url}: {said}");
        }
        let (code, said) = run(&["lab", "ids"]).await;
        assert!(code != Some(0) && said.contains("the lab plays on one Redis server"), "{said}");
    }
}
