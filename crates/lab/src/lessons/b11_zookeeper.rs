//! B11: ZooKeeper: the session is over while its holder sleeps; an orphan after a lost reply.

use super::{prelude::*, proxy::Proxy};
use locks::zookeeper_client::{Acls, Client as Session, CreateMode, Error, SessionState};
use locks::{LockError, ZooKeeperLock, fencing::Write, wire::Reply, zookeeper::Zoo};

pub const LESSON: Lesson = Lesson {
    number: 11,
    id: "b11",
    title: w("ZooKeeper: a session ends, a node is orphaned", "ZooKeeper：会话过期与孤儿节点"),
    failure: w(
        "Alice's process stands still for longer than her session: her node goes, Bob has the \
         lock, and Alice writes. Or: the reply of her create is lost, she creates another node, \
         and the first one stands in the queue for ever.",
        "Alice 的进程停顿超过会话超时：她的节点消失，Bob 拿到锁，而 Alice 继续写入。或者：创建节点的应答丢了，她又建了一个，第一个就永远排在队列里。",
    ),
    forced_how: w(
        "A proxy between Alice and ZooKeeper falls silent, so no heartbeat gets through, until the \
         server has really ended her session. A lost reply: the proxy lets her create through and \
         swallows what comes back; once the node is there, the connection breaks.",
        "Alice 与 ZooKeeper 之间的代理突然沉默，心跳发不出去，直到服务器真的结束了她的会话。丢失的应答：代理放行她的创建请求，却吞掉返回的一切；等节点出现之后，连接断开。",
    ),
    cure: w(
        "czxid, the number of the transaction that made the node, is a fencing token. A GUID in \
         the node's name lets the client find what it has made.",
        "czxid（创建该节点的事务编号）就是 fencing 令牌。节点名里带 GUID，客户端就能找到自己创建过的节点。",
    ),
    source: w(
        "《分布式锁的三种实现》 has the ephemeral sequential node and the watch on the predecessor. It takes \
         the session's end for the end of the holder: a holder that stands still does not know. \
         ZooKeeper's own recipe names the GUID.",
        "《分布式锁的三种实现》讲了临时顺序节点与监听前一个节点。它把“会话结束”当作“持有者结束”：停住的持有者并不知道。GUID 的做法出自 ZooKeeper 官方的锁方案。",
    ),
    needs: &[Need::ZooKeeper],
    options: &[
        whole(
            "session_ms",
            600,
            400,
            4_000,
            w(
                "After how long without a heartbeat the server ends the session.",
                "多久收不到心跳，服务器就结束会话。",
            ),
        ),
        whole(
            "pause_ms",
            900,
            0,
            6_000,
            w(
                "How long Alice is cut off. Well below the session's timeout, and nothing happens.",
                "Alice 断联多久。明显短于会话超时，就什么事也没有。",
            ),
        ),
        choice(
            "reply",
            &["lost", "arrives"],
            w(
                "arrives: the reply of the create reaches Alice. No second node, no orphan.",
                "arrives：创建的应答送达了，没有第二个节点，也没有孤儿。",
            ),
        ),
    ],
    cast: &[
        ALICE,
        BOB,
        Actor { id: "zookeeper", name: w("ZooKeeper", "ZooKeeper"), part: Part::ZooKeeper },
        SHOP,
    ],
    acts: &[
        Act {
            id: "session-over",
            kind: Kind::Failure,
            title: w("The session ends, the holder goes on", "会话结束了，持有者还在继续"),
            say: w(
                "The lock is a node that lives as long as its maker's session.",
                "锁是一个节点，与创建者的会话同生共死。",
            ),
        },
        Act {
            id: "czxid",
            kind: Kind::Cure,
            title: w("czxid as fencing token", "用 czxid 作 fencing 令牌"),
            say: w(
                "The same pause. But every write carries the number of its holder's node, and the \
                 row refuses a lower one.",
                "同样的停顿。但每次写入都带上持有者节点的编号，那一行拒绝更小的编号。",
            ),
        },
        Act {
            id: "orphan",
            kind: Kind::Failure,
            title: w("An orphan in the queue", "队列里的孤儿"),
            say: w(
                "The create is done, its reply is lost. The client creates another node and never \
                 knows of the first.",
                "节点已创建，应答丢了。客户端又创建一个，永远不知道第一个的存在。",
            ),
        },
        Act {
            id: "guid",
            kind: Kind::Cure,
            title: w("A GUID in the name", "名字里带 GUID"),
            say: w(
                "The same lost reply. The client looks for a node with its GUID before it makes \
                 another.",
                "同样丢了应答。客户端在再次创建之前，先按自己的 GUID 找一找。",
            ),
        },
    ],
};

