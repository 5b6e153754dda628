//! Addresses of the wrong kind are errors, and commands take every kind of address.

use super::*;
use crate::support::redis_servers::{RedisProcess, Watched};
use flash_sale::redis::Redis;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_another_kind_is_an_error() {
    let servers = Servers::own().await;
    let single = RedisProcess::start(&servers.folder("single"), free_port(), &[]);
    let sentinel = RedisProcess::sentinel(&servers.folder("sentinel"), free_port(), "");
    single.until_ready().await;
    sentinel.until_ready().await;
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
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_take_a_cluster_and_sentinels() {
    let servers = Servers::own().await;
    let cluster = RedisCluster::start(&servers.folder("cluster")).await;
    for url in [cluster.url(), Watched::start(&servers.folder("watched")).await.url()] {
        let home = Home::on(&servers, &servers.database().await, "");
        let run = async |words: &str| home.run(&format!("{words} REDIS_URL={url}")).await;
        for words in ["rebuild", "seed", "rebuild", "audit --json"] {
            run(words).await.assert_done();
        }
        run("lab ids").await.assert_refused(&["the lab plays on one Redis server"]);
    }
}
