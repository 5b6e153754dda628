//! B11: ZooKeeper: the session is over while its holder sleeps; an orphan after a lost reply.

use super::{prelude::*, proxy::Proxy, zoo::*};
use locks::zookeeper::{ZooError, ZooSession};
use locks::{LockError, wire::Reply};
use tokio::time::Instant;

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
    let hers = alice.must_hold(alice.acquires(&her_lock, ZERO).rest_named(queue).await?)?;
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
    let his = bob.acquires(&his_lock, ZERO).rest_named(queue).await??.held();
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
    let proxy = proxy_to(zookeeper).await?;
    let her_zoo = alice.zoo(&proxy.address.to_string(), LONG_SESSION);
    let session = her_zoo.session(Instant::now()).await.map_err(LockError::from)?;
    let enters = || alice.does(enter_carelessly(session.clone(), stage.queue()));
    if stage.options().is("reply", "lost") {
        let creating = enters();
        loses_create(stage, &alice, &proxy).await?;
        let Err(_) = creating.end().await? else {
            return Err(LessonError::NotAsWritten(CAME.to_owned()));
        };
        is_back(&session.unwatched()).await?;
    }
    let node = enters().last("create").await?.map_err(LockError::from)?;
    let leaving = session.clone();
    let leaving = alice.does(async move { leaving.delete(&node).await });
    leaving.last("unlock").await?.map_err(LockError::from)?;
    let (his_zoo, his_lock) = lock(&bob, zookeeper, LONG_SESSION);
    let his = bob.acquires(&his_lock, ZERO).rest_named(queue).await??.held();
    stage.ends(his.is_none() && !stage.is_believed())?;
    leave(stage, [alice, bob], (session, his), [her_zoo, his_zoo]).await
}

/// The same lost reply; the client looks for its GUID.
async fn guid(stage: &Stage, zookeeper: &str) -> Result {
    let [alice, bob] = opens(stage, "guid").await?;
    let proxy = proxy_to(zookeeper).await?;
    let (her_zoo, her_lock) = lock(&alice, &proxy.address.to_string(), LONG_SESSION);
    let taking = alice.acquires(&her_lock, Duration::from_secs(5));
    if stage.options().is("reply", "lost") {
        loses_create(stage, &alice, &proxy).await?;
        alice.next().goes("sync").await?;
        alice.next().goes("find").await?;
    } else {
        alice.next().goes("create").await?;
    }
    // Behind an orphan of her own she waits in vain.
    if let Some(hers) = taking.rest_named(queue).await??.held() {
        let _ = alice.unlocks(hers, "unlock").await?;
    }
    let (his_zoo, his_lock) = lock(&bob, zookeeper, LONG_SESSION);
    let his = bob.acquires(&his_lock, ZERO).rest_named(queue).await??.held();
    stage.ends(his.is_none() && !stage.is_believed())?;
    leave(stage, [alice, bob], his, [her_zoo, his_zoo]).await
}

/// Her create gets through, and what comes back does not: it is there, and the connection breaks.
async fn loses_create(stage: &Stage, alice: &Client, proxy: &Proxy) -> Result {
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
    match created? {
        Reply::Error(_) => Ok(()),
        _ => Err(LessonError::NotAsWritten(CAME.to_owned())),
    }
}

const CAME: &str = "a reply came that was swallowed";

/// What a request of the queue is called.
fn queue(sent: &str) -> &'static str {
    match sent.split(' ').next() {
        Some("create") => "enter",
        Some("sync") => "sync",
        Some("ls") => "list",
        Some("stat") => "first",
        _ => "leave",
    }
}

/// The failing variant: a place in the queue without a name of one's own.
async fn enter_carelessly(session: ZooSession, path: String) -> Result<String, ZooError> {
    //= FLAW After a lost reply it makes another node: nothing tells it that the first is its own.
    session.create_ephemeral(&format!("{path}/lock-")).await
}

const ORPHAN: Mark = mark(file!(), "create_ephemeral(");

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
        cure("guid", &[mark("crates/locks/src/queue.rs", "starts_with(&self.name)")]),
    ],
};
