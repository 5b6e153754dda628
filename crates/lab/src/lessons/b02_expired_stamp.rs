//! B2: the expiry time is the value; two see it expired; GETSET decides, and what that leaves open.

use super::prelude::*;
use locks::{SetnxGetset, TokenLock, setnx_getset::Takeover};

pub const LESSON: Lesson = Lesson {
    number: 2,
    id: "b02",
    title: w("Two see the same expired stamp", "两个人看到同一个过期时间戳"),
    failure: w(
        "The lock's value is the time at which it ends. Bob and Carol both read a stamp that is \
         over, both DEL and SETNX, and both get in.",
        "锁的值就是它的到期时间。Bob 和 Carol 都读到已过期的时间戳，都执行 DEL 再 SETNX，结果都进来了。",
    ),
    forced_how: w(
        "Both are held after their GET. No waiting: each client has a clock of its own, and the \
         lesson puts it forward.",
        "让两人都停在 GET 之后。不需要真的等待：每个客户端有自己的时钟，由课程来拨快。",
    ),
    cure: w(
        "GETSET decides: the taker is who got the expired stamp back. What that still leaves to \
         the clients' clocks, only the server's clock cures: SET NX PX.",
        "由 GETSET 裁决：拿回过期旧值的那个人得锁。但仍然依赖客户端时钟的部分，只有改用服务器的时钟（SET NX PX）才能根治。",
    ),
    source: w(
        "《详解使用Redis SETNX 命令实现分布式锁》 explains exactly why DEL + SETNX lets two in and how GETSET \
         decides. It calls the loser's overwrite harmless: it is not (third act). It also needs \
         equal clocks (fourth act), cannot tell equal stamps apart, and its release is \
         check-then-delete (lesson 3).",
        "《详解使用Redis SETNX 命令实现分布式锁》准确解释了为何 DEL + SETNX 会放进两个人，以及 GETSET 如何裁决。它说失败者覆盖时间戳无关紧要，其实有关（第三\
         幕）；它还要求各机器时钟一致（第四幕），无法区分相同的时间戳，释放时也是先查后删（第 3 课）。",
    ),
    needs: &[],
    options: &[
        whole(
            "lease_ms",
            5_000,
            1_000,
            60_000,
            w("How long the stamp says that the lock lasts.", "时间戳写明锁持续多久。"),
        ),
        whole(
            "pause_ms",
            6_000,
            0,
            120_000,
            w(
                "How far the clocks are put forward after Alice died. Less than the lease, and \
                 there is no expired stamp to fight for.",
                "Alice 死后把时钟拨快多少。小于租期，就没有过期的时间戳可抢。",
            ),
        ),
        whole(
            "skew_ms",
            8_000,
            0,
            120_000,
            w(
                "How fast Bob's clock is in the fourth act. Less than the lease, and he steals \
                 nothing.",
                "第四幕里 Bob 的时钟快多少。小于租期，他就偷不走锁。",
            ),
        ),
    ],
    cast: &[ALICE, BOB, CAROL, client("dave", "Dave"), REDIS],
    acts: &[
        Act {
            id: "del-and-setnx",
            kind: Kind::Failure,
            title: w("DEL, then SETNX", "先 DEL，再 SETNX"),
            say: w(
                "Alice died with the lock. Bob and Carol find her stamp expired at the same time.",
                "Alice 拿着锁死了。Bob 和 Carol 同时发现她的时间戳已过期。",
            ),
        },
        Act {
            id: "getset",
            kind: Kind::Cure,
            title: w("GETSET decides", "由 GETSET 裁决"),
            say: w(
                "GETSET writes the new stamp and hands back the old one, in one step: only one of \
                 the two gets the expired stamp.",
                "GETSET 一步完成：写入新时间戳，取回旧的。两人中只有一人拿回那个过期的。",
            ),
        },
        Act {
            id: "overwritten",
            kind: Kind::FlawOfTheCure,
            title: w("The loser has overwritten the winner's stamp", "失败者覆盖了胜者的时间戳"),
            say: w(
                "Carol loses, but her GETSET has written her stamp over Bob's. She wanted the lock \
                 for a short time: now it ends while Bob still works.",
                "Carol 输了，但她的 GETSET 已把自己的时间戳盖在 Bob 的上面。她本来只想要很短的时间：于是 Bob 还没干完，锁就“到期”了。",
            ),
        },
        Act {
            id: "clock-skew",
            kind: Kind::FlawOfTheCure,
            title: w("A fast clock steals a live lock", "走快的时钟偷走活锁"),
            say: w(
                "Alice lives and works. Bob's clock is fast: for him her stamp is over.",
                "Alice 活着，正在干活。Bob 的时钟快了：在他看来她的时间戳已经过期。",
            ),
        },
        Act {
            id: "server-clock",
            kind: Kind::Cure,
            title: w("The server's clock", "用服务器的时钟"),
            say: w(
                "SET NX PX: Redis ends the lock by its own clock, and Bob's does not matter.",
                "SET NX PX：由 Redis 按自己的时钟让锁过期，Bob 的时钟再快也没用。",
            ),
        },
    ],
};

