//! B10: redlock: a node restarts empty, or the answers come too late: a majority twice.

use super::{nodes::Node, prelude::*};
use locks::Redlock;
use redis::{RedisError, cmd};

pub const LESSON: Lesson = Lesson {
    number: 10,
    id: "b10",
    title: w("Two majorities", "两个多数派"),
    failure: w(
        "Alice holds two of three nodes. One of the two restarts without its data, and Bob finds a \
         majority as well. Or the last answer comes when the first lease is already over: a \
         majority that never was.",
        "Alice 拿到三个节点中的两个。其中一个重启后数据没了，Bob 也凑到了多数。或者：最后一个应答到来时，第一个节点的租期已经结束：这个“多数”从未同时成立。",
    ),
    forced_how: w(
        "Three Redis servers of this play alone; one is killed with kill -9 and keeps nothing on \
         disk. For the jump of a clock the director ends the key early on one node, which is all \
         that its clients would see. For the late answer, a request is held until the first key is \
         gone.",
        "这一课专用的三台 Redis；其中一台被 kill -9，且不落盘。演示“时钟跳变”时，由导演让一个节点上的键提前到期，客户端所见与时钟跳变完全一样。演示“应答太晚”时，让一个请求\
         停住，直到第一个键消失。",
    ),
    cure: w(
        "A crashed node stays away for longer than the longest lease. The time left is checked \
         again once the majority is there. And on failure all nodes are released, also those whose \
         reply was lost.",
        "崩溃的节点要等最长租期过去之后再回来。凑齐多数之后再检查一次剩余时间。失败时在所有节点上释放，包括应答丢失的节点。",
    ),
    source: w(
        "The page “Distributed Locks with Redis” names delayed restarts and the validity time; \
         Martin Kleppmann's “How to do distributed locking” shows why clocks and pauses still \
         break it, and that it has no fencing token. 《突击Redis重大事故现场》 rejects it for its cost.",
        "《Distributed Locks with Redis》提出了延迟重启和有效时间；Martin Kleppmann 的《How to do distributed \
         locking》说明时钟与停顿为何仍会打破它，以及它没有 fencing 令牌。《突击Redis重大事故现场》因成本没有采用。",
    ),
    needs: &[Need::RedisNodes(3)],
    options: &[
        LEASE_MS,
        PAUSE_MS,
        choice(
            "restart",
            &["at-once", "delayed"],
            w(
                "delayed: in the first act, too, the node stays away until Alice's lease is over.",
                "delayed：第一幕里，节点也等 Alice 的租期结束后才回来。",
            ),
        ),
        choice(
            "clock",
            &["jumps", "steady"],
            w(
                "steady: in the third act no clock jumps, and Bob is turned away.",
                "steady：第三幕里没有时钟跳变，Bob 被拒绝。",
            ),
        ),
    ],
    cast: &[
        ALICE,
        BOB,
        Actor { id: "redis-1", name: w("Redis 1", "Redis 1"), part: Part::Redis },
        Actor { id: "redis-2", name: w("Redis 2", "Redis 2"), part: Part::Redis },
        Actor { id: "redis-3", name: w("Redis 3", "Redis 3"), part: Part::Redis },
    ],
    acts: &[
        Act {
            id: "restarts-empty",
            kind: Kind::Failure,
            title: w("A node comes back empty", "节点空着回来"),
            say: w(
                "Redis 3 cannot be reached at first, so Alice's majority is Redis 1 and 2. Then \
                 Redis 2 restarts.",
                "一开始 Redis 3 连不上，Alice 的多数是 Redis 1 和 2。随后 Redis 2 重启。",
            ),
        },
        Act {
            id: "stays-away",
            kind: Kind::Cure,
            title: w("The node stays away", "节点先别回来"),
            say: w(
                "The same crash, but Redis 2 answers nobody until every lease that it may have \
                 forgotten is over.",
                "同样的崩溃，但在它可能忘记的所有租期结束之前，Redis 2 不应答任何人。",
            ),
        },
        Act {
            id: "clock-jumps",
            kind: Kind::Failure,
            title: w("One node's clock jumps", "一个节点的时钟跳变"),
            say: w(
                "No crash this time, and nobody stands still. But Redis 2's clock jumps ahead, \
                 past the end of Alice's lease.",
                "这次没有崩溃，也没有人停顿。但 Redis 2 的时钟向前一跳，越过了 Alice 租期的终点。",
            ),
        },
        Act {
            id: "counts-only",
            kind: Kind::Failure,
            title: w("Two answers, but when?", "两个应答，但在什么时候？"),
            say: w(
                "A careless client counts answers, and does not look at the time when the last one \
                 is there.",
                "粗心的客户端只数应答个数，最后一个到齐时不看时间。",
            ),
        },
        Act {
            id: "checks-validity",
            kind: Kind::Cure,
            title: w("Validity is checked again", "再检查一次有效时间"),
            say: w(
                "The same answers at the same times. The lock counts from before the first \
                 request, sees that nothing is left, and releases every node.",
                "同样的应答、同样的时刻。锁从第一个请求之前开始计时，发现已无剩余，于是在所有节点上释放。",
            ),
        },
    ],
};

