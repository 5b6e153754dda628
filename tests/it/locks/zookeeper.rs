//! The queue of ephemeral nodes, on a real server behind a proxy that breaks the network.

use super::{SOON, acquiring, held, is_contended, let_in, name, soon, stage::Stage, until};
use crate::support::proxy::{Address, Fault, Proxy};
use flash_sale::lock::{Guard, Lock, Released, Why, ZooKeeperLock, zookeeper::Zoo};
use std::time::Duration;
use zookeeper_client::{Acls, CreateMode};

/// An eighth of it is what a busy machine has to tell the holder in time.
const SESSION: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(20);

#[tokio::test]
async fn zookeeper_lets_one_in_and_the_next_is_woken() {
    let server = zookeeper!("zookeeper_lets_one_in_and_the_next_is_woken");
    let name = name("zk");
    let stage = Stage::new();
    let a = ZooKeeperLock::new(Zoo::new(&server.cluster(), LONG));
    let b = ZooKeeperLock::new(Zoo::new(&server.cluster(), LONG).watched_by(stage.clone()));
    let first = held(&a, &name).await;
    assert!(is_contended(&b, &name).await);
    let before = first.fencing().expect("a czxid");
    let waiting = acquiring(b, &name, LONG);
    until("it watches", async || stage.answered("stat -w") >= 1).await;
    assert_eq!(first.release().await.expect("zookeeper"), Released::Freed);
    let second = let_in(waiting).await;
    assert!(second.fencing() > Some(before), "numbers grow");
    assert_eq!(second.release().await.expect("zookeeper"), Released::Freed);
}

#[tokio::test]
async fn zookeeper_a_holder_whose_session_ends_is_told_before_the_next_comes_in() {
    let server = zookeeper!("zookeeper_a_holder_whose_session_ends…");
    let name = name("zk-session");
    let proxy = Proxy::start(Address::Tcp(server.address())).await;
    let a = ZooKeeperLock::new(Zoo::new(&proxy.address().to_string(), SESSION));
    let b = ZooKeeperLock::new(Zoo::new(&server.cluster(), LONG));
    let guard = held(&a, &name).await;
    let lost = guard.lost();
    let before = guard.fencing();
    // Nothing comes through any more, and nobody hears of an end.
    proxy.set(Fault::BlackHole).await;
    let told = tokio::spawn(async move { (lost.await, tokio::time::Instant::now()) });
    let next = soon("the next", b.acquire(&name, SOON)).await;
    let came_in = tokio::time::Instant::now();
    let next = next
        .expect("zookeeper")
        .held()
        .expect("the session has ended");
    let (why, told) = soon("it is told", told).await.expect("no panic");
    assert_eq!(why, Why::SessionGone);
    assert!(told < came_in, "told {:?} too late", told - came_in);
    assert!(next.fencing() > before);
    drop(guard);
    assert_eq!(next.release().await.expect("zookeeper"), Released::Freed);
}

#[tokio::test]
async fn zookeeper_a_short_break_costs_nothing() {
    let server = zookeeper!("zookeeper_a_short_break_costs_nothing");
    let name = name("zk-break");
    let proxy = Proxy::start(Address::Tcp(server.address())).await;
    let a = ZooKeeperLock::new(Zoo::new(&proxy.address().to_string(), LONG));
    let guard = held(&a, &name).await;
    proxy.cut();
    let accepted = proxy.counts().accepted;
    until("it is back", async || proxy.counts().accepted > accepted).await;
    // A request of its own shows that the session goes on.
    assert!(is_contended(&a, &name).await);
    assert!(!guard.lost().is_lost());
    assert_eq!(guard.release().await.expect("zookeeper"), Released::Freed);
}

/// What the library calls it when a connection ends under a request is not what ZooKeeper's own client does.
#[tokio::test]
async fn zookeeper_a_request_that_is_under_way_when_the_connection_ends() {
    let server = zookeeper!("zookeeper_a_request_that_is_under_way…");
    let name = name("zk-under-way");
    let proxy = Proxy::start(Address::Tcp(server.address())).await;
    let stage = Stage::new();
    let zoo = Zoo::new(&proxy.address().to_string(), LONG).watched_by(stage.clone());
    let lock = ZooKeeperLock::new(zoo);
    let guard = held(&lock, &name).await; // connects, and makes the folder
    assert_eq!(guard.release().await.expect("zookeeper"), Released::Freed);
    // It is sent into the dark, and then the connection ends.
    let swallow = async |request: super::stage::Gate| {
        request.reached().await;
        proxy.set(Fault::BlackHole).await;
        request.open();
        tokio::time::sleep(Duration::from_millis(50)).await;
        proxy.set(Fault::None).await;
        proxy.cut();
    };

    let create = stage.hold("create");
    let asking = acquiring(lock.clone(), &name, SOON);
    swallow(create).await;
    let guard = soon("the lock", asking).await.expect("no panic");
    let guard = guard.expect("it asks again").held().expect("free");

    let delete = stage.hold("delete");
    let releasing = tokio::spawn(guard.release());
    swallow(delete).await;
    let released = soon("the release", releasing).await.expect("no panic");
    assert_eq!(released.expect("it asks again"), Released::Freed);
    assert!(!is_contended(&lock, &name).await, "nothing is left behind");
}