pub async fn play(stage: Stage) -> Result<(), Trouble> {
    let pause = stage.options().whole("pause_ms");
    let lock = |client: &Client, takeover| -> Result<SetnxGetset, Trouble> {
        Ok(SetnxGetset::new(client.line()?, stage.lease(), client.clock.clone())
            .taken_over_by(takeover))
    };

    for (act, takeover) in
        [("del-and-setnx", Takeover::DeleteAndSetnx), ("getset", Takeover::Getset)]
    {
        stage.act(act).await?;
        let [bob, carol] = expired(&stage, pause).await?;
        let mut his = bob.acquires(&lock(&bob, takeover)?, ZERO);
        let mut hers = carol.acquires(&lock(&carol, takeover)?, ZERO);
        both_look(&mut his, &mut hers).await?;
        let _bob = his
            .rest(
                "take-over",
                w("Bob takes over what he has seen expire.", "Bob 接管他看到已过期的锁。"),
            )
            .await?
            .0?;
        let _carol = hers
            .rest(
                "take-over",
                w(
                    "Carol has seen the same stamp, and does the same.",
                    "Carol 看到的是同一个时间戳，也做同样的事。",
                ),
            )
            .await?
            .0?;
        stage.ends(
            stage.overlap(),
            w(
                "Carol deleted the lock that Bob had just taken: both hold it.",
                "Carol 删掉了 Bob 刚抢到的锁：两人同时持锁。",
            ),
            w("At most one of the two took the lock.", "两人中至多一人拿到了锁。"),
        )?;
    }

    stage.act("overwritten").await?;
    let [bob, carol] = expired(&stage, pause).await?;
    // Bob's work needs long, Carol's does not.
    let long = SetnxGetset::new(bob.line()?, stage.lease() * 10, bob.clock.clone());
    let mut his = bob.acquires(&long, ZERO);
    let mut hers = carol.acquires(&lock(&carol, Takeover::Getset)?, ZERO);
    both_look(&mut his, &mut hers).await?;
    let his = his
        .rest(
            "take-over",
            w(
                "Bob gets the expired stamp back: the lock is his, for ten times the usual lease.",
                "Bob 拿回了过期的旧值：锁归他，租期是平时的十倍。",
            ),
        )
        .await?
        .0?;
    let _lost = hers
        .rest(
            "take-over",
            w(
                "Carol gets Bob's stamp back and knows that she has lost. But her own, shorter one \
                 is in the key now.",
                "Carol 取回的是 Bob 的时间戳，知道自己输了。但键里现在是她自己的、更短的时间戳。",
            ),
        )
        .await?
        .0?;
    let dave = stage.client("dave");
    dave.clock.set_offset_ms(pause + stage.options().whole("lease_ms") * 2);
    stage
        .happens(
            "dave",
            "time-passes",
            w(
                "Carol's lease is over by now, Bob's is not. Dave comes.",
                "此时 Carol 的租期已过，Bob 的还没有。Dave 来了。",
            ),
        )
        .await?;
    let _dave = dave
        .acquires(&lock(&dave, Takeover::Getset)?, ZERO)
        .rest(
            "take-over",
            w(
                "Dave sees Carol's stamp. It is over, as far as he can tell.",
                "Dave 看到的是 Carol 的时间戳，在他看来已经过期。",
            ),
        )
        .await?
        .0?;
    drop(his);
    stage.ends(
        stage.overlap(),
        w(
            "Bob still works within the lease that he asked for, and Dave has the lock as well: \
             the overwrite was not harmless.",
            "Bob 仍在自己申请的租期内干活，Dave 却也拿到了锁：覆盖并非无害。",
        ),
        w("There was no expired stamp to fight for.", "没有过期的时间戳可抢。"),
    )?;

    for act in ["clock-skew", "server-clock"] {
        stage.act(act).await?;
        let [alice, bob] = ["alice", "bob"].map(|id| stage.client(id));
        bob.clock.set_offset_ms(stage.options().whole("skew_ms"));
        let takes = w("Alice takes the lock and works.", "Alice 拿到锁，开始干活。");
        let tries = w("Bob tries. His clock is fast.", "Bob 来抢。他的时钟走快了。");
        if act == "clock-skew" {
            let _alice = alice.takes(&lock(&alice, Takeover::Getset)?, "acquire", takes).await?;
            let _bob = bob
                .acquires(&lock(&bob, Takeover::Getset)?, ZERO)
                .rest("take-over", tries)
                .await?
                .0?;
        } else {
            let _alice = alice
                .takes(&TokenLock::new(alice.line()?, stage.lease()), "acquire", takes)
                .await?;
            let his = bob.tries(&TokenLock::new(bob.line()?, stage.lease()), "try", tries).await?;
            if his.is_some() {
                return Err(Trouble::TooSlow("a lease ended before it was tried for"));
            }
        }
        stage.ends(
            stage.overlap(),
            w(
                "Bob's clock says that Alice's time is over; Alice's says that it is not. Both \
                 hold the lock.",
                "Bob 的时钟说 Alice 的时间到了，Alice 的时钟说没到。两人同时持锁。",
            ),
            w("Bob was turned away: Alice's lock is alive.", "Bob 被拒绝：Alice 的锁还活着。"),
        )?;
    }
    Ok(())
}