/// The failing variant: a place in the queue without a name of one's own.
async fn enter_carelessly(session: &Session, path: &str) -> Result<String, Error> {
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let prefix = format!("{path}/lock-");
    let (_, number) = session.create(&prefix, b"", &options).await?;
    Ok(format!("{prefix}{number}"))
}

/// A proxy, and a session through it.
async fn behind_a_proxy(zookeeper: &str) -> Result<(Proxy, Session), Trouble> {
    let proxy = Proxy::start(zookeeper.to_owned()).await.map_err(redis::RedisError::from)?;
    let session = Session::connector()
        .with_session_timeout(LONG_SESSION)
        .connect(&proxy.address.to_string())
        .await
        .map_err(LockError::from)?;
    Ok((proxy, session))
}

/// Made before the curtain rises: what is lost on stage is to be the reply to the create of a
/// place.
async fn make_folder(session: &Session, path: &str) -> Result<(), Trouble> {
    for (path, mode) in [("/locks", CreateMode::Persistent), (path, CreateMode::Container)] {
        let options = mode.with_acls(Acls::anyone_all());
        match session.create(path, b"", &options).await {
            Ok(_) | Err(Error::NodeExists) => {}
            Err(error) => return Err(LockError::from(error).into()),
        }
    }
    Ok(())
}

/// The library connects again by itself, and its session goes on.
async fn is_back(session: &Session) -> Result<(), Trouble> {
    let mut states = session.state_watcher();
    let connected = async {
        let mut state = session.state();
        while state != SessionState::SyncConnected {
            if state.is_terminated() {
                return Err(Trouble::TooSlow("a session ended that should go on"));
            }
            state = states.changed().await;
        }
        Ok(())
    };
    tokio::time::timeout(LONG_SESSION, connected)
        .await
        .unwrap_or(Err(Trouble::TooSlow("a connection does not come back")))
}

pub async fn play(stage: Stage) -> Result<(), Trouble> {
    let zookeeper = stage.environment().zookeeper().await?;
    long_pause(&stage, &zookeeper, "session-over").await?;
    long_pause(&stage, &zookeeper, "czxid").await?;
    orphan(&stage, &zookeeper).await?;
    guid(&stage, &zookeeper).await
}

fn lock(client: &Client, address: &str, session: Duration) -> (Zoo, ZooKeeperLock) {
    let zoo = client.zoo(address, session);
    (zoo.clone(), ZooKeeperLock::new(zoo))
}

/// As long as the server grants.
const LONG_SESSION: Duration = Duration::from_secs(20);