const NODES: [&str; 3] = ["redis-1", "redis-2", "redis-3"];

/// The failing variant: a majority, whenever it came.
async fn acquire_carelessly(
    nodes: Vec<Line>,
    name: String,
    lease_ms: u64,
) -> Result<bool, RedisError> {
    let mut taken = 0;
    for node in &nodes {
        let mut set = cmd("SET");
        set.arg(&name).arg(node.unique_token()).arg("NX").arg("PX").arg(lease_ms);
        let answer: Result<Option<String>, RedisError> = node.send(&set).await;
        taken += usize::from(matches!(answer, Ok(Some(_))));
    }
    // THE FLAW: the first lease may be over by now. (And what failed is not given back.)
    Ok(taken > nodes.len() / 2)
}

/// Where the pause was longer than the lease, the first two leases are over.
async fn all_gone(stage: &Stage) -> Result<(), Trouble> {
    if stage.pause() > stage.lease() {
        stage.until_gone("redis-1", LOCK).await?;
        stage.until_gone("redis-3", LOCK).await?;
    }
    Ok(())
}

fn lines(client: &Client) -> Result<Vec<Line>, Trouble> {
    NODES.iter().map(|id| client.line_to(id)).collect()
}

/// No server's clock can be set here. The director ends the key early on one node instead: to its
/// clients that is the same.
async fn clock_jumps(stage: &Stage, second: &Node, both: Words) -> Result<(), Trouble> {
    stage.act("clock-jumps").await?;
    stage.show_only(&NODES.map(|id| (id, LOCK)));
    let [alice, bob] = ["alice", "bob"].map(|id| stage.client(id));
    let taking = alice.acquires(&Redlock::new(lines(&alice)?, LONG), ZERO);
    alice
        .next_to_fails(
            "redis-3",
            "acquire",
            w(
                "Alice asks all three. Redis 3 cannot be reached.",
                "Alice 向三个节点请求。Redis 3 连不上。",
            ),
        )
        .await?;
    alice
        .next_to("redis-1", "acquire", w("Redis 1 gives her the lock.", "Redis 1 给了她锁。"))
        .await?;
    let hers = taking
        .at("redis-2")
        .last(
            "acquire",
            w(
                "Redis 2, too: a majority. Alice has the lock, for a long time.",
                "Redis 2 也给了：是多数。Alice 拿到了锁，租期很长。",
            ),
        )
        .await?;
    let hers = alice.must_hold(hers)?;
    if stage.options().is("clock", "jumps") {
        let mut end = cmd("PEXPIRE");
        end.arg(stage.key(LOCK)).arg(0);
        let ended: i64 = second.order(&end).await?;
        stage
            .orders(
                "redis-2",
                "clock-jumps",
                format!("PEXPIRE {LOCK} 0"),
                format!("(integer) {ended}"),
                w(
                    "Redis 2's clock jumps ahead, and Alice's lease is over there. (Played by the \
                     director, who ends the key early on this one node.)",
                    "Redis 2 的时钟向前一跳，Alice 在那里的租期就结束了。（由导演代演：让这一个节点上的键提前到期。）",
                ),
            )
            .await?;
    }
    let says = w(
        "Bob asks all three: two of them make a majority.",
        "Bob 向三个节点请求：拿到两个就是多数。",
    );
    let _his = bob.acquires(&Redlock::new(lines(&bob)?, LONG), ZERO).rest("try", says).await?.0?;
    stage.ends(
        stage.overlap(),
        both,
        w(
            "No clock jumped: Redis 1 and 2 belong to Alice, and Bob found no majority.",
            "没有时钟跳变：Redis 1 和 2 都归 Alice，Bob 凑不到多数。",
        ),
    )?;
    drop(hers);
    Ok(())
}

