//! The queue of ephemeral nodes, on a real server behind a proxy that breaks the network.

use crate::support::locks::*;
use crate::support::proxy::{Address, Fault, Proxy};
use locks::zookeeper_client::{Acls, Client, CreateMode};

/// A busy machine has an eighth of it to tell the holder in time.
const SESSION: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(20);

fn lock(server: &ZooKeeperServer) -> ZooKeeperLock {
    ZooKeeperLock(Zoo::new(&server.cluster(), LONG))
}

/// It has been held, so that its queue is there.
async fn watched(zoo: Zoo, name: &str) -> (ZooKeeperLock, Arc<Interceptor>) {
    let interceptor = Interceptor::new();
    let lock = ZooKeeperLock(zoo.watched_by(interceptor.clone()));
    freed(held(&lock, name).await).await;
    (lock, interceptor)
}

#[tokio::test]
async fn zookeeper_a_holder_whose_session_ends_is_told_before_the_next_comes_in() {
    let (server, name) = zookeeper!("zk-session");
    let proxy = Proxy::start(Address::Tcp(server.address())).await;
    let proxied = ZooKeeperLock(Zoo::new(&proxy.address.to_string(), SESSION));
    let guard = held(&proxied, &name).await;
    let lost = guard.lost();
    proxy.set(Fault::BlackHole).await;
    let told = tokio::spawn(async move { (lost.await, Instant::now()) });
    let next = held_soon(&lock(server), &name).await;
    let came_in = Instant::now();
    let (why, told) = soon("it is told", told).await.expect("no panic");
    assert_eq!(why, Why::SessionGone);
    assert!(told < came_in, "told {:?} too late", told - came_in);
    assert!(next.fencing() > guard.fencing());
    drop(guard);
    freed(next).await;
}

#[tokio::test]
async fn zookeeper_a_short_break_costs_nothing() {
    let (server, name) = zookeeper!("zk-break");
    let proxy = Proxy::start(Address::Tcp(server.address())).await;
    let (lock, interceptor) = watched(Zoo::new(&proxy.address.to_string(), LONG), &name).await;
    let guard = held(&lock, &name).await;
    proxy.cut();
    let accepted = proxy.counts().accepted;
    wait_for!(proxy.counts().accepted > accepted);
    // A request of its own shows that the session goes on.
    assert!(is_contended(&lock, &name).await);
    assert!(!guard.lost().is_lost());
    let before = interceptor.answered("stat -w");
    let waiting = acquiring(lock, &name, LONG);
    wait_for!(interceptor.answered("stat -w") > before);
    freed(guard).await;
    freed(let_in(waiting).await).await;
}

/// The client library and ZooKeeper's own name the end of a connection under a request differently.
#[tokio::test]
async fn zookeeper_a_request_that_is_under_way_when_the_connection_ends() {
    let (server, name) = zookeeper!("zk-under-way");
    let proxy = Proxy::start(Address::Tcp(server.address())).await;
    let (lock, interceptor) = watched(Zoo::new(&proxy.address.to_string(), LONG), &name).await;
    let swallow = async |request: Breakpoint| {
        request.reached().await;
        proxy.set(Fault::BlackHole).await;
        request.resume();
        sleep(Duration::from_millis(50)).await;
        proxy.set(Fault::None).await;
        proxy.cut();
    };
    let create = interceptor.hold("create");
    let asking = acquiring(lock.clone(), &name, SOON);
    swallow(create).await;
    let guard = let_in(asking).await;
    let delete = interceptor.hold("delete");
    let releasing = tokio::spawn(freed(guard));
    swallow(delete).await;
    releasing.await.expect("freed");
    assert!(!is_contended(&lock, &name).await, "nothing is left behind");
}

#[tokio::test]
async fn zookeeper_an_acquire_that_is_given_up_leaves_no_orphan() {
    let (server, name) = zookeeper!("zk-orphan");
    let (a, interceptor) = watched(Zoo::new(&server.cluster(), LONG), &name).await;
    let answered = interceptor.hold_after("create");
    given_up(acquiring(a, &name, SOON), answered).await;
    let _next = held_soon(&lock(server), &name).await;
}

/// A lost create arrives all the same, before its retry or after: one place in the queue.
#[tokio::test]
async fn zookeeper_two_nodes_under_one_guid_are_one_place() {
    let server = zookeeper!();
    let network = Client::connect(&server.cluster()).await.expect("a session");
    for arrives_before in [true, false] {
        for ending in ["release", "drop", "give up"] {
            one_place(server, &network, arrives_before, ending).await;
        }
    }
}

/// The node that the last create, which was given up as lost, is to make.
fn lost_create(interceptor: &Interceptor) -> String {
    let create = |text: &String| text.strip_prefix("create -e -s ").map(str::to_owned);
    interceptor.texts().iter().rev().find_map(create).expect("a create")
}

/// It arrives all the same; the path of its node.
async fn arrive(network: &Client, prefix: &str) -> String {
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    format!("{prefix}{}", network.create(prefix, b"", &options).await.expect("created").1)
}