/// Alice takes the lock and dies; then time passes, on everybody's clock.
async fn expired(stage: &Stage, pause: i64) -> Result<[Client; 2], Trouble> {
    let alice = stage.client("alice");
    let lock = SetnxGetset::new(alice.line()?, stage.lease(), alice.clock.clone());
    let held = alice.takes(&lock, "acquire", lease_said(stage, w(
        "Alice takes the lock. Its value is her clock's time plus {lease} ms (and one).",
            "Alice 拿到锁。值是她的时钟加 {lease} 毫秒（再加一）。"))).await?;
    alice.dies();
    drop(held);
    let passes = w(
        "Alice dies. {pause} ms pass (on the clients' clocks; nobody has to wait).",
        "Alice 崩溃。过了 {pause} 毫秒（拨的是客户端时钟，不必真等）。",
    );
    stage.happens("alice", "crash", Said::from(passes).with("pause", pause)).await?;
    let others = ["bob", "carol"].map(|id| stage.client(id));
    for client in &others {
        client.clock.set_offset_ms(pause);
    }
    Ok(others)
}

async fn both_look<A, B>(his: &mut Doing<A>, hers: &mut Doing<B>) -> Result<(), Trouble>
where
    A: super::stage::client::Belief,
    B: super::stage::client::Belief,
{
    his.next("try", w("Bob tries: somebody has it.", "Bob 来抢：已被占用。")).await?;
    his.next("look", w("Bob reads until when.", "Bob 读取到期时间。")).await?;
    hers.next("try", w("Carol tries: somebody has it.", "Carol 来抢：已被占用。")).await?;
    hers.next("look", w("Carol reads the same stamp.", "Carol 读到同一个时间戳。")).await?;
    Ok(())
}
