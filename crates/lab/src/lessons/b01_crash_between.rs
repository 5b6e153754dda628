//! B1: a crash between SETNX and EXPIRE, and repairs that let two in.

use super::prelude::*;
use locks::{SetnxExpire, TokenLock, setnx_expire::Repair};

pub const LESSON: Lesson = Lesson {
    number: 1,
    id: "b01",
    title: w("A lock for ever", "永远不释放的锁"),
    failure: w(
        "Alice dies between SETNX and EXPIRE. The key has no expiry and its holder is dead: nobody \
         ever gets the lock again.",
        "Alice 在 SETNX 与 EXPIRE 之间崩溃。键没有过期时间，持有者又死了：从此谁也拿不到这把锁。",
    ),
    forced_how: w(
        "Alice is held before her EXPIRE and dies there. For the repairs, two clients are held \
         after both have seen that the lock has no expiry.",
        "让 Alice 停在 EXPIRE 之前并就地崩溃。演示“修复”时，让两个客户端都先看到“锁没有过期时间”，再放行。",
    ),
    cure: w(
        "One command that does both: SET NX PX. Or, for locks that are already dead: give them an \
         expiry, and take nothing over.",
        "用一条命令完成两件事：SET NX PX。对已经死掉的锁：只补上过期时间，不要直接接管。",
    ),
    source: w(
        "《使用Redis实现分布式锁》 has the waiting time, the random sleeps and the repair of a lock with TTL \
         < 0. It misses that its repair takes the lock without looking at SETNX's answer (two \
         repairers both win), and that release never asks whose lock it is (lesson 3).",
        "《使用Redis实现分布式锁》讲了等待超时、随机休眠，以及对 TTL < 0 的锁的修复。它没有注意到：修复时不看 SETNX 的返回值就认为拿到了锁（两个修复者都会“成功”），而\
         且释放时从不检查锁是谁的（第 3 课）。",
    ),
    needs: &[],
    options: &[
        LEASE_MS,
        choice(
            "crash",
            &["between", "after"],
            w(
                "after: Alice dies one command later, when the lock already has its expiry. The \
                 lease ends it, and nothing is lost.",
                "after：Alice 晚一条命令才崩溃，此时锁已有过期时间。租期一到自动释放，什么也不会丢。",
            ),
        ),
    ],
    cast: &[ALICE, BOB, CAROL, REDIS],
    acts: &[
        Act {
            id: "for-ever",
            kind: Kind::Failure,
            title: w("Two commands, and a crash in between", "两条命令，中间崩溃"),
            say: w(
                "SETNX takes the lock, EXPIRE says when it ends. They are two commands, and a \
                 process can die between them.",
                "SETNX 抢锁，EXPIRE 设置过期时间。这是两条命令，进程可能死在中间。",
            ),
        },
        Act {
            id: "del-and-setnx",
            kind: Kind::FlawOfTheCure,
            title: w("Repair by DEL and SETNX", "用 DEL + SETNX 修复"),
            say: w(
                "Who waited in vain and sees no expiry deletes the dead lock and takes it. Two who \
                 see it at once delete each other's.",
                "等不到锁、又看到它没有过期时间的人，删掉死锁再抢。两个人同时看到，就会删掉对方刚抢到的锁。",
            ),
        },
        Act {
            id: "take-over",
            kind: Kind::FlawOfTheCure,
            title: w("The article's repair", "文章里的修复"),
            say: w(
                "SETNX and EXPIRE once more, and the lock counts as taken, whatever SETNX \
                 answered.",
                "再执行一次 SETNX 和 EXPIRE，不管 SETNX 返回什么，都当作拿到了锁。",
            ),
        },
        Act {
            id: "only-expire",
            kind: Kind::Cure,
            title: w("Repair by giving it an end", "只补上过期时间"),
            say: w(
                "The dead lock is given an expiry and nothing else. Any number may do that at \
                 once: nobody has won anything.",
                "只给死锁补上过期时间，别的什么都不做。多少人同时做都无妨：谁也没有因此得到锁。",
            ),
        },
        Act {
            id: "one-command",
            kind: Kind::Cure,
            title: w("One command", "一条命令"),
            say: w(
                "SET NX PX takes the lock and says when it ends. There is no in-between to die in.",
                "SET NX PX 同时抢锁并设置过期时间，不存在可以死在中间的时刻。",
            ),
        },
    ],
};

