//! A primary and an instance are cut off from all others; both sides sell, and one truth is left.

use super::*;
use crate::support::history::Answer;
use crate::support::proxy::{ALONE, Network, OTHERS};
use crate::support::redis_servers::SILENCE_MS;

const CUT_OFF: usize = 0;
const OTHER: usize = 1;

/// A deployment whose first instance and first node can be split off, and what does it.
async fn divisible() -> (Network, Proxy, Deployment<RedisCluster>) {
    let servers = Servers::own().await;
    let (redis, network) = RedisCluster::start_on_network(&servers.folder("cluster")).await;
    let database = servers.database().await;
    let to_postgres = Proxy::start(Address::of_postgres(servers.postgres.address())).await;
    let start = async |database, from| {
        TestApp::launch(database, redis.url_at(from), String::new(), Options::default()).await
    };
    let cut_off = database.clone().through(to_postgres.address);
    let apps = [start(cut_off, ALONE).await, start(database, OTHERS).await];
    (network, to_postgres, Deployment { redis, apps, _servers: servers })
}

/// Two sales of the node that is cut off, the first nearly sold; and one of another node.
const SCARCE: usize = 0;
const LAST_UNITS: i64 = 400;
const AMPLE: usize = 1;
const ELSEWHERE: usize = 2;

cases! { split:
    /// Orders of the side that was cut off are rows before the other side counts, and count there.
    both_sides_sell_and_postgres_knows_it => true,
    /// The other side cannot know what was accepted, sells the last units too; some are rejected.
    both_sides_sell_the_last_units_and_nobody_gets_one_twice => false,
}

async fn split(reaches_postgres: bool) {
    let (network, to_postgres, deployment) = divisible().await;
    let sales = deployment.sales([(0, LAST_UNITS), (0, 50_000), (1, 50_000)]).await;
    let other = &deployment.apps[OTHER];
    let crowd = Crowd::start(&deployment.apps, &sales, 8);
    crowd.until_accepted(&[SCARCE, AMPLE, ELSEWHERE], 20).await;
    // Its primary notices, and the other side counts, only when enough is sold.
    deployment.redis.nodes[0].configure("cluster-node-timeout", "3600000").await;
    arm(other, "rebuild.elected=error*always");
    deployment.redis.may_fail_over(0).await;
    let split_at = crowd.world.now();
    network.split_off(0).await;
    if !reaches_postgres {
        to_postgres.set(Fault::BlackHole).await;
    }
    for sale in [AMPLE, SCARCE] {
        crowd.until_accepted_by(CUT_OFF, sale, split_at, 20).await;
    }
    deployment.redis.nodes[0].configure("cluster-node-timeout", SILENCE_MS).await;
    other.services.fail_points.clear();
    wait_for!(epoch_of(other, &sales[SCARCE]).await > 1);
    crowd.until_accepted_by(OTHER, AMPLE, crowd.world.now(), 20).await;
    wait_for!(crowd.rush(OTHER, SCARCE, usize::MAX).await == Answer::SoldOut);
    let healed_at = crowd.world.now();
    to_postgres.set(Fault::None).await;
    to_postgres.cut();
    network.heal().await;
    for sale in [AMPLE, ELSEWHERE] {
        crowd.until_accepted_by(CUT_OFF, sale, healed_at, 10).await;
    }
    let of = |instance, sale| crowd.accepted_by(instance, sale, split_at..healed_at);
    let alone = [of(CUT_OFF, SCARCE), of(CUT_OFF, AMPLE)].concat();
    let (count, elsewhere) = (alone.len(), of(OTHER, ELSEWHERE).len());
    // Each is decided before a unit comes back because it is not paid.
    let rows = format!("SELECT count(*) FROM orders WHERE id = ANY(ARRAY{alone:?})");
    wait_for!(other.number(&rows).await == count as i64);
    let judged = crowd.judge(other, &deployment.redis, true).await;
    let rejected = judged.with(OrderStatus::Rejected).filter(|id| alone.contains(id)).count();
    println!(
        "reaching postgres: {reaches_postgres}; the side that was cut off accepted {count} orders, \
         of which {rejected} were rejected in the end; the other sold {elsewhere} of another node"
    );
    judged.assert_kept(&format!("split, reaching postgres: {reaches_postgres}"));
    assert!(elsewhere > 20, "sales of other nodes stood still");
    assert!(reaches_postgres || rejected > 0, "both sides sold the same units");
}