async fn long_pause(stage: &Stage, zookeeper: &str, act: &str) -> Result<(), Trouble> {
    stage.act(act).await?;
    stage.show_zoo();
    stage.show_shop();
    let [alice, bob] = ["alice", "bob"].map(|id| stage.client(id));
    let session = stage.options().millis("session_ms");
    let proxy = Proxy::start(zookeeper.to_owned()).await.map_err(redis::RedisError::from)?;
    let (hers_zoo, her_lock) = lock(&alice, &proxy.address.to_string(), session);
    let says = w(
        "Alice makes a node and sees that it is the first of the queue: the lock is hers.",
        "Alice 创建节点，看到自己排在队首：锁归她。",
    );
    let hers = alice.acquires(&her_lock, ZERO).rest("acquire", says).await?.0;
    let hers = alice.must_hold(hers)?;
    let says = w("Alice looks: one phone is left.", "Alice 查库存：还剩一台手机。");
    let seen = stage.shop().reads(&alice).last("read-stock", says).await??;
    proxy.falls_silent();
    stage
        .happens(
            "alice",
            "pause",
            w(
                "Alice stands still. Nothing of her reaches ZooKeeper any more, no heartbeat \
                 either.",
                "Alice 停住了。她的任何消息都到不了 ZooKeeper，包括心跳。",
            ),
        )
        .await?;
    tokio::time::sleep(stage.pause()).await;
    if stage.pause() > session {
        stage.until_queue_is_empty().await?;
        stage
            .happens(
                "zookeeper",
                "session-over",
                w(
                    "The server has heard nothing for too long: it ends her session and removes \
                     her node.",
                    "服务器太久没有收到消息：结束她的会话，删除她的节点。",
                ),
            )
            .await?;
    } else {
        proxy.mend();
    }
    let (his_zoo, his_lock) = lock(&bob, zookeeper, LONG_SESSION);
    let says = w("Bob stands in the queue. Is he the first?", "Bob 去排队。他是第一个吗？");
    let his = bob.acquires(&his_lock, ZERO).rest("try", says).await?.0?.held();
    if let Some(his) = &his {
        let seen = stage
            .shop()
            .reads(&bob)
            .last("read-stock", w("Bob looks: one phone is left.", "Bob 查库存：还剩一台手机。"))
            .await??;
        sell(
            stage,
            &bob,
            seen,
            his.fencing(),
            act,
            w("Bob sells it, rightly.", "Bob 正当地卖出。"),
        )
        .await?;
    }
    sell(
        stage,
        &alice,
        seen,
        hers.fencing(),
        act,
        w("Alice goes on where she stood, and writes.", "Alice 从停住的地方继续，写入。"),
    )
    .await?;
    let overwritten =
        his.is_some() && stage.shop().sold_to().await?.as_deref() == Some("sold to alice");
    stage.ends(
        stage.shop().oversold().await? > 0 || overwritten,
        w(
            "One phone, two orders: Alice wrote after her session was over.",
            "一台手机，两个订单：Alice 在会话结束之后写入。",
        ),
        if his.is_none() {
            w(
                "Alice was back before her session was over; Bob was turned away.",
                "Alice 在会话结束前回来了，Bob 被拒绝。",
            )
        } else {
            w(
                "Two believed to hold the lock, and the row refused the older czxid.",
                "两个人都以为持锁，但那一行拒绝了较旧的 czxid。",
            )
        },
    )?;
    for client in [&alice, &bob] {
        client.leaves();
    }
    drop((hers, his)); // each keeps its session open
    hers_zoo.close().await;
    his_zoo.close().await;
    stage.until_queue_is_empty().await
}

async fn sell(
    stage: &Stage,
    client: &Client,
    seen: i32,
    czxid: Option<u64>,
    act: &str,
    says: Words,
) -> Result<(), Trouble> {
    if let (Some(czxid), "czxid") = (czxid, act) {
        let written = stage.shop().sells_fenced(client, czxid).rest("sell", says).await?.0?;
        let (Write::Applied | Write::Refused { .. }) = written;
    } else {
        stage.shop().sells(client, seen).last("sell", says).await??;
    }
    Ok(())
}

const CREATES: Words =
    w("Alice makes a node, and learns its name.", "Alice 创建节点，得知了它的名字。");
const CREATES_AND_HEARS_NOTHING: Words = w(
    "Alice makes a node. It is there; but the connection breaks before the reply comes, and that \
     is all she hears.",
    "Alice 创建节点。节点有了；但应答到达之前连接断了，她只知道连接断了。",
);
const CAME: &str = "a reply came that was swallowed";
const UNLOCKS: Words = w("Alice is done and removes her node.", "Alice 干完了，删除自己的节点。");
const BOB_TRIES: Words = w(
    "Bob stands in the queue. Nobody works under the lock.",
    "Bob 去排队。此时没有人在锁下干活。",
);
const STUCK: Words = w(
    "Nobody holds the lock, and nobody will get it while Alice's session lives: her first node is \
     the first of the queue.",
    "没有人持锁，但只要 Alice 的会话还在，谁也拿不到：她的第一个节点一直排在队首。",
);
const FREED: Words = w(
    "Nothing of Alice was left in the queue, and Bob got the lock.",
    "队列里没有 Alice 的残留，Bob 拿到了锁。",
);