pub async fn play(stage: Stage) -> Result<(), Trouble> {
    let after = stage.options().is("crash", "after");

    stage.act("for-ever").await?;
    dead_lock(&stage, after).await?;
    if after {
        stage.until_gone(REDIS_NODE, LOCK).await?;
    }
    let bob = stage.client("bob");
    let tries = w(
        "Bob tries to take the lock, now and at any later time.",
        "Bob 来抢锁；现在如此，以后任何时候也一样。",
    );
    let _his = bob.acquires(&lock(&bob, LONG, Repair::Never)?, ZERO).rest("try", tries).await?.0?;
    stage.ends(
        stage.is_stuck(REDIS_NODE).await?,
        w(
            "The key has no expiry and its holder is dead: this lock is taken for ever.",
            "键没有过期时间，持有者已死：这把锁永远被占着。",
        ),
        w(
            "The lock had its expiry, ended by itself, and the next one got it.",
            "锁有过期时间，到点自动释放，下一个人拿到了它。",
        ),
    )?;

    for (act, repair) in [("del-and-setnx", Repair::DeleteAndTake), ("take-over", Repair::TakeOver)]
    {
        stage.act(act).await?;
        dead_lock(&stage, after).await?;
        let [bob, carol] = ["bob", "carol"].map(|id| stage.client(id));
        let mut his = bob.acquires(&lock(&bob, LONG, repair)?, ZERO);
        let mut hers = carol.acquires(&lock(&carol, LONG, repair)?, ZERO);
        for (client, doing) in [(&bob, &mut his), (&carol, &mut hers)] {
            doing
                .next(
                    "try",
                    said(client, "{who} tries: somebody has it.", "{who} 来抢：已被占用。"),
                )
                .await?;
            doing
                .next(
                    "look",
                    said(
                        client,
                        "{who} has waited long enough and looks when it ends.",
                        "{who} 等够了，看看它何时过期。",
                    ),
                )
                .await?;
        }
        let repairs = said(
            &bob,
            "{who} repairs what looks like a dead lock.",
            "{who} 动手修复这把看上去已死的锁。",
        );
        let _ = his.rest("repair", repairs).await?.0?;
        let repairs = said(
            &carol,
            "{who} has seen the same, and repairs it too.",
            "{who} 看到的也一样，也来修复。",
        );
        let _ = hers.rest("repair", repairs).await?.0?;
        stage.ends(
            stage.overlap(),
            w(
                "Both repaired the same dead lock, and both believe to hold it.",
                "两人修复了同一把死锁，都以为自己拿到了。",
            ),
            w(
                "There was nothing to repair: the lock had its expiry.",
                "没有什么可修的：锁本来就有过期时间。",
            ),
        )?;
    }

    stage.act("only-expire").await?;
    dead_lock(&stage, after).await?;
    let [bob, carol] = ["bob", "carol"].map(|id| stage.client(id));
    let mut his = bob.acquires(&lock(&bob, stage.lease(), Repair::OnlyExpire)?, ZERO);
    let mut hers = carol.acquires(&lock(&carol, stage.lease(), Repair::OnlyExpire)?, ZERO);
    for (client, doing) in [(&bob, &mut his), (&carol, &mut hers)] {
        doing
            .next("try", said(client, "{who} tries: somebody has it.", "{who} 来抢：已被占用。"))
            .await?;
    }
    for (client, doing) in [(&bob, his), (&carol, hers)] {
        let repairs = said(
            client,
            "{who} looks when it ends. A lock without an end is given one, and that is all: it is \
             not taken.",
            "{who} 查看它何时过期。没有终点就补一个，仅此而已，并不算拿到锁。",
        );
        let _ = doing.rest("repair", repairs).await?.0?;
    }
    if stage.is_believed() {
        return Err(Trouble::TooSlow("a lease ended before it was looked at"));
    }
    stage.until_gone(REDIS_NODE, LOCK).await?;
    for client in [&bob, &carol] {
        let tries = said(
            client,
            "The lease is over, the key has gone. {who} tries as everybody does.",
            "租期已过，键消失了。{who} 像所有人一样正常来抢。",
        );
        let lock = lock(client, LONG, Repair::Never)?;
        let _ = client.acquires(&lock, ZERO).rest("try", tries).await?.0?;
    }
    stage.ends(
        stage.overlap() || stage.is_stuck(REDIS_NODE).await?,
        w("Two got in, or nobody ever will.", "要么两个人都进来了，要么永远没人能进来。"),
        w(
            "The dead lock ended, and one of the two got the next one.",
            "死锁到期释放，两人中只有一人拿到了新的锁。",
        ),
    )?;

    stage.act("one-command").await?;
    let [alice, bob, carol] = ["alice", "bob", "carol"].map(|id| stage.client(id));
    let lock = TokenLock::new(alice.line()?, stage.lease());
    let taking = alice.takes(&lock, "acquire", w(
        "Alice takes the lock and gives it an end, in one command. (nil) is good news: with GET it \
         answers what was there before, and there was nothing.",
        "Alice 用一条命令抢到锁并设好期限。返回 (nil) 是好消息：带 GET 的 SET 返回旧值，而之前什么都没有。",
    )).await?;
    alice
        .crashes_holding(taking, w("Alice dies, holding the lock.", "Alice 拿着锁崩溃了。"))
        .await?;
    stage.until_gone(REDIS_NODE, LOCK).await?;
    for client in [&bob, &carol] {
        let tries = said(
            client,
            "The lease has ended the dead holder's lock. {who} tries.",
            "租期结束，死者的锁自动释放。{who} 来抢。",
        );
        let _his = client.tries(&TokenLock::new(client.line()?, LONG), "try", tries).await?;
    }
    stage.ends(
        stage.overlap() || stage.is_stuck(REDIS_NODE).await?,
        w("Two got in, or nobody ever will.", "要么两个人都进来了，要么永远没人能进来。"),
        w(
            "Whenever Alice dies, her lease ends her lock; then exactly one gets the next.",
            "无论 Alice 何时死去，租期都会释放她的锁；之后恰好一人拿到下一把。",
        ),
    )
}

fn lock(client: &Client, lease: Duration, repair: Repair) -> Result<SetnxExpire, Trouble> {
    Ok(SetnxExpire::new(client.line()?, lease).repaired_by(repair))
}

fn said(client: &Client, en: &'static str, zh: &'static str) -> Said {
    Said::from(w(en, zh)).with("who", client.name())
}

/// Alice takes the lock and dies: before its EXPIRE, or after it.
async fn dead_lock(stage: &Stage, after: bool) -> Result<(), Trouble> {
    let alice = stage.client("alice");
    let mut taking = alice.acquires(&lock(&alice, stage.lease(), Repair::Never)?, ZERO);
    taking
        .next(
            "setnx",
            w("Alice takes the lock. It has no end yet.", "Alice 抢到锁。此时它还没有过期时间。"),
        )
        .await?;
    alice.stands().await?;
    if after {
        taking
            .next("expire", w("Alice gives the lock its end.", "Alice 给锁设置过期时间。"))
            .await?;
    }
    alice
        .crashes(
            taking,
            w("Alice dies. Nothing of her runs any more.", "Alice 崩溃，什么都不再执行。"),
        )
        .await
}
