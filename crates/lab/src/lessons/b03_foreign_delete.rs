//! B3: work outlives the lease, and the unlock removes somebody else's lock.

use super::prelude::*;
use locks::{SetPxNoOwner, TokenLock};

pub const LESSON: Lesson = Lesson {
    number: 3,
    id: "b03",
    title: w("Opening somebody else's lock", "删掉了别人的锁"),
    failure: w(
        "Alice's work takes longer than her lease. The lock ends by itself, Bob takes it, and then \
         Alice's DEL removes Bob's lock: Carol walks in beside Bob.",
        "Alice 干活的时间超过了租期：锁自动过期，Bob 拿到了锁，随后 Alice 的 DEL 删掉的其实是 Bob 的锁，于是 Carol 也进来了，与 Bob 同时操作。",
    ),
    forced_how: w(
        "Alice is held right before her DEL until the key has really gone from Redis and Bob has \
         it.",
        "让 Alice 停在 DEL 之前，一直等到键真的从 Redis 消失、并被 Bob 拿到。",
    ),
    cure: w(
        "Store a value that only the holder knows, and compare and delete in one Lua script. In \
         two calls it fails again.",
        "锁里存一个只有持有者知道的唯一值，并用一段 Lua 脚本完成“比较并删除”。如果分成两次调用，照样会出错。",
    ),
    source: w(
        "《突击Redis重大事故现场,又是\"分布式锁\"惹的祸》 is the incident itself: the lease was over, another's lock \
         was deleted, and check-then-decrement oversold. It names the right cure. What it leaves \
         open: Alice herself had company before her DEL (lesson 4).",
        "《突击Redis重大事故现场,又是\"分布式锁\"惹的祸》讲的就是这次事故：租期已过、删了别人的锁、先查后减导致超卖。它给出的解法是对的；没有说的是：在 DEL 之前，Alice \
         其实已经和别人同时“持有”锁了（见第 4 课）。",
    ),
    needs: &[],
    options: &[
        LEASE_MS,
        PAUSE_MS,
        choice(
            "token",
            &["off", "on"],
            w(
                "on: the first act, too, uses the lock with a unique value. The DEL finds that the \
                 lock is not Alice's.",
                "on：第一幕也使用带唯一值的锁，删除时会发现锁已经不是 Alice 的了。",
            ),
        ),
    ],
    cast: &[ALICE, BOB, CAROL, REDIS, SHOP],
    acts: &[
        Act {
            id: "plain-del",
            kind: Kind::Failure,
            title: w("A plain DEL", "直接 DEL"),
            say: w(
                "The lock has the same value for everybody, and any DEL opens it.",
                "锁的值人人相同，谁执行 DEL 谁就能开锁。",
            ),
        },
        Act {
            id: "two-calls",
            kind: Kind::FlawOfTheCure,
            title: w("Compare, then delete: two calls", "先比较，再删除：两次调用"),
            say: w(
                "A unique value, compared by the client. Between GET and DEL there is room for a \
                 whole lease to end.",
                "值是唯一的，但由客户端来比较。GET 与 DEL 之间，足够让租期走完。",
            ),
        },
        Act {
            id: "one-script",
            kind: Kind::Cure,
            title: w("Compare and delete in one script", "一段脚本：比较并删除"),
            say: w(
                "Redis runs a script without anything in between: what is compared is what is \
                 deleted.",
                "Redis 执行脚本时不会插入别的命令：比较的是谁，删除的就是谁。",
            ),
        },
    ],
};

pub async fn play(stage: Stage) -> Result<(), Trouble> {
    stage.act("plain-del").await?;
    if stage.options().is("token", "on") {
        scene(&stage, TokenLock::new, 1).await?;
    } else {
        scene(&stage, SetPxNoOwner::new, 1).await?;
    }
    stage.act("two-calls").await?;
    let in_two_calls = |line, lease| TokenLock::new(line, lease).released_in_two_calls();
    scene(&stage, in_two_calls, 2).await?;
    stage.act("one-script").await?;
    scene(&stage, TokenLock::new, 1).await
}

/// The same for every lock; its release takes this many requests.
async fn scene<L: Lock + Clone>(
    stage: &Stage,
    lock: impl Fn(Line, Duration) -> L,
    release_takes: usize,
) -> Result<(), Trouble> {
    let [alice, bob, carol] = ["alice", "bob", "carol"].map(|id| stage.client(id));
    let shop = stage.shop();
    stage.show_shop();

    let hers = alice
        .takes(
            &lock(alice.line()?, stage.lease()),
            "acquire",
            lease_said(
                stage,
                w(
                    "Alice takes the lock for {lease} ms and works.",
                    "Alice 拿到锁，租期 {lease} 毫秒，开始干活。",
                ),
            ),
        )
        .await?;
    let mut unlock = alice.releases(hers);
    if release_takes == 2 {
        unlock.next("compare", w(
            "Her work is done. She reads the lock: the value is hers, so she may delete it.",
            "活干完了。她先读锁：值是自己的，可以删。",
        )).await?;
    }
    alice.stands().await?;
    alice.pauses(REDIS_NODE, w(
        "Alice stands still right before she deletes: a garbage collection, a slow network.",
        "就在删除之前，Alice 停住了：一次 GC，或者网络卡顿。",
    )).await?;

    let his = bob
        .tries(
            &lock(bob.line()?, LONG),
            "acquire",
            w(
                "Bob tries. If Alice's lease is over, the key has gone and the lock is his.",
                "Bob 来试。如果 Alice 的租期已过，键已消失，锁归他。",
            ),
        )
        .await?;
    let seen_by_bob = match &his {
        Some(_) => {
            shop.reads(&bob)
                .last(
                    "read-stock",
                    w(
                        "Bob has the lock and looks: one phone is left.",
                        "Bob 拿着锁查库存：还剩一台手机。",
                    ),
                )
                .await??
        }
        None => 0,
    };
    let _ = unlock
        .rest(
            "unlock",
            w(
                "Alice goes on and gives back what she believes is her lock.",
                "Alice 恢复运行，把她以为是自己的锁还回去。",
            ),
        )
        .await?
        .0?;
    let hers_too = carol
        .tries(
            &lock(carol.line()?, LONG),
            "acquire",
            w("Carol tries. Is Bob's lock still there?", "Carol 来试。Bob 的锁还在吗？"),
        )
        .await?;
    let seen_by_carol = match &hers_too {
        Some(_) => {
            shop.reads(&carol)
                .last(
                    "read-stock",
                    w(
                        "Carol looks as well: one phone is left, says the row.",
                        "Carol 也查库存：还剩一台。",
                    ),
                )
                .await??
        }
        None => 0,
    };
    for (client, seen) in [(&bob, seen_by_bob), (&carol, seen_by_carol)] {
        if seen > 0 {
            shop.sells(client, seen)
                .last(
                    "sell",
                    w(
                        "Sold: the stock that was read, less one, and an order.",
                        "卖出：写入“读到的库存减一”，并写一条订单。",
                    ),
                )
                .await??;
        }
    }
    stage.ends(
        stage.overlap() && shop.oversold().await? > 0,
        w(
            "Alice's unlock removed Bob's lock; Bob and Carol held it together and sold one phone \
             twice.",
            "Alice 的解锁删掉了 Bob 的锁；Bob 与 Carol 同时持锁，一台手机卖了两次。",
        ),
        w(
            "Nobody's lock was removed but one's own, and one phone was sold once.",
            "没有人删掉别人的锁，一台手机只卖出一次。",
        ),
    )
}
