//! B4: even with a token: the lease is over, two hold the lock, both write.

use super::prelude::*;
use locks::{TokenLock, fencing::Write};

pub const LESSON: Lesson = Lesson {
    number: 4,
    id: "b04",
    title: w("The lease is over, the holder is not", "租期结束了，持有者还在继续"),
    failure: w(
        "Alice stands still for longer than her lease, between looking and writing. Bob gets the \
         lock, rightly, and sells the phone. Alice wakes up and sells it again.",
        "Alice 在“查”与“写”之间停顿得比租期还久。Bob 正当地拿到锁，卖出手机。Alice 醒来，又卖了一次。",
    ),
    forced_how: w(
        "Alice is held between her read and her write until her key has really gone.",
        "让 Alice 停在读与写之间，直到她的键真的消失。",
    ),
    cure: w(
        "Fencing: each holder gets a higher number, and the resource refuses a lower one. A \
         watchdog that renews the lease makes the failure rarer, and cannot help when the whole \
         process stands still.",
        "防护令牌（fencing）：每个持有者得到一个更大的编号，资源拒绝较小的编号。看门狗续期只能让故障变少；整个进程停住时它也无能为力。",
    ),
    source: w(
        "Martin Kleppmann, “How to do distributed locking”. The course notes 《秒杀》 have the \
         watchdog (renew every third of the lease); 《分布式锁的三种实现》 lists four properties of a lock, \
         and none of them is fencing.",
        "Martin Kleppmann《How to do distributed locking》。课程笔记《秒杀》讲了看门狗（每三分之一租期续一次）；《分布式锁的三种实现》列出了锁的\
         四个特性，其中没有 fencing。",
    ),
    needs: &[],
    options: &[
        whole(
            "lease_ms",
            600,
            50,
            3_000,
            w(
                "How long the lock is granted for. Longer than the pause, and Alice is back in \
                 time.",
                "锁一次给多久。比停顿更长，Alice 就能及时回来。",
            ),
        ),
        whole("pause_ms", 800, 0, 5_000, w("How long Alice stands still.", "Alice 停顿多久。")),
        choice(
            "fencing",
            &["off", "on"],
            w(
                "on: the first act, too, sends the lock's number along with each write.",
                "on：第一幕的写入也带上锁的编号。",
            ),
        ),
    ],
    cast: &[ALICE, BOB, REDIS, SHOP],
    acts: &[
        Act {
            id: "both-write",
            kind: Kind::Failure,
            title: w("A long pause", "一次很长的停顿"),
            say: w(
                "A unique value and a Lua unlock: a lock as good as one Redis can make it.",
                "唯一值加 Lua 解锁：单个 Redis 能做到的最好的锁。",
            ),
        },
        Act {
            id: "watchdog",
            kind: Kind::Cure,
            title: w("A watchdog, while the work is merely long", "看门狗：活只是干得久"),
            say: w(
                "Alice's work is long, but her process lives: a task of it renews the lease every \
                 third of it.",
                "Alice 的活很长，但进程活着：后台任务每三分之一租期续期一次。",
            ),
        },
        Act {
            id: "watchdog-sleeps-too",
            kind: Kind::FlawOfTheCure,
            title: w("The watchdog sleeps too", "看门狗也睡着了"),
            say: w(
                "This time the whole process stands still, and its watchdog with it.",
                "这一次整个进程停住了，看门狗也一起停住。",
            ),
        },
        Act {
            id: "fencing",
            kind: Kind::Cure,
            title: w("Fencing", "防护令牌"),
            say: w(
                "Two believe to hold the lock again. But the row has seen Bob's number, and \
                 Alice's is lower.",
                "又有两个人以为自己持锁。但库存那一行已见过 Bob 的编号，Alice 的更小。",
            ),
        },
    ],
};

