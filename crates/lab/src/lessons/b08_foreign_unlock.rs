//! B8: unlocking what one does not hold; unlocking twice.

use super::prelude::*;
use locks::{SetPxNoOwner, TokenLock};
use redis::{RedisError, cmd};

pub const LESSON: Lesson = Lesson {
    number: 8,
    id: "b08",
    title: w("Unlocking what is not yours, or twice", "解了不属于自己的锁，或解了两次"),
    failure: w(
        "Bob did not get the lock, but his cleanup code unlocks it all the same. Or Alice unlocks \
         twice, and the second time it is Bob's.",
        "Bob 没拿到锁，但他的清理代码照样解锁。或者 Alice 解了两次锁，第二次解掉的是 Bob 的。",
    ),
    forced_how: w("Directly: the code does what it says.", "不需要强迫：代码写什么就做什么。"),
    cure: w(
        "Only who holds the lock has something to give back (here: a guard, which the release uses \
         up), and Redis checks the owner: an unlock that came too late says so.",
        "只有持锁者手里才有可归还的东西（这里是 guard，归还即用掉），并且由 Redis 检查持有者：来晚了的解锁会如实告知。",
    ),
    source: w(
        "《分布式锁的三种实现》 calls it “the one who ties the bell unties it”, and uses host + thread name \
         as the owner. That is right within one run, but host + thread come back after a restart, \
         so the new process would own the old one's lock. A random value does not come back.",
        "《分布式锁的三种实现》称之为“解铃还须系铃人”，用“主机 + 线程名”作持有者。单次运行内没错，但重启后主机和线程名会重复，新进程会“拥有”旧进程的锁。随机值则不会重复。",
    ),
    needs: &[],
    options: &[
        LEASE_MS,
        choice(
            "cleanup",
            &["always", "if-held"],
            w(
                "if-held: the cleanup code unlocks only what it has locked, and once.",
                "if-held：清理代码只解自己锁上的锁，而且只解一次。",
            ),
        ),
    ],
    cast: &[ALICE, BOB, CAROL, REDIS],
    acts: &[
        Act {
            id: "finally-unlock",
            kind: Kind::Failure,
            title: w("finally { unlock }", "写在 finally 里的解锁"),
            say: w(
                "Bob's unlock stands where it always runs: also when he never got the lock.",
                "Bob 的解锁写在总会执行的地方：没拿到锁时也会执行。",
            ),
        },
        Act {
            id: "twice",
            kind: Kind::Failure,
            title: w("Unlocked twice", "解锁两次"),
            say: w(
                "Alice unlocks when she is done, and once more in her cleanup.",
                "Alice 干完后解锁，清理时又解了一次。",
            ),
        },
        Act {
            id: "owner-check",
            kind: Kind::Cure,
            title: w("The owner is checked", "检查持有者"),
            say: w(
                "A unique value, compared by Redis. And what is released too late is told so.",
                "唯一值，由 Redis 比较。释放得太晚，也会被如实告知。",
            ),
        },
    ],
};

/// The failing variant: any caller opens the lock.
async fn unlock(line: Line, name: String) -> Result<i64, RedisError> {
    line.send(cmd("DEL").arg(&name)).await
}

