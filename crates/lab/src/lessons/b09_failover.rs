//! B9: failover: the replica never saw the lock.

use super::{nodes::Node, prelude::*};
use locks::{Lock, MultiLock, Redlock, TokenLock};
use redis::cmd;

pub const LESSON: Lesson = Lesson {
    number: 9,
    id: "b09",
    title: w("A failover that forgets the lock", "故障转移忘记了锁"),
    failure: w(
        "Redis copies to its replica later, not before it answers. The primary takes Alice's lock \
         and dies; the replica, promoted, has never heard of it and gives the lock to Bob.",
        "Redis 先应答，之后才复制。主节点给 Alice 加了锁就死了；从节点升为主，从没听说过这把锁，又给了 Bob。",
    ),
    forced_how: w(
        "A primary and a replica of this play alone. The link between them is cut, Alice locks, \
         the primary is killed with kill -9, the replica is promoted.",
        "这一课专用的一主一从。切断两者的复制，Alice 加锁，用 kill -9 杀掉主节点，再提升从节点。",
    ),
    cure: w(
        "A majority of independent nodes (redlock), or all of them (multi-lock). With Redlock one \
         that forgets is harmless only if it was not needed for the holder's majority (lesson 10); \
         with the multi-lock, as long as one of them remembers. And fencing, with a counter that a \
         failover cannot forget.",
        "在互相独立的多数节点上加锁（redlock），或在全部节点上加锁（multi-lock）。用 redlock 时，只有当忘记的节点不是凑成多数所必需的，才无害（见第 10 课）；\
         用 multi-lock 时，只要还有一个节点记得就行。再加上 fencing，而且编号不能随故障转移一起丢失。",
    ),
    source: w(
        "《突击Redis重大事故现场》 weighs RedLock and rejects it; the course notes 《秒杀》 name multiLock over \
         equal nodes as the cure for a lost primary. Both leave out that a fencing counter in the \
         same Redis is forgotten together with the lock, as shown here.",
        "《突击Redis重大事故现场》权衡过 RedLock 后没有采用；课程笔记《秒杀》把“多个对等节点的 multiLock”作为主节点丢失的解法。两者都没提：放在同一个 Redis \
         里的 fencing 计数会和锁一起丢失，正如这里所示。",
    ),
    needs: &[Need::RedisNodes(3)],
    options: &[choice(
        "replicated",
        &["no", "yes"],
        w(
            "yes: the replica has the lock before the primary dies. Bob is turned away. Nothing \
             guarantees this; WAIT makes it likelier.",
            "yes：主节点死之前，从节点已收到这把锁，Bob 被拒绝。没有什么能保证这一点；WAIT 只是让它更可能。",
        ),
    )],
    cast: &[
        ALICE,
        BOB,
        node("redis-1", w("Redis 1 (primary)", "Redis 1（主）")),
        node("redis-2", w("Redis 2 (replica)", "Redis 2（从）")),
        node("redis-3", w("Redis 3", "Redis 3")),
        SHOP,
    ],
    acts: &[
        Act {
            id: "failover",
            kind: Kind::Failure,
            title: w("The replica takes over", "从节点接管"),
            say: w(
                "A token, a Lua unlock, even a fencing number. All of it is in one Redis, and a \
                 copy that is a little late.",
                "有令牌、有 Lua 解锁，连 fencing 编号都有。但它们都在一个 Redis 里，而副本总是慢一点。",
            ),
        },
        Act {
            id: "fencing",
            kind: Kind::Cure,
            title: w("Numbers that no failover forgets", "故障转移忘不掉的编号"),
            say: w(
                "The same failover. But each holder is numbered by the resource itself, and \
                 not by the lock's Redis.",
                "同样的故障转移。但进来的人由被写入的那一行来编号，而不是由锁所在的 Redis 编号。",
            ),
        },
        Act {
            id: "multi-lock",
            kind: Kind::Cure,
            title: w("All of three", "三个节点全部"),
            say: w(
                "Three nodes, none a copy of another, and all of them are needed. One dies and \
                 comes back without its data, as after a failover that forgot.",
                "三个节点，互不为副本，必须全部拿到。其中一个死掉，回来时数据没了，就像一次丢数据的故障转移。",
            ),
        },
        Act {
            id: "redlock",
            kind: Kind::Cure,
            title: w("A majority of three", "三个节点中的多数"),
            say: w(
                "The same, and two of three are enough: one may also stay away.",
                "同样的情形，但三个里有两个就够：允许其中一个不在。",
            ),
        },
    ],
};

const fn node(id: &'static str, name: Words) -> Actor {
    Actor { id, name, part: Part::Redis }
}

