//! The network is split: a primary and an instance are on one side, everybody else is on the other. Both sides
//! sell, for as long as the cut-off primary does not know better; and at the end there is one truth.

use super::{Deployment, crowd::Crowd};
use crate::support::{
    Servers,
    app::{Options, TestApp, eventually},
    network::{Network, Side},
    proxy::{Address, Fault, Proxy},
    redis_servers::RedisCluster,
};

/// The instances of [`Deployment::apps`].
const CUT_OFF: usize = 0;
const OTHER: usize = 1;

/// What the cut-off instance still reaches, beside the primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reaches {
    Postgres,
    Nothing,
}

/// A deployment whose first instance and first node can be split off, and what does it.
async fn divisible() -> (Deployment, Network, Proxy) {
    let options = Options::default();
    let servers = Servers::own().await;
    let (cluster, network) = RedisCluster::start_on_network(&servers.folder("cluster")).await;
    let database = servers.database().await;
    let to_postgres = Proxy::start(Address::of_postgres(servers.postgres.address())).await;
    let start = async |database, side| {
        TestApp::launch(
            database,
            cluster.url_from(side),
            String::new(),
            options.clone(),
        )
        .await
    };
    let apps = [
        start(
            database.clone().through(to_postgres.tcp_address()),
            Side::Alone,
        )
        .await,
        start(database, Side::Others).await,
    ];
    let deployment = Deployment {
        cluster,
        apps,
        servers,
    };
    (deployment, network, to_postgres)
}

/// The sales: two of the node that is cut off, of which the first has so few units that the other side sells all that
/// are left; and one of another node.
const SCARCE: usize = 0;
/// More than anybody sells before the cut.
const LAST_UNITS: i64 = 400;
const AMPLE: usize = 1;
const ELSEWHERE: usize = 2;

/// Cuts a primary off together with an instance while people buy, and hands everything to the checkers. How many
/// orders of the side that was cut off were rejected in the end.
async fn split(reaches: Reaches) -> usize {
    let (deployment, network, to_postgres) = divisible().await;
    let sales = vec![
        deployment.sale_on(0, LAST_UNITS).await,
        deployment.sale_on(0, 50_000).await,
        deployment.sale_on(1, 50_000).await,
    ];
    let other = &deployment.apps[OTHER];
    let crowd = Crowd::start(&deployment.apps, &sales, 8);
    crowd.until_accepted(&[SCARCE, AMPLE, ELSEWHERE], 20).await;

    let split_at = crowd.now();
    network.split_off(0).await;
    if reaches == Reaches::Nothing {
        to_postgres.set(Fault::BlackHole).await;
    }
    // At the same time: the primary that was cut off does not sell for long.
    tokio::join!(
        crowd.rush(CUT_OFF, AMPLE, 100),
        crowd.rush(CUT_OFF, SCARCE, 100)
    );
    let epoch = format!("SELECT epoch FROM sales WHERE id = {}", sales[SCARCE]);
    eventually("the other side has a primary and has counted", async || {
        (other.number(&epoch).await > 1).then_some(())
    })
    .await;
    let counted_at = crowd.now();
    crowd.until_accepted_by(OTHER, AMPLE, counted_at, 20).await;
    crowd.sell_out(OTHER, SCARCE).await;

    let healed_at = crowd.now();
    to_postgres.set(Fault::None).await;
    to_postgres.cut();
    network.heal().await;
    for sale in [AMPLE, ELSEWHERE] {
        crowd.until_accepted_by(CUT_OFF, sale, healed_at, 10).await;
    }

    let alone: Vec<i64> = [SCARCE, AMPLE]
        .iter()
        .flat_map(|sale| crowd.accepted_by(CUT_OFF, *sale, split_at..healed_at))
        .collect();
    let scarce_alone = crowd
        .accepted_by(CUT_OFF, SCARCE, split_at..healed_at)
        .len();
    let elsewhere = crowd.accepted_by(OTHER, ELSEWHERE, split_at..healed_at);
    let judged = crowd.judge(other, &deployment.cluster, true, true).await;
    let rejected = judged.rejected_of(&alone);
    println!(
        "{reaches:?}: the side that was cut off accepted {} orders, {} of them of the scarce sale, of which {rejected} \
         were rejected in the end; the other side sold {} of another node meanwhile",
        alone.len(),
        scarce_alone,
        elsewhere.len(),
    );
    judged.assert_kept(&format!("split, reaching {reaches:?}"));
    assert!(alone.len() > 20, "the side that was cut off sold little");
    assert!(elsewhere.len() > 20, "sales of other nodes stood still");
    deployment.finish().await;
    rejected
}

/// What is accepted on the side that was cut off is a row before the other side counts, and counts there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_sides_sell_and_postgres_knows_it() {
    split(Reaches::Postgres).await;
}

/// Nobody on the other side can know what was accepted. Its last units are sold there as well; and then somebody
/// has to be told that there is none left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_sides_sell_the_last_units_and_nobody_gets_one_twice() {
    let rejected = split(Reaches::Nothing).await;
    assert!(rejected > 0, "both sides sold the same units");
}