#[tokio::test]
async fn zookeeper_an_orphan_node_after_a_lost_create_reply() {
    let server = zookeeper!("zookeeper_an_orphan_node_after_a_lost_create_reply");
    let name = name("zk-orphan");
    let stage = Stage::new();
    let zoo = Zoo::new(&server.cluster(), LONG).watched_by(stage.clone());
    let lock = ZooKeeperLock::new(zoo);
    drop(held(&lock, &name).await); // makes the folder
    stage.lose("create", 1);
    let guard = soon("its own node", lock.acquire(&name, SOON)).await;
    let guard = guard.expect("zookeeper").held().expect("free");
    let texts = stage.texts();
    let made = texts
        .iter()
        .filter(|text| text.contains("-lock-") && text.starts_with("create"));
    // The very first one found no folder.
    assert_eq!(made.count(), 3, "found again, not made again: {texts:?}");
    assert_eq!(guard.release().await.expect("zookeeper"), Released::Freed);

    // Given up in that very moment: nobody waits behind the orphan.
    let answered = stage.hold_after("create");
    let asking = acquiring(lock.clone(), &name, SOON);
    answered.reached().await;
    asking.abort();
    let other = ZooKeeperLock::new(Zoo::new(&server.cluster(), LONG));
    let next = soon("the next", other.acquire(&name, SOON)).await;
    assert!(next.expect("zookeeper").held().is_some());
}

/// A create that was given up as lost, and sent again, arrives all the same: before its retry, or after.
#[tokio::test]
async fn zookeeper_two_nodes_under_one_guid_are_one_place() {
    let server = zookeeper!("zookeeper_two_nodes_under_one_guid_are_one_place");
    let network = zookeeper_client::Client::connect(&server.cluster())
        .await
        .expect("a session");
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    for straggler in ["before", "after"] {
        for ending in ["release", "drop", "give up"] {
            let case = format!("{straggler}, {ending}");
            let name = name("zk-two");
            let stage = Stage::new();
            let zoo = Zoo::new(&server.cluster(), LONG).watched_by(stage.clone());
            let lock = ZooKeeperLock::new(zoo);
            let other = ZooKeeperLock::new(Zoo::new(&server.cluster(), LONG));
            let first = held(&other, &name).await; // makes the folder
            let first = if ending == "give up" {
                Some(first)
            } else {
                assert_eq!(first.release().await.expect("zookeeper"), Released::Freed);
                None
            };
            stage.fail("create", 1); // to our client; in truth it is on its way
            let again = stage.hold("create");
            let wait = if first.is_some() { SOON / 20 } else { SOON };
            let asking = acquiring(lock, &name, wait);
            again.reached().await;
            let texts = stage.texts();
            let prefix = texts
                .iter()
                .find_map(|text| text.strip_prefix("create -e -s "));
            let prefix = prefix.expect("a create");
            let arrive = async || {
                let made = network.create(prefix, b"", &options).await;
                format!("{prefix}{}", made.expect("made").1)
            };
            let mut earlier = None;
            if straggler == "before" {
                earlier = Some(arrive().await);
            }
            let made = stage.hold("ls");
            again.open();
            made.reached().await;
            if straggler == "after" {
                arrive().await;
            }
            made.open();
            let acquired = soon("an answer", asking).await.expect("no panic");
            let acquired = acquired.expect("zookeeper").held();
            assert_eq!(acquired.is_none(), first.is_some(), "{case}");
            if let Some(guard) = acquired {
                assert!(is_contended(&other, &name).await, "{case}");
                if let Some(earlier) = earlier {
                    assert_eq!(
                        guard.path(),
                        earlier,
                        "{case}: the first of the two has its turn"
                    );
                }
                assert!(!guard.lost().is_lost(), "{case}");
                if ending == "release" {
                    assert_eq!(guard.release().await.expect("zookeeper"), Released::Freed);
                }
            }
            if let Some(first) = first {
                assert_eq!(first.release().await.expect("zookeeper"), Released::Freed);
            }
            let next = soon(&case, other.acquire(&name, SOON)).await;
            let next = next.expect("zookeeper").held().expect(&case);
            let (parent, _) = prefix.rsplit_once('/').expect("a path");
            let queue = network.list_children(parent).await.expect("a queue");
            assert_eq!(queue.len(), 1, "{case}: only the next is left of {queue:?}");
            assert_eq!(next.release().await.expect("zookeeper"), Released::Freed);
        }
    }
}