pub async fn play(stage: Stage) -> Result<(), Trouble> {
    stage.act("both-write").await?;
    let fenced = stage.options().is("fencing", "on");
    long_pause(&stage, fenced, false).await?;

    stage.act("watchdog").await?;
    stage.show_shop();
    let [alice, bob] = ["alice", "bob"].map(|id| stage.client(id));
    let lock = TokenLock::new(alice.line()?, stage.lease()).renewed();
    let held = alice
        .takes(
            &lock,
            "acquire",
            lease_said(
                &stage,
                w(
                    "Alice takes the lock for {lease} ms, and a watchdog with it.",
                    "Alice 拿到锁，租期 {lease} 毫秒，并启动看门狗。",
                ),
            ),
        )
        .await?;
    // As many renewals as her work lasts, and two at least.
    let third = stage.lease().as_millis().max(3) / 3;
    let renewals = (stage.pause().as_millis() / third).clamp(2, 6);
    for _ in 0..renewals {
        alice
            .renews(
                "renew",
                w(
                    "Alice still works. Her watchdog renews: the lease begins anew.",
                    "Alice 还在干活。看门狗续期：租期重新开始。",
                ),
            )
            .await?;
    }
    let his = bob
        .tries(
            &TokenLock::new(bob.line()?, LONG),
            "try",
            w(
                "Bob tries. Alice's first lease would long be over.",
                "Bob 来抢。若没有续期，Alice 的第一个租期早已结束。",
            ),
        )
        .await?;
    let seen = shop_read(&stage, &alice).await?;
    stage
        .shop()
        .sells(&alice, seen)
        .last("sell", w("Alice writes, and sells the phone.", "Alice 写入，卖出手机。"))
        .await??;
    if let Some(his) = his {
        drop(his);
        return Err(Trouble::TooSlow("a lease ended between two renewals"));
    }
    let _ = alice
        .releases(held)
        .rest(
            "unlock",
            w(
                "Alice ends the watchdog first, then gives the lock back.",
                "Alice 先停掉看门狗，再还锁。",
            ),
        )
        .await?
        .0?;
    stage.ends(
        stage.overlap() || stage.shop().oversold().await? > 0,
        w("Two held the lock.", "两个人同时持锁。"),
        w(
            "The lease was renewed for as long as Alice worked; Bob was turned away.",
            "Alice 干活期间一直续期，Bob 被拒绝。",
        ),
    )?;

    stage.act("watchdog-sleeps-too").await?;
    long_pause(&stage, false, true).await?;
    stage.act("fencing").await?;
    long_pause(&stage, true, false).await
}

async fn shop_read(stage: &Stage, client: &Client) -> Result<i32, Trouble> {
    let says = Said::from(w(
        "{who} has the lock and looks: one phone is left.",
        "{who} 拿着锁查库存：还剩一台手机。",
    ));
    let seen =
        stage.shop().reads(client).last("read-stock", says.with("who", client.name())).await?;
    Ok(seen?)
}

/// Alice looks, stands still, writes; Bob comes in between, if he can.
async fn long_pause(stage: &Stage, fenced: bool, renewed: bool) -> Result<(), Trouble> {
    let [alice, bob] = ["alice", "bob"].map(|id| stage.client(id));
    stage.show_shop();
    let lock = |line, lease, renewed| {
        let lock = TokenLock::new(line, lease);
        let lock = if fenced { lock.fenced() } else { lock };
        if renewed { lock.renewed() } else { lock }
    };
    if fenced {
        stage.show(REDIS_NODE, "lock:phone:fence");
    }
    let hers = alice
        .takes(
            &lock(alice.line()?, stage.lease(), renewed),
            "acquire",
            lease_said(
                stage,
                w("Alice takes the lock for {lease} ms.", "Alice 拿到锁，租期 {lease} 毫秒。"),
            ),
        )
        .await?;
    let seen = shop_read(stage, &alice).await?;
    alice.pauses(REDIS_NODE, w(
        "Alice stands still, the whole process: a garbage collection. Nothing in her notices that \
         time passes, and she believes to hold the lock.",
        "Alice 整个进程停住了：一次 GC。她内部没有任何东西察觉时间在流逝，仍以为自己持锁。")).await?;
    let his = bob
        .tries(
            &lock(bob.line()?, LONG, false),
            "try",
            w("Bob tries. Has Alice's lease ended?", "Bob 来抢。Alice 的租期结束了吗？"),
        )
        .await?;
    if let Some(his) = &his {
        let seen = shop_read(stage, &bob).await?;
        let says = w("Bob sells the phone, rightly.", "Bob 正当地卖出手机。");
        sell(stage, &bob, seen, his.fencing(), says).await?;
    }
    sell(
        stage,
        &alice,
        seen,
        hers.fencing(),
        w("Alice goes on where she stood, and writes.", "Alice 从停住的地方继续，写入。"),
    )
    .await?;
    // The fenced row keeps the last buyer: had Alice got past, it would be her.
    let overwritten =
        his.is_some() && stage.shop().sold_to().await?.as_deref() == Some("sold to alice");
    stage.ends(
        stage.shop().oversold().await? > 0 || overwritten,
        w(
            "One phone, two orders: Alice wrote after her time was over.",
            "一台手机，两个订单：Alice 在租期结束之后写入。",
        ),
        if his.is_none() {
            w(
                "Alice was back before her lease was over; Bob was turned away.",
                "Alice 在租期结束前回来了，Bob 被拒绝。",
            )
        } else {
            w(
                "Two believed to hold the lock, and it did no harm: the row refused the older \
                 number.",
                "两个人都以为持锁，但没有造成损害：那一行拒绝了较旧的编号。",
            )
        },
    )
}

async fn sell(
    stage: &Stage,
    client: &Client,
    seen: i32,
    fencing: Option<u64>,
    says: Words,
) -> Result<(), Trouble> {
    match fencing {
        None => stage.shop().sells(client, seen).last("sell", says).await??,
        Some(number) => {
            let (written, _) = stage.shop().sells_fenced(client, number).rest("sell", says).await?;
            let (Write::Applied | Write::Refused { .. }) = written?;
        }
    }
    Ok(())
}