pub async fn play(stage: Stage) -> Result<(), Trouble> {
    failover(&stage, "failover").await?;
    failover(&stage, "fencing").await?;
    // Others than before, under the same names.
    for id in NODES {
        stage.forget(id).await;
    }
    let first = stage.node("redis-1", Vec::new()).await?;
    let second = stage.node("redis-2", Vec::new()).await?;
    let _third = stage.node("redis-3", Vec::new()).await?;
    let all = |lines| MultiLock::new(lines, LONG);
    let says = [
        w("Alice asks one after the other: she needs all three.", "Alice 依次请求：三个都要拿到。"),
        w(
            "Bob asks one after the other: Redis 1 remembers nothing, but Redis 2 belongs to \
             Alice. He gives back whatever he got.",
            "Bob 依次请求：Redis 1 什么都不记得，但 Redis 2 归 Alice。他把拿到的全部还回去。",
        ),
    ];
    several(&stage, "multi-lock", &first, all, says).await?;
    let majority = |lines| Redlock::new(lines, LONG);
    let says = [
        w("Alice asks all three nodes at once.", "Alice 同时向三个节点请求。"),
        w(
            "Bob asks all three. He needs two of them, and gives back whatever he got if he does \
             not have two.",
            "Bob 向三个节点请求。他需要两个；不够两个，就把拿到的全部还回去。",
        ),
    ];
    several(&stage, "redlock", &second, majority, says).await
}

const NODES: [&str; 3] = ["redis-1", "redis-2", "redis-3"];

async fn failover(stage: &Stage, act: &str) -> Result<(), Trouble> {
    // Others than before, under the same names.
    for id in NODES {
        stage.forget(id).await;
    }
    let replicated = stage.options().is("replicated", "yes");
    // Replicas connect by TCP only.
    let port = free_port()?.to_string();
    let primary = ["--port", &port, "--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0"]
        .map(str::to_owned)
        .to_vec();
    let primary = stage.node("redis-1", primary).await?;
    let replica = stage.node("redis-2", Vec::new()).await?;
    stage.act(act).await?;
    stage.show_only(&[("redis-1", LOCK), ("redis-2", LOCK)]);
    stage.show_shop();
    let [alice, bob] = ["alice", "bob"].map(|id| stage.client(id));

    let follow = |host: &'static str, port: String| {
        let mut command = cmd("REPLICAOF");
        command.arg(host).arg(port);
        command
    };
    replica.order::<()>(&follow("127.0.0.1", port.clone())).await?;
    replica.until_synchronised().await?;
    let info: String = replica.order(cmd("INFO").arg("replication")).await?;
    stage
        .orders(
            "redis-2",
            "replicate",
            "INFO replication",
            link_status(&info),
            w("Redis 2 copies Redis 1, and is up to date.", "Redis 2 复制 Redis 1，目前是最新的。"),
        )
        .await?;
    if !replicated {
        // Nobody listens there: the link is down, and what the replica has stays.
        replica.order::<()>(&follow("127.0.0.1", "1".to_owned())).await?;
        let info: String = replica.order(cmd("INFO").arg("replication")).await?;
        stage
            .orders(
                "redis-2",
                "cut",
                "INFO replication",
                link_status(&info),
                w(
                    "The link between them breaks. It happens, and nobody notices.",
                    "两者之间的连接断了。这很常见，也没人察觉。",
                ),
            )
            .await?;
    }
    let lock = |client: &Client, node| {
        Ok::<_, Trouble>(TokenLock::new(client.line_to(node)?, LONG).fenced())
    };
    let hers = alice
        .takes(
            &lock(&alice, "redis-1")?,
            "acquire",
            w(
                "Alice takes the lock, with the number 1. Redis 1 answers at once.",
                "Alice 拿到锁，编号为 1。Redis 1 立即应答。",
            ),
        )
        .await?;
    let numbered_by_the_row = act == "fencing";
    let number = async |client: &Client, of_the_lock: Option<u64>| {
        if !numbered_by_the_row {
            return Ok(of_the_lock.unwrap_or(0));
        }
        let says = Said::from(w(
            "{who} has the lock, and asks the row for a number: one more than anybody before.",
            "{who} 拿到锁，向那一行要一个编号：比之前任何人的都大一。",
        ));
        let taking = stage.shop().numbers(client);
        let taken = taking.last("number", says.with("who", client.name())).await?;
        Ok::<_, Trouble>(taken?)
    };
    let her_number = number(&alice, hers.fencing()).await?;
    if replicated {
        stage.until_there("redis-2", LOCK).await?;
        stage
            .happens(
                "redis-2",
                "copied",
                w("Redis 2 has received the lock.", "Redis 2 已收到这把锁。"),
            )
            .await?;
    }
    primary.kill();
    stage
        .happens("redis-1", "crash", w("kill -9: Redis 1 dies.", "kill -9：Redis 1 死了。"))
        .await?;
    let promoted: String = replica.order(&follow("NO", "ONE".to_owned())).await?;
    stage
        .orders(
            "redis-2",
            "promote",
            "REPLICAOF NO ONE",
            promoted,
            w(
                "Redis 2 is promoted, and everybody goes there now.",
                "Redis 2 升为主节点，从此大家都连它。",
            ),
        )
        .await?;
    let his = bob
        .tries(
            &lock(&bob, "redis-2")?,
            "try",
            w("Bob tries at Redis 2.", "Bob 到 Redis 2 上来抢。"),
        )
        .await?;
    if let Some(his) = &his {
        let his_number = number(&bob, his.fencing()).await?;
        let says = if numbered_by_the_row {
            w(
                "Bob sells the phone, with his number, the newest.",
                "Bob 带着自己的编号卖出手机，那是最新的编号。",
            )
        } else {
            w(
                "Bob sells the phone, with his number. It is 1: the counter was forgotten as well.",
                "Bob 带着自己的编号卖出手机。编号也是 1：计数也一起丢了。",
            )
        };
        let _ = stage.shop().sells_fenced(&bob, his_number).rest("sell", says).await?.0?;
    }
    let says = w(
        "Alice, who never noticed anything, sells with her number.",
        "Alice 毫无察觉，也带着自己的编号卖出。",
    );
    let _ = stage.shop().sells_fenced(&alice, her_number).rest("sell", says).await?.0?;
    let overwritten =
        his.is_some() && stage.shop().sold_to().await?.as_deref() == Some("sold to alice");
    stage.ends(
        overwritten,
        w(
            "Both hold the lock, with the same number: not even the row can tell them apart, and \
             Bob's sale was overwritten.",
            "两人同时持锁，编号还相同：连那一行也分不出谁先谁后，Bob 的成交被覆盖了。",
        ),
        if his.is_some() {
            w(
                "Two believed to hold the lock, and it did no harm: the row refused the older \
                 number.",
                "两个人都以为持锁，却没有造成破坏：那一行拒绝了较旧的编号。",
            )
        } else {
            w(
                "The replica had the lock in time, and Bob was turned away.",
                "从节点及时收到了锁，Bob 被拒绝。",
            )
        },
    )?;
    for client in [&alice, &bob] {
        client.leaves();
    }
    Ok(())
}