/// A server that has fallen behind its leader would list no node that it has not heard of. The only server there
/// is here never does, so what is asserted is what is asked, and in which order.
#[tokio::test]
async fn zookeeper_syncs_before_it_looks_for_its_node() {
    let server = zookeeper!("zookeeper_syncs_before_it_looks_for_its_node");
    let name = name("zk-sync");
    let stage = Stage::new();
    let zoo = Zoo::new(&server.cluster(), LONG).watched_by(stage.clone());
    let lock = ZooKeeperLock::new(zoo);
    let guard = held(&lock, &name).await; // makes the folder
    assert_eq!(guard.release().await.expect("zookeeper"), Released::Freed);
    let before = stage.texts().len();
    stage.lose("create", 1);
    stage.lose("delete", 1);
    let guard = soon("its own node", lock.acquire(&name, SOON)).await;
    let guard = guard.expect("zookeeper").held().expect("free");
    assert_eq!(guard.release().await.expect("zookeeper"), Released::Freed);
    let texts = stage.texts().split_off(before);
    let verbs: Vec<_> = texts
        .iter()
        .filter_map(|text| text.split(' ').next())
        .collect();
    assert_eq!(
        verbs,
        // Made, and looked for; its place in the queue, and its number; removed, and looked for.
        ["create", "sync", "ls", "ls", "stat", "delete", "sync", "ls"],
        "{texts:?}"
    );
}

#[tokio::test]
async fn zookeeper_a_guard_that_is_dropped_leaves_the_queue() {
    let server = zookeeper!("zookeeper_a_guard_that_is_dropped_leaves_the_queue");
    let name = name("zk-dropped");
    let lock = ZooKeeperLock::new(Zoo::new(&server.cluster(), LONG));
    drop(held(&lock, &name).await);
    let next = soon("the next", lock.acquire(&name, SOON)).await;
    assert!(next.expect("zookeeper").held().is_some());
}

#[tokio::test]
async fn zookeeper_a_node_that_somebody_removes() {
    let server = zookeeper!("zookeeper_a_node_that_somebody_removes");
    let name = name("zk-removed");
    let lock = ZooKeeperLock::new(Zoo::new(&server.cluster(), LONG));
    let guard = held(&lock, &name).await;
    let vandal = zookeeper_client::Client::connect(&server.cluster())
        .await
        .expect("a session");
    vandal.delete(guard.path(), None).await.expect("deleted");
    assert_eq!(soon("it is told", guard.lost()).await, Why::NotOurs);
    assert_eq!(guard.release().await.expect("zookeeper"), Released::NotHeld);
    assert!(!is_contended(&lock, &name).await);
}

#[tokio::test]
async fn zookeeper_that_is_restarted_keeps_the_lock() {
    zookeeper!("zookeeper_that_is_restarted_keeps_the_lock");
    // One of its own: the others' sessions would not like it.
    let folder = crate::support::Servers::shared()
        .await
        .folder("zookeeper-restarted");
    let server = flash_sale::embedded::ZooKeeperServer::start(&folder, Default::default()).await;
    let server = server.expect("zookeeper starts");
    let name = name("zk-restart");
    let lock = ZooKeeperLock::new(Zoo::new(&server.cluster(), LONG));
    let guard = held(&lock, &name).await;
    let pid = server.pid();
    server.kill();
    until("it is back", async || {
        server.pid().is_some_and(|now| Some(now) != pid)
    })
    .await;
    server.wait_ready().await.expect("zookeeper");
    let other = ZooKeeperLock::new(Zoo::new(&server.cluster(), LONG));
    assert!(
        soon("an answer", other.acquire(&name, SOON / 10))
            .await
            .expect("zookeeper")
            .held()
            .is_none()
    );
    assert_eq!(
        soon("the release", guard.release())
            .await
            .expect("zookeeper"),
        Released::Freed
    );
    server.stop().await;
}