async fn orphan(stage: &Stage, zookeeper: &str) -> Result<(), Trouble> {
    stage.act("orphan").await?;
    stage.show_zoo();
    let [alice, bob] = ["alice", "bob"].map(|id| stage.client(id));
    let (proxy, session) = behind_a_proxy(zookeeper).await?;
    let path = stage.queue();
    make_folder(&session, &path).await?;
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
            return Err(Trouble::NotAsWritten(CAME.to_owned()));
        };
        stage
            .orders_to(
                "alice",
                "zookeeper",
                "create",
                command.clone(),
                format!("(error) {error}"),
                CREATES_AND_HEARS_NOTHING,
            )
            .await?;
        is_back(&session).await?;
    }
    let node = enter_carelessly(&session, &path).await.map_err(LockError::from)?;
    stage.orders_to("alice", "zookeeper", "create", command, node.clone(), CREATES).await?;
    session.delete(&node, None).await.map_err(LockError::from)?;
    stage
        .orders_to("alice", "zookeeper", "unlock", format!("delete {node}"), "deleted", UNLOCKS)
        .await?;
    let (his_zoo, his_lock) = lock(&bob, zookeeper, LONG_SESSION);
    let his = bob.acquires(&his_lock, ZERO).rest("try", BOB_TRIES).await?.0?.held();
    stage.ends(his.is_none() && !stage.is_believed(), STUCK, FREED)?;
    alice.leaves();
    bob.leaves();
    drop((session, his));
    his_zoo.close().await;
    stage.until_queue_is_empty().await
}

async fn guid(stage: &Stage, zookeeper: &str) -> Result<(), Trouble> {
    stage.act("guid").await?;
    stage.show_zoo();
    let [alice, bob] = ["alice", "bob"].map(|id| stage.client(id));
    let (proxy, session) = behind_a_proxy(zookeeper).await?;
    make_folder(&session, &stage.queue()).await?;
    let (her_zoo, her_lock) = lock(&alice, &proxy.address.to_string(), LONG_SESSION);
    let taking = alice.acquires(&her_lock, LONG);
    let says = if stage.options().is("reply", "lost") {
        // She is connected, and about to send it.
        alice.stands().await?;
        proxy.swallows_replies();
        let creates = alice.next("create", CREATES_AND_HEARS_NOTHING);
        let breaks = async {
            stage.until_queue_has(1).await?;
            proxy.mend();
            Ok::<_, Trouble>(())
        };
        let (created, broken) = tokio::join!(creates, breaks);
        broken?;
        if !matches!(created?.reply, Reply::Error(_)) {
            return Err(Trouble::NotAsWritten(CAME.to_owned()));
        }
        w(
            "Alice looks for her GUID, finds the node that she has made, and goes on with it.",
            "Alice 按 GUID 查找，找到自己创建过的节点，继续使用它。",
        )
    } else {
        alice.next("create", CREATES).await?;
        w(
            "Alice sees that her node is the first of the queue: the lock is hers.",
            "Alice 看到自己的节点排在队首：锁归她。",
        )
    };
    let hers = alice.must_hold(taking.rest("find", says).await?.0)?;
    let _ = alice.releases(hers).rest("unlock", UNLOCKS).await?.0?;
    let (his_zoo, his_lock) = lock(&bob, zookeeper, LONG_SESSION);
    let his = bob.acquires(&his_lock, ZERO).rest("try", BOB_TRIES).await?.0?.held();
    stage.ends(his.is_none() && !stage.is_believed(), STUCK, FREED)?;
    alice.leaves();
    bob.leaves();
    drop((session, his));
    her_zoo.close().await;
    his_zoo.close().await;
    stage.until_queue_is_empty().await
}