async fn several<L: Lock + Clone>(
    stage: &Stage,
    act: &str,
    forgets: &Node,
    make: impl Fn(Vec<Line>) -> L,
    [alice_asks, bob_asks]: [Words; 2],
) -> Result<(), Trouble> {
    stage.act(act).await?;
    stage.show_only(&NODES.map(|id| (id, LOCK)));
    let [alice, bob] = ["alice", "bob"].map(|id| stage.client(id));
    let lock = |client: &Client| {
        let lines: Result<Vec<Line>, Trouble> = NODES.iter().map(|id| client.line_to(id)).collect();
        Ok::<_, Trouble>(make(lines?))
    };
    let taking = alice.acquires(&lock(&alice)?, ZERO);
    let _hers = alice.must_hold(taking.rest("acquire", alice_asks).await?.0)?;
    forgets.restart().await?;
    stage
        .happens(
            forgets.id,
            "restart",
            w("This node dies and comes back empty.", "这个节点死掉，回来时是空的。"),
        )
        .await?;
    let _his = bob.acquires(&lock(&bob)?, ZERO).rest("try", bob_asks).await?.0?;
    stage.ends(
        stage.overlap(),
        w("Two hold the lock.", "两个人同时持锁。"),
        w(
            "One node forgot, two did not: Bob did not get enough of them and gave back what he \
             had.",
            "一个节点忘了，另两个没忘：Bob 没拿到足够的节点，把拿到的还了回去。",
        ),
    )
}

/// The line of the reply that matters here.
fn link_status(info: &str) -> String {
    let line = info.lines().find(|line| line.starts_with("master_link_status:"));
    line.unwrap_or("(no master_link_status)").to_owned()
}

fn free_port() -> Result<u16, Trouble> {
    let listener =
        std::net::TcpListener::bind(("127.0.0.1", 0)).map_err(redis::RedisError::from)?;
    Ok(listener.local_addr().map_err(redis::RedisError::from)?.port())
}