pub async fn play(stage: Stage) -> Result<(), Trouble> {
    let _first = stage.node("redis-1", Vec::new()).await?;
    let second = stage.node("redis-2", Vec::new()).await?;
    let _third = stage.node("redis-3", Vec::new()).await?;
    let both = w(
        "Both hold a majority: of three nodes, Redis 2 is in both.",
        "两人各持一个多数派：Redis 2 同时在两边。",
    );

    for act in ["restarts-empty", "stays-away"] {
        stage.act(act).await?;
        stage.show_only(&NODES.map(|id| (id, LOCK)));
        let delayed = act == "stays-away" || stage.options().is("restart", "delayed");
        let [alice, bob] = ["alice", "bob"].map(|id| stage.client(id));
        // Where nobody waits for its end, Alice's lease does not end.
        let lease = if delayed { stage.lease() } else { LONG };
        let taking = alice.acquires(&Redlock::new(lines(&alice)?, lease), ZERO);
        alice
            .next_to_fails(
                "redis-3",
                "acquire",
                w(
                    "Alice asks all three. Redis 3 cannot be reached.",
                    "Alice 向三个节点请求。Redis 3 连不上。",
                ),
            )
            .await?;
        alice
            .next_to("redis-1", "acquire", w("Redis 1 gives her the lock.", "Redis 1 给了她锁。"))
            .await?;
        let hers = taking
            .at("redis-2")
            .last(
                "acquire",
                w(
                    "Redis 2, too: two of three, a majority. Alice has the lock.",
                    "Redis 2 也给了：三个里有两个，是多数。Alice 拿到了锁。",
                ),
            )
            .await?;
        let hers = alice.must_hold(hers)?;
        let before = second.run_id().await?;
        second.kill();
        if !delayed {
            second.until_back(&before).await?;
        }
        let restarts = if delayed {
            w(
                "kill -9: Redis 2 dies, and has kept nothing. It is kept from its clients for now.",
                "kill -9：Redis 2 死了，什么也没保存。暂时不让客户端连它。",
            )
        } else {
            w(
                "kill -9: Redis 2 dies and comes back at once. It has kept nothing.",
                "kill -9：Redis 2 死掉又立刻回来，什么也没保存。",
            )
        };
        stage.happens("redis-2", "restart", restarts).await?;
        let trying = bob.acquires(&Redlock::new(lines(&bob)?, LONG), ZERO);
        if delayed {
            bob.next_to_fails(
                "redis-2",
                "try",
                w(
                    "Bob asks all three. Redis 2 does not answer.",
                    "Bob 向三个节点请求。Redis 2 不应答。",
                ),
            )
            .await?;
            bob.next_to("redis-1", "try", w("Redis 1 belongs to Alice.", "Redis 1 归 Alice。"))
                .await?;
            bob.next_to(
                "redis-3",
                "try",
                w(
                    "Redis 3 is his: one of three is no majority. He gives back what he has.",
                    "Redis 3 给了他：三个里只有一个，不是多数。他把拿到的还回去。",
                ),
            )
            .await?;
            for _ in 0..3 {
                bob.next_to_fails(
                    "redis-2",
                    "give-back",
                    w(
                        "He releases on every node, also where no answer came.",
                        "他在每个节点上释放，包括没有应答的。",
                    ),
                )
                .await?;
            }
            let says = w("Released.", "已释放。");
            if trying.rest("give-back", says).await?.0?.held().is_some() {
                return Err(Trouble::TooSlow("a lease ended too soon"));
            }
            let why = tokio::time::timeout(stage.lease() * 3, hers.lost()).await;
            why.map_err(|_| Trouble::TooSlow("a lease does not end"))?;
            alice.stops_believing();
            stage.until_gone("redis-1", LOCK).await?;
            second.until_back(&before).await?;
            stage
                .happens(
                    "alice",
                    "lost",
                    w(
                        "Alice's lease is over, and she knows. Now Redis 2 may come back.",
                        "Alice 的租期结束了，她也知道。现在 Redis 2 可以回来了。",
                    ),
                )
                .await?;
            let again = bob.acquires(&Redlock::new(lines(&bob)?, LONG), ZERO);
            let _his = again
                .rest(
                    "try",
                    w(
                        "Bob gives back what he could not reach before, and asks again, all three.",
                        "Bob 把先前够不着的也还回去，再次向三个节点请求。",
                    ),
                )
                .await?
                .0?;
        } else {
            let _his = trying
                .rest(
                    "try",
                    w(
                        "Bob asks all three: Redis 1 belongs to Alice, Redis 2 remembers nothing, \
                         Redis 3 never knew.",
                        "Bob 向三个节点请求：Redis 1 归 Alice，Redis 2 什么都不记得，Redis 3 从来不知道。",
                    ),
                )
                .await?
                .0?;
        }
        stage.ends(
            stage.overlap(),
            both,
            w(
                "Bob found a majority only after Alice's lease was over.",
                "Alice 的租期结束之后，Bob 才凑到多数。",
            ),
        )?;
        drop(hers);
    }

    clock_jumps(&stage, &second, both).await?;

    for act in ["counts-only", "checks-validity"] {
        stage.act(act).await?;
        stage.show_only(&NODES.map(|id| (id, LOCK)));
        let [alice, bob] = ["alice", "bob"].map(|id| stage.client(id));
        let first = w(
            "Redis 1 gives Alice the lock. From now on this lease runs.",
            "Redis 1 给了 Alice 锁。从此刻起，这个租期开始走。",
        );
        let late = w(
            "Only now the request to Redis 2 gets through: the second answer.",
            "请求现在才到达 Redis 2：第二个应答。",
        );
        let lost =
            w("Redis 3 gives it, too, and the reply is lost.", "Redis 3 也给了，但应答丢了。");
        if act == "counts-only" {
            let ids = ["redis-1", "redis-3", "redis-2"].map(|id| alice.line_to(id));
            let ids: Result<Vec<Line>, Trouble> = ids.into_iter().collect();
            let lease = u64::try_from(stage.lease().as_millis()).unwrap_or(300);
            let taking = alice.does(acquire_carelessly(ids?, stage.key(LOCK), lease));
            alice.next_to("redis-1", "acquire", first).await?;
            alice.next_loses_reply("acquire", lost).await?;
            alice.stands().await?;
            alice.pauses("redis-1", w("The network is slow.", "网络很慢。")).await?;
            all_gone(&stage).await?;
            let counted = taking.last("acquire", late).await??;
            alice.believes(counted);
        } else {
            let taking = alice.acquires(&Redlock::new(lines(&alice)?, stage.lease()), ZERO);
            alice.next_to("redis-1", "acquire", first).await?;
            alice.next_to_loses_reply("redis-3", "acquire", lost).await?;
            alice.stands().await?;
            alice.pauses("redis-1", w("The network is slow.", "网络很慢。")).await?;
            all_gone(&stage).await?;
            alice.next_to("redis-2", "acquire", late).await?;
            if stage.pause() > stage.lease() {
                let says = w(
                    "Two of three, but the time is over: no lock. Alice releases on every node, \
                     Redis 3 included.",
                    "三个里有两个，但时间已过：不算拿到。Alice 在每个节点上释放，包括 Redis 3。",
                );
                let _none = taking.rest("give-back", says).await?.0?;
            } else {
                let _hers = taking.end().await??;
            }
        }
        let says = w("Bob asks all three.", "Bob 向三个节点请求。");
        let _his =
            bob.acquires(&Redlock::new(lines(&bob)?, LONG), ZERO).rest("try", says).await?.0?;
        stage.ends(
            stage.overlap(),
            w(
                "Alice counted two answers, but they were never valid together: Bob has a majority \
                 as well.",
                "Alice 数到两个应答，但它们从未同时有效：Bob 也有了多数。",
            ),
            w("At most one of the two has the lock.", "两人中至多一人持锁。"),
        )?;
    }
    Ok(())
}
