//! B11: ZooKeeper: the session is over while its holder sleeps; an orphan after a lost reply.

use super::{prelude::*, zoo::*};
use locks::zookeeper::{ZooError, ZooSession};
use locks::{LockError, wire::Reply};

pub async fn play(stage: Stage) -> Result {
    let zookeeper = stage.zookeeper().await?;
    long_pause(&stage, &zookeeper, "session-over").await?;
    long_pause(&stage, &zookeeper, "czxid").await?;
    orphan(&stage, &zookeeper).await?;
    guid(&stage, &zookeeper).await
}

/// Alice looks, stands still, writes; Bob comes in between, if he can.
async fn long_pause(stage: &Stage, zookeeper: &str, act: &str) -> Result {
    let [alice, bob] = opens(stage, act).await?;
    stage.show_shop();
    let session = stage.options().millis("session_ms");
    let token = |czxid: Option<u64>| czxid.filter(|_| act == "czxid");
    let proxy = proxy_to(zookeeper).await?;
    let (hers_zoo, her_lock) = lock(&alice, &proxy.address.to_string(), session);
    let hers = alice.must_hold(alice.acquires(&her_lock, ZERO).rest("acquire").await?)?;
    let seen = stage.shop().read(&alice, "read-stock").await?;
    proxy.falls_silent();
    stage.plays("alice", "pause").await?;
    tokio::time::sleep(stage.pause()).await;
    if stage.pause() > session {
        stage.until_queue_has(0).await?;
        stage.happens("zookeeper", "session-over").await?;
    } else {
        proxy.mend();
    }
    let (his_zoo, his_lock) = lock(&bob, zookeeper, LONG_SESSION);
    let his = bob.acquires(&his_lock, ZERO).rest("try").await??.held();
    if let Some(his) = &his {
        let seen = stage.shop().read(&bob, "read-stock").await?;
        stage.shop().sells(&bob, seen, token(his.fencing()), "bob-sells").await?;
    }
    stage.shop().sells(&alice, seen, token(hers.fencing()), "sell").await?;
    stage.ends_by_rows(his.is_some(), "back-in-time").await?;
    leave(stage, [alice, bob], (hers, his), [hers_zoo, his_zoo]).await
}

/// The reply to a create is lost, and the client makes another node.
async fn orphan(stage: &Stage, zookeeper: &str) -> Result {
    let [alice, bob] = opens(stage, "orphan").await?;
    let (proxy, session) = behind_a_proxy(zookeeper).await?;
    let path = stage.queue();
    let command = format!("create -e -s {path}/lock-");
    if stage.options().is("reply", "lost") {
        proxy.swallows_replies();
        let creating = alice.does({
            let (session, path) = (session.clone(), path.clone());
            async move { enter_carelessly(&session, &path).await }
        });
        stage.until_queue_has(1).await?;
        proxy.mend();
        let Err(error) = creating.end().await? else {
            return Err(LessonError::NotAsWritten(CAME.to_owned()));
        };
        let reply = format!("(error) {error}");
        stage.happens("alice", "create-lost").to("zookeeper").with(&*command, reply).await?;
        is_back(&session).await?;
    }
    //= FLAW The client makes another node: by nothing would it know the first one again.
    let node = enter_carelessly(&session, &path).await.map_err(LockError::from)?;
    stage.happens("alice", "create").to("zookeeper").with(command, &*node).await?;
    session.delete(&node).await.map_err(LockError::from)?;
    let delete = format!("delete {node}");
    stage.happens("alice", "unlock").to("zookeeper").with(delete, "deleted").await?;
    let (his_zoo, his_lock) = lock(&bob, zookeeper, LONG_SESSION);
    let his = bob.acquires(&his_lock, ZERO).rest("try").await??.held();
    stage.ends(his.is_none() && !stage.is_believed())?;
    leave(stage, [alice, bob], (session, his), [his_zoo]).await
}

/// The same lost reply; the client looks for its GUID.
async fn guid(stage: &Stage, zookeeper: &str) -> Result {
    let [alice, bob] = opens(stage, "guid").await?;
    let proxy = proxy_to(zookeeper).await?;
    let (her_zoo, her_lock) = lock(&alice, &proxy.address.to_string(), LONG_SESSION);
    let taking = alice.acquires(&her_lock, LONG);
    if stage.options().is("reply", "lost") {
        // She is connected, and about to send it.
        alice.stands().await?;
        proxy.swallows_replies();
        let breaks = async {
            stage.until_queue_has(1).await?;
            proxy.mend();
            Ok::<_, LessonError>(())
        };
        let (created, broken) = tokio::join!(alice.next().goes("create-lost"), breaks);
        broken?;
        if !matches!(created?, Reply::Error(_)) {
            return Err(LessonError::NotAsWritten(CAME.to_owned()));
        }
    } else {
        alice.next().goes("create").await?;
    }
    let hers = alice.must_hold(taking.rest("find").await?)?;
    let _ = alice.unlocks(hers, "unlock").await?;
    let (his_zoo, his_lock) = lock(&bob, zookeeper, LONG_SESSION);
    let his = bob.acquires(&his_lock, ZERO).rest("try").await??.held();
    stage.ends(his.is_none() && !stage.is_believed())?;
    leave(stage, [alice, bob], his, [her_zoo, his_zoo]).await
}

const CAME: &str = "a reply came that was swallowed";

/// The failing variant: a place in the queue without a name of one's own.
async fn enter_carelessly(session: &ZooSession, path: &str) -> Result<String, ZooError> {
    session.create_ephemeral(&format!("{path}/lock-")).await
}

const ORPHAN: Mark = mark(file!(), "enter_carelessly(");

pub const LESSON: Lesson = Lesson {
    number: 11,
    id: "b11",
    needs: &[Need::ZooKeeper],
    options: &[
        whole("session_ms", 600, 400, 4_000),
        whole("pause_ms", 900, 0, 6_000),
        choice("reply", &["lost", "arrives"]),
    ],
    cast: &[ALICE, BOB, Actor { id: "zookeeper", part: Part::ZooKeeper }, SHOP],
    acts: &[
        failure("session-over", &[mark(SHOPPING, "sql.run(SELL")]),
        cure("czxid", &[mark("crates/locks/src/fencing.rs", "let written")]),
        failure("orphan", &[ORPHAN]),
        cure("guid", &[mark("crates/locks/src/queue.rs", "session.children(")]),
    ],
};