pub async fn play(stage: Stage) -> Result<(), Trouble> {
    let always = stage.options().is("cleanup", "always");
    let (takes, bob_tries, carol_tries) = (
        w("Alice takes the lock.", "Alice 拿到锁。"),
        w("Bob tries.", "Bob 来抢。"),
        w("Carol tries.", "Carol 来抢。"),
    );
    let held = w("Nobody removed a lock but their own.", "没有人删掉别人的锁。");

    stage.act("finally-unlock").await?;
    let [alice, bob, carol] = ["alice", "bob", "carol"].map(|id| stage.client(id));
    let _hers = alice.takes(&SetPxNoOwner::new(alice.line()?, LONG), "acquire", takes).await?;
    let his = bob.tries(&SetPxNoOwner::new(bob.line()?, LONG), "try", bob_tries).await?;
    if always || his.is_some() {
        let says = w(
            "Bob was turned away. His cleanup runs and unlocks: Alice's lock goes.",
            "Bob 被拒绝。他的清理代码执行了解锁：Alice 的锁没了。",
        );
        let _ = bob.does(unlock(bob.line()?, stage.key(LOCK))).last("cleanup", says).await??;
    }
    let _carols = carol.tries(&SetPxNoOwner::new(carol.line()?, LONG), "try", carol_tries).await?;
    stage.ends(
        stage.overlap(),
        w(
            "Bob opened Alice's lock, and Carol walked in beside her.",
            "Bob 打开了 Alice 的锁，Carol 走了进来。",
        ),
        held,
    )?;

    stage.act("twice").await?;
    let [alice, bob, carol] = ["alice", "bob", "carol"].map(|id| stage.client(id));
    let hers = alice.takes(&SetPxNoOwner::new(alice.line()?, LONG), "acquire", takes).await?;
    let _ = alice
        .releases(hers)
        .rest("unlock", w("Alice is done and unlocks.", "Alice 干完，解锁。"))
        .await?
        .0?;
    let _his = bob.tries(&SetPxNoOwner::new(bob.line()?, LONG), "try", bob_tries).await?;
    if always {
        let says = w(
            "Alice's cleanup unlocks once more. By now it is Bob's lock.",
            "Alice 的清理代码又解了一次锁。现在这把锁是 Bob 的。",
        );
        let _ = alice.does(unlock(alice.line()?, stage.key(LOCK))).last("cleanup", says).await??;
    }
    let _carols = carol.tries(&SetPxNoOwner::new(carol.line()?, LONG), "try", carol_tries).await?;
    stage.ends(
        stage.overlap(),
        w(
            "Alice's second unlock opened Bob's lock, and Carol walked in beside him.",
            "Alice 的第二次解锁打开了 Bob 的锁，Carol 走了进来。",
        ),
        held,
    )?;

    stage.act("owner-check").await?;
    let [alice, bob, carol] = ["alice", "bob", "carol"].map(|id| stage.client(id));
    let hers = alice
        .takes(
            &TokenLock::new(alice.line()?, stage.lease()),
            "acquire",
            lease_said(
                &stage,
                w(
                    "Alice takes the lock for {lease} ms, with a value that only she knows.",
                    "Alice 拿到锁，租期 {lease} 毫秒，值只有她知道。",
                ),
            ),
        )
        .await?;
    let unlock = alice.releases(hers);
    alice.stands().await?;
    stage
        .happens(
            "alice",
            "pause",
            w(
                "Alice is slow: her lease ends right before she unlocks.",
                "Alice 慢了一步：就在解锁之前，租期到了。",
            ),
        )
        .await?;
    stage.until_gone(REDIS_NODE, LOCK).await?;
    let _his = bob.tries(&TokenLock::new(bob.line()?, LONG), "try", bob_tries).await?;
    let says = w(
        "Alice unlocks. Redis compares: not hers, so nothing is deleted, and she is told that she \
         was too late.",
        "Alice 解锁。Redis 比较后发现不是她的，什么也不删，并告诉她来晚了。",
    );
    let released = unlock.rest("unlock", says).await?.0?;
    let _carols = carol.tries(&TokenLock::new(carol.line()?, LONG), "try", carol_tries).await?;
    stage.ends(
        released != Released::NotHeld || stage.overlap(),
        w(
            "A foreign lock was removed, or a late unlock was called a success.",
            "删掉了别人的锁，或者把来晚的解锁当作成功。",
        ),
        w(
            "Bob's lock stayed, Carol was turned away, and Alice knows that her time was over.",
            "Bob 的锁还在，Carol 被拒绝，Alice 也知道自己超时了。",
        ),
    )
}