async fn only_one_is_left(client: &Client, prefix: &str, case: &str) {
    let (parent, _) = prefix.rsplit_once('/').expect("a path");
    let queue = client.list_children(parent).await.expect("a queue");
    assert_eq!(queue.len(), 1, "{case}: {queue:?}");
}

async fn one_place(server: &ZooKeeperServer, network: &Client, arrives_before: bool, ending: &str) {
    let case = format!("before: {arrives_before}, {ending}");
    let name = name("zk-two");
    let (lock_of_a, interceptor) = watched(Zoo::new(&server.cluster(), LONG), &name).await;
    let other = lock(server);
    let gives_up = ending == "give up";
    let first = if gives_up { Some(held(&other, &name).await) } else { None };
    interceptor.fail("create", 1); // to our client; in truth it is on its way
    let again = interceptor.hold("create");
    let asking = acquiring(lock_of_a, &name, if gives_up { SOON / 20 } else { SOON });
    again.reached().await;
    let prefix = &lost_create(&interceptor);
    let arrive = async || arrive(network, prefix).await;
    let earlier = if arrives_before { Some(arrive().await) } else { None };
    let listing = interceptor.hold("ls");
    again.resume();
    listing.reached().await;
    if !arrives_before {
        arrive().await;
    }
    listing.resume();
    let acquired = answered(asking).await;
    assert_eq!(acquired.is_none(), gives_up, "{case}");
    if let Some(guard) = acquired {
        assert!(is_contended(&other, &name).await, "{case}");
        if let Some(first) = earlier {
            assert_eq!(guard.path(), first, "{case}: the first has its turn");
        }
        assert!(!guard.lost().is_lost(), "{case}");
        if ending == "release" {
            freed(guard).await;
        }
    }
    if let Some(first) = first {
        freed(first).await;
    }
    let next = held_soon(&other, &name).await;
    only_one_is_left(network, prefix, &case).await;
    freed(next).await;
}

/// A node of the session before is still there: it goes when the servers end that session.
#[tokio::test]
async fn zookeeper_a_node_of_an_earlier_session_is_not_taken_for_ours() {
    let (server, name) = zookeeper!("zk-earlier");
    // To the servers it is alive: here another client's, which nothing of ours can end.
    let earlier = Client::connect(&server.cluster()).await.expect("a session");
    let zoo = Zoo::new(&server.cluster(), LONG);
    let (lock, interceptor) = watched(zoo.clone(), &name).await;
    interceptor.fail("create", 1); // to our client; in truth it is on its way
    let looking = interceptor.hold("sync");
    interceptor.fail("ls", 1);
    let asking = acquiring(lock, &name, SOON);
    looking.reached().await;
    let prefix = lost_create(&interceptor);
    let theirs = arrive(&earlier, &prefix).await;
    zoo.close().await;
    looking.resume();
    let guard = let_in(asking).await;
    assert_ne!(guard.path(), theirs);
    only_one_is_left(&earlier, &prefix, "ours").await;
    freed(guard).await;
}

/// The only server here never falls behind its leader, so this asserts the requests.
#[tokio::test]
async fn zookeeper_syncs_before_it_looks_for_its_node() {
    let (server, name) = zookeeper!("zk-sync");
    let (lock, interceptor) = watched(Zoo::new(&server.cluster(), LONG), &name).await;
    let before = interceptor.texts().len();
    interceptor.lose("create", 1);
    interceptor.lose("delete", 1);
    freed(held_soon(&lock, &name).await).await;
    let texts = interceptor.texts().split_off(before);
    let verbs = texts.iter().filter_map(|text| text.split(' ').next());
    // Create, and find it; the place in the queue, and the number; delete, and look for it.
    let expected = "create sync ls ls stat delete sync ls";
    assert_eq!(verbs.collect::<Vec<_>>().join(" "), expected, "{texts:?}");
}

#[tokio::test]
async fn zookeeper_a_node_that_somebody_removes() {
    let (server, name) = zookeeper!("zk-removed");
    let lock = lock(server);
    let guard = held(&lock, &name).await;
    let vandal = Client::connect(&server.cluster()).await.expect("a session");
    vandal.delete(guard.path(), None).await.expect("deleted");
    assert_eq!(soon("it is told", guard.lost()).await, Why::NotOurs);
    not_held(guard).await;
    assert!(!is_contended(&lock, &name).await);
}

#[tokio::test]
async fn zookeeper_that_is_restarted_keeps_the_lock() {
    let (_, name) = zookeeper!("zk-restart");
    // A server of its own: a restart would disturb the sessions of other tests.
    let folder = crate::support::Servers::shared().await.folder("zookeeper-restarted");
    let server = ZooKeeperServer::start(&folder, Default::default()).await.expect("it starts");
    let guard = held(&lock(&server), &name).await;
    let pid = server.pid();
    server.kill();
    wait_for!(server.pid().is_some_and(|now| Some(now) != pid));
    server.wait_ready().await.expect("zookeeper");
    turned_away(acquiring(lock(&server), &name, SOON / 10)).await;
    freed(guard).await;
    server.stop().await;
}
